"""What a search is asked: tables, devices and a batch size, and constraints that fit them and each other."""

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
from neuroshard.plumbing.schema import MAX_BYTES, MAX_TABLES, BatchSize, as_fields, parse, readable_bytes
from neuroshard.tables import Table, check_unique_names
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableLimits, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.words.placement import ON_DEVICE, Tier, TierAssignment
from neuroshard.words.topology import Topology

_SHOWN_TABLES = 8  # tables that a line names
_SAME_BATCH_SIZE = 0.05  # relative difference that hardly changes a reuse histogram


@dataclass(frozen=True)
@checked
class Task:
    """Tables (T,) to be sharded over a topology.

    Attributes:
        batch_size: global: samples per step over all devices.
        memory: what counts against a device's memory.
        constraints: rules that a plan must keep, in addition to memory.
    """

    tables: tuple[Table, ...]
    topology: Topology
    batch_size: BatchSize
    memory: MemoryUse = field(default_factory=MemoryUse)
    constraints: Constraints = field(default_factory=Constraints)

    def __post_init__(self) -> None:
        if not 1 <= len(self.tables) <= MAX_TABLES:
            raise UserError(
                f"a task needs at least one table and at most {MAX_TABLES:,}; this one has {len(self.tables)}"
            )
        if self.batch_size < self.topology.num_devices:
            raise UserError(
                f"task: batch_size={self.batch_size} must be "
                f"at least one sample for each of the {self.topology.num_devices} devices"
            )
        if (total := self.total_bytes) > MAX_BYTES:
            raise UserError(
                f"task: its tables take {readable_bytes(total)} with optimizer state and buffers, more than 2^60 bytes"
            )
        check_unique_names(self.tables)
        if self.constraints != Constraints():
            check_constraints(self)
        if not self.topology.host_bytes:
            for table, home in zip(self.tables, self.tier_assignments, strict=True):
                if home.tier is not Tier.DEVICE:
                    raise UserError(
                        f"task: table {table.name!r} may only be in host memory, and hosts have no memory for tables; "
                        "set topology.host_memory_bytes"
                    )

    @cached_property
    def limits(self) -> tuple[TableLimits, ...]:
        """(T,) the limits that the constraints set for each table."""
        return tuple(
            self.constraints.limits(table, self.topology.num_devices, len(self.topology.domains))
            for table in self.tables
        )

    @cached_property
    def tier_assignments(self) -> tuple[TierAssignment, ...]:
        """(T,) the memory that holds each table where no search chooses it."""
        if all(rule.tiers is None for rule in self.constraints.rules):
            return (ON_DEVICE,) * len(self.tables)
        return tuple(limits.tier_assignment for limits in self.limits)

    @cached_property
    def loads(self) -> Loads:
        """(T,) loads of the whole tables, each table-wise on a device, in the memory of its tier assignment."""
        return Loads.of(self.tables, self.batch_size).at(self.tier_assignments)

    @property
    def size_bytes(self) -> int:
        """Bytes of the weights of all tables."""
        return sum(table.size_bytes for table in self.tables)

    @property
    def output_columns(self) -> float:
        """Columns of all that a sample gets of the tables."""
        return sum(table.output_columns for table in self.tables)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tables, unsplit, with what the task counts in addition to weights."""
        sizes = self.memory.device_bytes(Loads.of(self.tables, self.batch_size))
        return sum(sizes.tolist())

    @cached_property
    def shard_memory(self) -> tuple[int, ...]:
        """(D,) bytes for shards on each device: what its own samples' inputs and embeddings leave."""
        inputs = sum(table.pooling_factor + table.features for table in self.tables)
        devices = self.topology.num_devices
        received = self.memory.received_bytes(self.output_columns, self.batch_size, devices, inputs)
        return tuple(free - received for free in self.topology.device_memory)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines on tables that were padded, and on reuse histograms made for another batch size."""
        made_for = ((table, table.reuse_batch_size or self.batch_size) for table in self.tables)
        others = [table for table, size in made_for if abs(size / self.batch_size - 1) > _SAME_BATCH_SIZE]
        if not others:
            return self.padded_remarks
        return (
            *self.padded_remarks,
            f"reuse histograms: made for batch size {others[0].reuse_batch_size}, not {self.batch_size} "
            f"({len(others)} of {len(self.tables)} tables, such as {others[0].name!r}): the rows that a batch touches "
            f"are estimated wrongly; make the tables with batch_size={self.batch_size}",
        )

    @property
    def padded_remarks(self) -> tuple[str, ...]:
        """A line on tables that were padded to a multiple of 4 columns, if any: the model's tables must be as wide."""
        padded = [f"{table.name} {table.unpadded_dim} -> {table.dim}" for table in self.tables if table.unpadded_dim]
        if not padded:
            return ()
        more = f", {len(padded) - _SHOWN_TABLES:,} more" if len(padded) > _SHOWN_TABLES else ""
        what = f"{len(padded):,} table{'s' if len(padded) > 1 else ''} padded"
        return (
            f"padding: {what} ({', '.join(padded[:_SHOWN_TABLES])}{more}); give them that embedding_dim in your model",
        )

    def unlike(self, other: "Task") -> str | None:
        """Name what makes plans cost something else than plans of another task; None if these compare.

        They may have other constraints, and other memory.
        """
        here, there = ((its.num_devices, its.host_size, its.domain_size) for its in (self.topology, other.topology))
        differs = {
            "number of devices": here != there,
            "batch size": self.batch_size != other.batch_size,
            "tables": self.tables != other.tables,
        }
        return next((name for name, its in differs.items() if its), None)

    def with_rules(self, rules: Iterable[TableRule]) -> "Task":
        """Add rules behind those of its constraints.

        Raises:
            UserError: they contradict others.
        """
        return replace(self, constraints=self.constraints.with_rules(rules))

    def to_json(self) -> dict[str, Any]:
        """Convert the task to JSON-ready fields."""
        return {
            "topology": as_fields(self.topology, ("host_memory_bytes", "devices_per_domain")),
            "batch_size": self.batch_size,
            "memory": as_fields(self.memory, ("pipeline", "dense_optimizer", "host_tables")),
            "constraints": self.constraints.to_json(),
            "tables": [table.to_json() for table in self.tables],
        }

    @classmethod
    def from_json(cls, content: object) -> "Task":
        """Read the task in `content`, as `to_json` gives it.

        Raises:
            UserError: a field is missing or out of range.
        """
        return parse(content, cls, "task")


