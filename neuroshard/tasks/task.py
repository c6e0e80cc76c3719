"""The input of a search: tables, devices, batch size, memory use, and constraints.
The constraints are checked against the tables and devices.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.layouts import LAYOUTS
from neuroshard.plumbing.arrays import own_places
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError, check_name
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.schema import MAX_BYTES, MAX_TABLES, BatchSize, as_fields, parse, readable_bytes, readable_list
from neuroshard.tables import Table, check_unique_names
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableLimits, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.words.placement import ON_DEVICE, Tier, TierAssignment
from neuroshard.words.topology import Topology

_SHOWN_TABLES = 8  # maximum number of tables that a message names
_SHOWN_DEVICES = 16  # maximum number of devices that a message names
_SAME_BATCH_SIZE = 0.05  # relative difference of batch sizes that hardly changes a reuse histogram


@dataclass(frozen=True)
@checked
class Task:
    """The input of a search: tables, (T,), to shard over the devices of a topology.

    Attributes:
        tables: the T tables, with different names.
        topology: the devices and their memory.
        batch_size: global batch size: samples per step over all devices.
        memory: optimizer states and buffers that count as memory in addition to the weights.
        constraints: rules that a plan must keep, in addition to the memory limits.

    Raises:
        UserError: the number or total size of tables is out of range, two tables share a name, the batch is smaller
            than the number of devices, the constraints contradict each other or the tables, or a table must be in host
            memory but hosts have no memory for tables.
    """

    tables: tuple[Table, ...]
    topology: Topology
    batch_size: BatchSize
    memory: MemoryUse = field(default_factory=MemoryUse)
    constraints: Constraints = field(default_factory=Constraints)

    def __post_init__(self) -> None:
        if not 1 <= len(self.tables) <= MAX_TABLES:
            raise UserError(
                "task-table-count",
                f"the task has {number_of(len(self.tables), 'table')}",
                limit=f"a task must have 1 to {MAX_TABLES:,} tables",
                remedy="Give at least one table" if not self.tables else "Give fewer tables",
            )
        if self.batch_size < self.topology.num_devices:
            raise UserError(
                "task-batch-size-too-small",
                f"batch_size is {self.batch_size}",
                where="task",
                limit=f"each of the {self.topology.num_devices} devices needs at least one sample",
                remedy=f"Set batch_size to {self.topology.num_devices} or more",
            )
        if (total := self.total_bytes) > MAX_BYTES:
            raise UserError(
                "task-tables-too-large",
                f"the tables take {readable_bytes(total)} with optimizer state and buffers",
                where="task",
                limit=f"the maximum is 2^60 bytes ({readable_bytes(MAX_BYTES)})",
                remedy="Give fewer or smaller tables, or lower batch_size or memory.batches_in_flight",
            )
        check_unique_names(self.tables)
        if self.constraints != Constraints():
            check_constraints(self)
        if not self.topology.host_bytes:
            for table, assignment in zip(self.tables, self.tier_assignments, strict=True):
                if assignment.tier is not Tier.DEVICE:
                    raise UserError(
                        "task-no-host-memory",
                        f"the constraints allow table {table.name!r} in host memory only",
                        where="task",
                        limit="topology.host_memory_bytes is 0, so the hosts have no memory for tables",
                        remedy="Set topology.host_memory_bytes to the memory of each host for tables, such as 256GiB",
                    )

    @cached_property
    def limits(self) -> tuple[TableLimits, ...]:
        """Limits for the shards of each table, such as the allowed devices, as one `TableLimits` per table, (T,).
        The limits follow from the constraints of the task.
        """
        return tuple(
            self.constraints.limits(table, self.topology.num_devices, len(self.topology.domains))
            for table in self.tables
        )

    @cached_property
    def tier_assignments(self) -> tuple[TierAssignment, ...]:
        """The memory tier of each table, (T,), with the cache size if the table is cached.
        These values apply if the search method does not choose the tiers itself. Each table has the fastest tier that
        the constraints allow. If no constraint names tiers, all tables are in device memory.
        """
        if all(rule.tiers is None for rule in self.constraints.rules):
            return (ON_DEVICE,) * len(self.tables)
        return tuple(limits.tier_assignment for limits in self.limits)

    @cached_property
    def loads(self) -> Loads:
        """The work that each table causes for the embedding kernels in one batch, as one `Loads` object for T tables.
        No table is split, and each table is in the memory tier that `tier_assignments` has for the table.
        """
        return Loads.of(self.tables, self.batch_size).at(self.tier_assignments)

    @property
    def size_bytes(self) -> int:
        """Bytes of the weights of all tables."""
        return sum(table.size_bytes for table in self.tables)

    @property
    def output_columns(self) -> float:
        """The number of output columns per sample, summed over all tables.
        This is a mean over samples: a sequence table has one output for each lookup, so the number differs between
        samples.
        """
        return sum(table.output_columns for table in self.tables)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tables without splitting, including the optimizer states and buffers that `memory` counts."""
        sizes = self.memory.device_bytes(Loads.of(self.tables, self.batch_size))
        return sum(sizes.tolist())

    @cached_property
    def shard_memory(self) -> tuple[int, ...]:
        """The bytes of memory that each of D devices has for shards, (D,). This is the memory of the device, minus the
        reserved memory, minus the buffers for the device's samples (an equal share of each batch). The buffers have the
        inputs, embeddings and gradients of these samples.
        """
        inputs = sum(table.pooling_factor + table.features for table in self.tables)
        devices = self.topology.num_devices
        received = self.memory.received_bytes(self.output_columns, self.batch_size, devices, inputs)
        return tuple(free - received for free in self.topology.device_memory)

    @property
    def warnings(self) -> tuple[Message, ...]:
        """Warnings about the tables of the task, of two kinds.
        The first kind is about tables whose number of columns was padded. The second kind is about tables whose reuse
        histograms were made for another batch size. A reuse histogram says how often a batch looks up the same row.
        """
        sizes = ((table, table.reuse_batch_size or self.batch_size) for table in self.tables)
        others = [table for table, size in sizes if abs(size / self.batch_size - 1) > _SAME_BATCH_SIZE]
        if not others:
            return self.padded_remarks
        return (
            *self.padded_remarks,
            Message(
                "reuse-other-batch-size",
                f"the reuse histograms of {len(others)} of {number_of(len(self.tables), 'table')}, such as "
                f"{others[0].name!r}, were made for batch size {others[0].reuse_batch_size}, not {self.batch_size}",
                limit="so the estimated number of rows that a batch looks up is wrong for these tables",
                remedy=f"Load or profile the tables again for batch_size={self.batch_size}",
            ),
        )

    @property
    def padded_remarks(self) -> tuple[Message, ...]:
        """A warning about tables that were padded to a multiple of 4 columns, if any."""
        padded = [f"{table.name} {table.unpadded_dim} -> {table.dim}" for table in self.tables if table.unpadded_dim]
        if not padded:
            return ()
        are = "is" if len(padded) == 1 else "are"
        return (
            Message(
                "tables-padded",
                f"{number_of(len(padded), 'table')} {are} padded to a multiple of 4 columns "
                f"({readable_list(padded, _SHOWN_TABLES)})",
                limit="the tables of your model must have as many columns as the tables of the plan",
                remedy="In your model, set embedding_dim of each of these tables to the padded number of columns",
            ),
        )

    def unlike(self, other: "Task") -> str | None:
        """Return None if the costs of plans of two tasks can be compared. Otherwise return the first reason against the
        comparison: "number of devices", "batch size" or "tables".

        Constraints and memory may differ. "number of devices" stands for devices per host or fast-link domain, too.
        """
        topologies = self.topology, other.topology
        here, there = ((place.num_devices, place.host_size, place.domain_size) for place in topologies)
        differs = {
            "number of devices": here != there,
            "batch size": self.batch_size != other.batch_size,
            "tables": self.tables != other.tables,
        }
        return next((name for name, different in differs.items() if different), None)

    def with_rules(self, rules: Iterable[TableRule]) -> "Task":
        """Return a copy of the task with further rules for tables.
        The constraints of the copy have the rules of the task first, and then `rules`.

        Raises:
            UserError: the rules contradict each other, or the tables and devices of the task.
        """
        return replace(self, constraints=self.constraints.with_rules(rules))

    def to_json(self) -> dict[str, Any]:
        """Return the task as JSON-ready fields."""
        return {
            "topology": as_fields(self.topology, ("host_memory_bytes", "devices_per_domain")),
            "batch_size": self.batch_size,
            "memory": as_fields(self.memory, ("pipeline", "dense_optimizer", "host_tables")),
            "constraints": self.constraints.to_json(),
            "tables": [table.to_json() for table in self.tables],
        }

    @classmethod
    def from_json(cls, content: object) -> "Task":
        """Return the task with the fields in `content`, as `to_json` returned them.

        Raises:
            UserError: a field is missing, unknown or out of range, or the task is refused.
        """
        return parse(content, cls, "task")