def check_constraints(task: Task) -> None:
    """Raise UserError if a task's constraints name a table or a device that there isn't, or contradict each other."""
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
            raise UserError(f"constraints: no table's name matches {rule.tables!r}")
        _check_devices(rule.tables, rule.devices or (), num_devices)
    for shard in constraints.pinned:
        _check_devices(shard.table, shard.devices, num_devices)
    for group in (*constraints.together, *constraints.apart, *((shard.table,) for shard in constraints.pinned)):
        for name in group:
            check_name("table in the constraints", name, names)


@dataclass(frozen=True)
class _Checks:
    """Constraints, with the tables that they are of and what they say of each, by name."""

    constraints: Constraints
    tables: dict[str, Table]
    limits: dict[str, TableLimits]
    num_devices: int

    def groups(self) -> None:
        """Check tables that are kept together or apart."""
        seen: set[str] = set()
        for group in self.constraints.together:
            if twice := seen.intersection(group) or {name for name in group if group.count(name) > 1}:
                raise UserError(f"constraints: {min(twice)!r} is kept together twice; join the groups")
            seen.update(group)
            shared = frozenset.intersection(*(self.limits[name].forms for name in group))
            if not any(LAYOUTS[form].joins for form in shared):
                raise UserError(
                    f"constraints: {', '.join(group)} are kept together, and their rules allow no sharding type "
                    "except row_wise for all of them; allow table_wise, or data_parallel"
                )
            if not set.intersection(*(set(self.limits[name].devices) for name in group)):
                raise UserError(f"constraints: no device may hold all of {', '.join(group)}, which are kept together")
        for group in self.constraints.apart:
            for together in self.constraints.together:
                if len(both := set(group).intersection(together)) > 1:
                    raise UserError(f"constraints: {', '.join(sorted(both))} are kept both together and apart")
            if (needed := sum(self.limits[name].min_shards for name in set(group))) > self.num_devices:
                apart = f"{', '.join(group)} are kept apart and need {needed} devices"
                raise UserError(f"constraints: {apart}, there are {self.num_devices}")

    def pinned(self, table: Table, shards: Sequence[PinnedShard]) -> None:
        """Check the pinned shards of a table."""
        name, limits, columns = table.name, self.limits[table.name], sum(shard.dim for shard in shards)
        if columns > table.dim:
            raise UserError(f"constraints: {columns} columns of {name!r} are pinned, it has {table.dim}")
        if not limits.free:
            raise UserError(f"constraints: a shard of {name!r} is pinned, but its rules don't allow column_wise")
        if name in self.constraints.group_of and not self.constraints.pinned_whole(table):
            raise UserError(f"constraints: a shard of {name!r} is pinned, but kept together tables aren't split")
        if len(shards) + (columns < table.dim) > limits.max_shards:
            raise UserError(
                f"constraints: {name!r} may have {limits.max_shards} shard(s), its pinned shards make it more"
            )
        widths = [*(shard.dim for shard in shards), *([table.dim - columns] if columns < table.dim else [])]
        if min(widths) < limits.min_dim:
            raise UserError(
                f"constraints: shards of {name!r} have {limits.min_dim} columns at least, its pinned ones make one of "
                f"{min(widths)}"
            )
        more = (table.dim - columns) // limits.min_dim
        if limits.min_shards > len(shards) + more:
            raise UserError(
                f"constraints: {name!r} needs {limits.min_shards} shards, its pinned ones leave columns for "
                f"{len(shards) + more}"
            )
        for shard in shards:
            if not set(shard.devices).intersection(limits.devices):
                raise UserError(f"constraints: a shard of {name!r} is pinned to devices that its rules forbid")

    def places(self) -> None:
        """Check that every shard of a pinned table, and of tables kept apart, can have a device of its own."""
        for name in self.constraints.pins:
            if not _have_places(self._wanted(self.tables[name]), self.num_devices):
                raise UserError(
                    f"constraints: the shards of {name!r}, each on a device of its own, find no room on the devices "
                    "that they are pinned to"
                )
        for group in self.constraints.apart:
            wanted = [devices for name in set(group) for devices in self._wanted(self.tables[name])]
            if not _have_places(wanted, self.num_devices):
                raise UserError(
                    f"constraints: {', '.join(group)} are kept apart, and find no room on the devices allowed to them"
                )

    def _wanted(self, table: Table) -> list[set[int]]:
        """List the devices that may hold each shard of a table, of as many shards as it has at least."""
        pinned = self.constraints.pins.get(table.name, [])
        group = self.constraints.group_of.get(table.name, (table.name,))
        devices = set.intersection(*(set(self.limits[name].devices) for name in group))
        rest = max(self.limits[table.name].min_shards - len(pinned), sum(shard.dim for shard in pinned) < table.dim)
        return [*(devices.intersection(shard.devices) for shard in pinned), *[devices] * rest]


def _have_places(wanted: Sequence[set[int]], num_devices: int) -> bool:
    """Tell whether each can have one of the devices that it wants to itself."""
    allowed = np.zeros((len(wanted), num_devices), dtype=np.bool_)
    for row, devices in zip(allowed, wanted, strict=True):
        row[list(devices)] = True
    return own_places(allowed) is not None


def _check_devices(name: str, devices: Sequence[int], num_devices: int) -> None:
    for device in devices:
        if not isinstance(device, int) or not 0 <= device < num_devices:
            raise UserError(f"constraints: device {device!r} of {name!r} must be in 0..{num_devices - 1}")