def check_constraints(task: Task) -> None:
    """Raise UserError if the constraints of a task name an unknown table or device, or contradict each other.
    Constraints that contradict the tables of the task raise UserError, too.
    """
    constraints, num_devices = task.constraints, task.topology.num_devices
    tables = {table.name: table for table in task.tables}
    _check_names(constraints, tables, num_devices)
    checks = _Checks(constraints, tables, dict(zip(tables, task.limits, strict=True)), num_devices)
    checks.groups()
    for name, shards in constraints.pins.items():
        checks.pinned(tables[name], shards)
    checks.places()


def _check_names(constraints: Constraints, names: Collection[str], num_devices: int) -> None:
    for rule in constraints.rules:
        if not rule.concerns(names):
            raise UserError(
                "rule-matches-no-table",
                f"no table has a name that matches {rule.tables!r}",
                where="constraints",
                remedy="Correct the pattern in `tables` of the rule, or remove the rule",
            )
        _check_devices(rule.tables, rule.devices or (), num_devices)
    for shard in constraints.pinned:
        _check_devices(shard.table, shard.devices, num_devices)
    for group in (*constraints.together, *constraints.apart, *((shard.table,) for shard in constraints.pinned)):
        for name in group:
            check_name("table in the constraints", name, names)


@dataclass(frozen=True)
class _Checks:
    """Checks of the constraints of a task.
    `tables` and `limits` map the name of each table to the table and to the limits of the table.
    """

    constraints: Constraints
    tables: dict[str, Table]
    limits: dict[str, TableLimits]
    num_devices: int

    def groups(self) -> None:
        """Raise UserError if a group of tables in the constraints is impossible, or if it contradicts another group.
        The tables of a group in `together` must be on the same devices. The tables of a group in `apart` must not share
        a device.
        """
        seen: set[str] = set()
        for group in self.constraints.together:
            if twice := seen.intersection(group) or {name for name in group if group.count(name) > 1}:
                raise UserError(
                    "together-twice",
                    f"table {min(twice)!r} is in `together` twice",
                    where="constraints",
                    limit="a table can be in only one group of `together`",
                    remedy="Join the groups that have this table, and name the table only once",
                )
            seen.update(group)
            shared = frozenset.intersection(*(self.limits[name].forms for name in group))
            if not any(LAYOUTS[form].joins for form in shared):
                raise UserError(
                    "together-sharding-types",
                    f"tables {', '.join(group)} must be kept together, but the rules do not allow a suitable sharding "
                    "type for all of these tables",
                    where="constraints",
                    limit="a group of `together` needs a sharding type that all rules allow, and cannot be row_wise",
                    remedy="Allow table_wise for all of these tables, or data_parallel for all of these tables",
                )
            if not set.intersection(*(set(self.limits[name].devices) for name in group)):
                raise UserError(
                    "together-no-device",
                    f"tables {', '.join(group)} must be kept together, but no device is allowed for all of them",
                    where="constraints",
                    remedy="Allow the same device for all of these tables",
                )
        for group in self.constraints.apart:
            for together in self.constraints.together:
                if len(both := set(group).intersection(together)) > 1:
                    raise UserError(
                        "together-and-apart",
                        f"tables {', '.join(sorted(both))} are in a group of `together` and also in a group of `apart`",
                        where="constraints",
                        remedy="Remove these tables from the group of `together` or from the group of `apart`",
                    )
            if (needed := sum(self.limits[name].min_shards for name in set(group))) > self.num_devices:
                raise UserError(
                    "apart-too-few-devices",
                    f"tables {', '.join(group)} must be kept apart, and together need {number_of(needed, 'device')}",
                    where="constraints",
                    limit=f"the topology has {number_of(self.num_devices, 'device')}",
                    remedy="Name fewer tables in this group of `apart`, or lower their min_shards",
                )

    def pinned(self, table: Table, shards: Sequence[PinnedShard]) -> None:
        """Raise UserError if the pinned shards of a table contradict the size or the limits of the table.
        A pinned shard is a shard that every plan must contain, on one of the devices that the constraints name.
        """
        name, limits, columns = table.name, self.limits[table.name], sum(shard.dim for shard in shards)
        if columns > table.dim:
            raise UserError(
                "pins-too-many-columns",
                f"the pinned shards of table {name!r} together have {columns} columns",
                where="constraints",
                limit=f"the table has {table.dim} columns",
                remedy=f"Pin {table.dim} columns or fewer",
            )
        if not limits.free:
            raise UserError(
                "pin-sharding-type",
                f"a shard of table {name!r} is pinned, but the rules for the table do not allow column_wise",
                where="constraints",
                remedy="Allow column_wise for the table, or remove the pinned shard",
            )
        if name in self.constraints.group_of and not self.constraints.pinned_whole(table):
            raise UserError(
                "pin-splits-group",
                f"only a part of table {name!r} is pinned, and the table is in a group of `together`",
                where="constraints",
                limit="tables in a group of `together` cannot be split",
                remedy=f"Pin all {table.dim} columns as one shard, or remove the table from `together`",
            )
        if len(shards) + (columns < table.dim) > limits.max_shards:
            raise UserError(
                "pins-too-many-shards",
                f"the pinned shards split table {name!r} into {len(shards) + (columns < table.dim)} or more shards",
                where="constraints",
                limit=f"the table can have at most {number_of(limits.max_shards, 'shard')}",
                remedy="Pin fewer shards, or raise max_shards in the rules for the table",
            )
        widths = [*(shard.dim for shard in shards), *([table.dim - columns] if columns < table.dim else [])]
        if min(widths) < limits.min_dim:
            raise UserError(
                "pins-too-narrow",
                f"with the pinned shards, table {name!r} has a shard of {min(widths)} columns",
                where="constraints",
                limit=f"each shard of the table must have at least {limits.min_dim} columns",
                remedy="Pin shards with other numbers of columns, or lower min_dim in the rules for the table",
            )
        more = (table.dim - columns) // limits.min_dim
        if limits.min_shards > len(shards) + more:
            raise UserError(
                "pins-too-few-shards",
                f"with the pinned shards, table {name!r} can have at most {number_of(len(shards) + more, 'shard')}",
                where="constraints",
                limit=f"the table needs at least {number_of(limits.min_shards, 'shard')}",
                remedy="Pin fewer columns, or lower min_shards in the rules for the table",
            )
        for shard in shards:
            if not set(shard.devices).intersection(limits.devices):
                raise UserError(
                    "pin-devices-forbidden",
                    f"a shard of table {name!r} is pinned to {_listed(shard.devices)}",
                    where="constraints",
                    limit=f"the rules allow the table only on {_listed(limits.devices)}",
                    remedy="Pin the shard to an allowed device, or change `devices` in the rules for the table",
                )

    def places(self) -> None:
        """Raise UserError if the constraints allow too few devices for shards that must be on different devices.
        Two cases are checked: all shards of a table with pinned shards, and all shards of the tables in a group of
        `apart`.
        """
        for name in self.constraints.pins:
            if not _have_places(self._wanted(self.tables[name]), self.num_devices):
                raise UserError(
                    "pins-share-devices",
                    f"the rules and pins for table {name!r} allow too few devices for the shards of the table",
                    where="constraints",
                    limit="each shard of a table needs a different device",
                    remedy="Pin each shard to a different device, or allow the table on more devices",
                )
        for group in self.constraints.apart:
            wanted = [devices for name in set(group) for devices in self._wanted(self.tables[name])]
            if not _have_places(wanted, self.num_devices):
                raise UserError(
                    "apart-no-room",
                    f"tables {', '.join(group)} must be kept apart, but their rules and pins allow too few devices",
                    where="constraints",
                    limit="each shard of tables in a group of `apart` needs a different device",
                    remedy="Allow more devices for these tables, or name fewer tables in this group of `apart`",
                )

    def _wanted(self, table: Table) -> list[set[int]]:
        """Return a list of sets of devices for a table. Each set is for one shard of the table, and has the devices
        that the shard may be on.

        The first sets are for the pinned shards. Further sets follow if the table needs more shards: if the pinned
        shards do not cover all columns, or are fewer than the table's minimum number of shards. The number of further
        shards is the smallest possible.
        """
        pinned = self.constraints.pins.get(table.name, [])
        group = self.constraints.group_of.get(table.name, (table.name,))
        devices = set.intersection(*(set(self.limits[name].devices) for name in group))
        rest = max(self.limits[table.name].min_shards - len(pinned), sum(shard.dim for shard in pinned) < table.dim)
        return [*(devices.intersection(shard.devices) for shard in pinned), *[devices] * rest]


def _have_places(wanted: Sequence[set[int]], num_devices: int) -> bool:
    """Return True if one device can be chosen from each set in `wanted` such that all chosen devices are different."""
    allowed = np.zeros((len(wanted), num_devices), dtype=np.bool_)
    for row, devices in zip(allowed, wanted, strict=True):
        row[list(devices)] = True
    return own_places(allowed) is not None


def _listed(devices: Sequence[int]) -> str:
    """Return the indices of devices as text, such as "devices 0, 1, 2"."""
    return f"device{'' if len(devices) == 1 else 's'} {readable_list(list(map(str, devices)), _SHOWN_DEVICES)}"


def _check_devices(name: str, devices: Sequence[int], num_devices: int) -> None:
    for device in devices:
        if not isinstance(device, int) or not 0 <= device < num_devices:
            raise UserError(
                "constraints-device-outside",
                f"a rule or pin for {name!r} names device {device!r}",
                where="constraints",
                limit=f"the topology has devices 0 to {num_devices - 1}",
                remedy="Name only devices of the topology",
            )
