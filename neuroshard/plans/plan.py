"""Sharding plans: the shards of every table, each placed on a device, with checks, text and files."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from neuroshard.cost.cost import Prediction
from neuroshard.cost.loads import LoadSets, Traffic
from neuroshard.layouts import Layout, layouts_of, place_column_wise, placed_loads, sent_bytes_of
from neuroshard.layouts.layout import table_of
from neuroshard.layouts.sharding_types import COLUMN_WISE, SHARDING_TYPES
from neuroshard.plans.kept_files import is_kept, kept_content
from neuroshard.plumbing.arrays import IntArray, own_places
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.schema import (
    MAX_SHARD_DIM,
    CacheShare,
    Device,
    Name,
    of_format,
    parse,
    readable_bytes,
)
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableLimits
from neuroshard.tasks.task import Task
from neuroshard.words.form import FORMS, Form
from neuroshard.words.placement import ON_DEVICE, TIERS, Placement, Shard, Tier, TierAssignment, by_table
from neuroshard.words.topology import Topology

_FORMAT = "neuroshard-plan-3"
_SHOWN_DEVICES = 8  # maximum number of devices in a printed plan
_SHOWN_SHARDS = 6  # maximum number of shards of a device in a printed plan
_SHOWN_TABLES = 5  # maximum number of tables that a warning names
_IN_HOST_MEMORY = {Tier.UVM_CACHING: "behind a cache", Tier.UVM: "in host memory"}
_WITH_CACHE = {Tier.UVM_CACHING: "in host memory behind a device cache", Tier.UVM: "in host memory without a cache"}


@dataclass(frozen=True)
class Plan:
    """A sharding plan: the placements, (S,), of the shards of all tables of a task.

    Every table has one of TorchRec's sharding types (`sharding_types`). A device has at most one shard of a table, or
    several column shards that together are wider than a shard may be. A plan may break memory limits and constraints of
    the task. Such a plan can be costed and reported; `violations` lists the broken limits. `prediction` is the cost
    that was predicted when the plan was found, or None; two plans that differ only in their predictions are equal.

    Raises:
        UserError: the placements do not cover each table exactly once (or whole on every device, if data-parallel), use
            devices that the task does not have, or do not fit any sharding type.
    """

    task: Task
    placements: tuple[Placement, ...]
    prediction: Prediction | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _check_devices(self.task, self.placements)
        for table, placements, layout in zip(self.task.tables, self.by_table, self.layouts, strict=True):
            _check_tiling(table, placements, layout, self.task.topology)

    def with_prediction(self, prediction: Prediction | None) -> "Plan":
        """Return the plan with another prediction; the shards and everything computed from them stay the same."""
        predicted = copy(self)
        object.__setattr__(predicted, "prediction", prediction)
        return predicted

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """(T,) layout of each table; a layout is an object that implements a family of sharding types."""
        return layouts_of(self.task.tables, self.by_table)

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """(T,) family of each table's sharding type: column-wise (includes table-wise), row-wise or data-parallel."""
        return tuple(layout.form for layout in self.layouts)

    @cached_property
    def sharding_types(self) -> tuple[str, ...]:
        """(T,) sharding type of each table, by TorchRec's names; a table in one shard is table_wise."""
        each = zip(self.layouts, self.by_table, strict=True)
        return tuple(layout.sharding_type(placed, self.task.topology) for layout, placed in each)

    @property
    def all_column_wise(self) -> bool:
        """True if every table is table-wise or column-wise."""
        return all(layout.free for layout in self.layouts)

    def names_where(self, has: Callable[[Layout], bool]) -> list[str]:
        """Return the names of the tables for which `has(layout)` is True, in the order of the task. The layout of a
        table is an object that implements the table's family of sharding types.
        """
        return [table.name for table, layout in zip(self.task.tables, self.layouts, strict=True) if has(layout)]

    def check_layouts(self, served: Callable[[Layout], bool], limit: str, remedy: str) -> None:
        """Raise UserError if any table of the plan has a layout for which `served(layout)` is False.
        A layout is an object that implements a family of sharding types: column-wise, row-wise or data-parallel. The
        texts `limit` and `remedy` are parts of the error message.

        Args:
            served: function that returns True for supported layouts.
            limit, remedy: parts of the error, as in `Message`.

        Raises:
            UserError: a table has a layout that is not supported; the message names the first of these tables.
        """
        refused = {layout for layout in set(self.layouts) if not served(layout)}
        for table, layout, name in zip(self.task.tables, self.layouts, self.sharding_types, strict=True):
            if layout in refused:
                raise UserError(
                    "plan-sharding-type-unsupported",
                    f"table {table.name!r} is {name}",
                    where="plan",
                    limit=limit,
                    remedy=remedy,
                )

    @cached_property
    def device_tables(self) -> tuple[tuple[Table, ...], ...]:
        """(D,) tuples of tables, one tuple for each device. Each shard on the device is represented by a table with as
        many columns as the shard, and all rows of the sharded table.
        """
        grouped: list[list[Table]] = [[] for _ in range(self.task.topology.num_devices)]
        for placement in self.placements:
            shard = placement.shard
            grouped[placement.device].append(self.task.tables[shard.table].with_dim(shard.dim))
        return tuple(tuple(tables) for tables in grouped)

    @cached_property
    def by_device(self) -> tuple[Placement, ...]:
        """(S,) placements of all shards, sorted by device.
        The property `device_loads` has the kernel work of the shards in the same order.
        """
        return tuple(sorted(self.placements, key=lambda placement: placement.device))

    @cached_property
    def by_table(self) -> tuple[tuple[Placement, ...], ...]:
        """(T,) tuples of placements, one tuple for each table. Each tuple has the table's placements, in the order of
        the plan.
        """
        return by_table(self.placements, len(self.task.tables))

    @cached_property
    def device_loads(self) -> LoadSets:
        """The work of all shards for the embedding kernels, grouped by device.
        The returned `LoadSets` has D sets, one for each device. A set has one load (the work of a shard) for each shard
        on the device. There are S loads in total, in the order of `by_device`.
        """
        num_devices = self.task.topology.num_devices
        devices = np.array([placement.device for placement in self.by_device], dtype=np.int64)
        loads = placed_loads(self.task.tables, self.by_device, self.task.batch_size, num_devices, self.layouts)
        return LoadSets(loads, np.bincount(devices, minlength=num_devices))

    @cached_property
    def traffic(self) -> Traffic:
        """The bytes that each device exchanges in each collective of a step.
        The arrays in the returned `Traffic` have a first axis of size B = 1, because they describe a single plan.
        """
        topology = self.task.topology
        given = sent_bytes_of(self.device_loads.loads, topology.num_devices)
        return Traffic.of(self.device_loads, given, topology.num_devices, self.task.batch_size, topology.fast_links)

    @cached_property
    def form_bytes(self) -> IntArray:
        """(D, F) bytes of device memory that the shards of each family of sharding types take on each device.
        The F families are column-wise, row-wise and data-parallel. The bytes include optimizer state and buffers, as
        set in `Task.memory`.
        """
        sets = self.device_loads
        total = np.zeros((len(sets), len(FORMS)), dtype=np.int64)
        np.add.at(total, (sets.owners, sets.loads.form), self.task.memory.bytes_with_caches(sets))
        return total

    @cached_property
    def device_bytes(self) -> tuple[int, ...]:
        """(D,) bytes of device memory that the shards on each device take.
        The bytes include optimizer state and buffers, as set in `Task.memory`.
        """
        return tuple(self.form_bytes.sum(axis=1).tolist())

    @property
    def fullest_device(self) -> int:
        """The device with the largest share of its memory in use; the first device if several are equally full."""
        topology, pairs = self.task.topology, zip(self.device_bytes, self.task.shard_memory, strict=True)
        free = [(memory - used) / total for (used, memory), total in zip(pairs, topology.device_memory, strict=True)]
        return int(np.argmin(free))

    @cached_property
    def host_bytes(self) -> tuple[int, ...]:
        """(H,) bytes of host memory that the plan uses on each of H hosts. A shard in host memory, with or without a
        cache, counts for the host of the shard's device.
        """
        used = self.task.memory.host_bytes(self.device_loads.loads)
        total = np.zeros(len(self.task.topology.hosts), dtype=np.int64)
        np.add.at(total, self.device_loads.owners // self.task.topology.host_size, used)
        return tuple(total.tolist())

    @cached_property
    def tier_assignments(self) -> tuple[TierAssignment, ...]:
        """(T,) tier assignment of each table: the memory tier, and the cache load factor of tables with a cache."""
        return tuple(placed[0].tier_assignment for placed in self.by_table)

    @cached_property
    def device_dims(self) -> tuple[int, ...]:
        """(D,) output columns per sample of the table-wise and column-wise shards on each device.

        The mean of sequence tables is rounded. `traffic.columns` is exact, and includes row-wise sequence tables.
        """
        dims = [0.0] * self.task.topology.num_devices
        for placement in self.placements:
            if self.layouts[placement.shard.table].free:
                dims[placement.device] += placement.shard.dim * self.task.tables[placement.shard.table].outputs
        return tuple(round(columns) for columns in dims)

    @property
    def fits(self) -> bool:
        """True if all shards fit in device memory, and the tables in host memory fit in the memory of their hosts."""
        pairs = zip(self.device_bytes, self.task.shard_memory, strict=True)
        return all(used <= free for used, free in pairs) and max(self.host_bytes) <= self.task.topology.host_bytes

    @cached_property
    def violations(self) -> tuple[str, ...]:
        """The memory limits and constraints of the task that the plan breaks, one line each; empty if none."""
        return tuple(self._broken())

    def _broken(self) -> Iterator[str]:
        """Yield a line for each memory limit and constraint that the plan breaks."""
        task, others = self.task, self.names_where(lambda layout: not layout.free)
        for device, (used, free) in enumerate(zip(self.device_bytes, task.shard_memory, strict=True)):
            if used > free:
                needs, has = self._memory_in_use(device)
                yield f"device {device} needs {needs}, but has {has}{self._of_wide_caches(device)}"
        for host, used in enumerate(self.host_bytes):
            if used > (free := task.topology.host_bytes):
                sizes = readable_bytes(used), readable_bytes(free)
                yield f"host {host} needs {sizes[0]} of host memory for tables, but has {sizes[1]}"
        pairs = zip(task.tables, self.by_table, strict=True)
        columns = {table.name: _columns_by_device(placements) for table, placements in pairs}
        each = zip(task.tables, task.limits, self.layouts, self.tier_assignments, self.by_table, strict=True)
        for table, limits, layout, assignment, placed in each:
            widths = [placement.shard.dim for placement in placed]
            if (widest := max(widths)) > MAX_SHARD_DIM:
                yield (
                    f"table {table.name!r} has a shard of {widest} columns, but FBGEMM's kernels take at most "
                    f"{MAX_SHARD_DIM}"
                )
            if not limits.sharding_types & layout.allowed_by(placed, task.topology):
                actual = layout.sharding_type(placed, task.topology)
                allowed = " or ".join(sorted(limits.sharding_types))
                yield f"table {table.name!r} is {actual}, but constraints allow only {allowed}"
            yield from _broken_limits(table.name, layout, limits, columns[table.name])
            yield from _broken_tier(table.name, assignment, limits)
            if not table.pooled and (why := layout.unserved(widths, task.topology.num_devices)) is not None:
                yield f"table {table.name!r} is a sequence table {why}"
        yield from _broken_groups(task.constraints, columns, others)

    @property
    def warnings(self) -> tuple[Message, ...]:
        """A warning if some tables are in host memory although the task also allows these tables in device memory.
        Empty if there are no tables of this kind. The warning says whether all these tables would fit in the memory of
        the devices on which the plan places them.
        """
        triples = zip(self.task.tables, self.task.limits, self.tier_assignments, strict=True)
        fallen = {
            table.name: assignment.tier
            for table, limits, assignment in triples
            if assignment.tier is not Tier.DEVICE and Tier.DEVICE in limits.tiers
        }
        if not fallen:
            return ()
        tiers = list(fallen.values())
        where = ", ".join(f"{tiers.count(tier)} {word}" for tier, word in _WITH_CACHE.items() if tier in tiers)
        what = (
            f"{len(fallen)} of {len(self.task.tables)} tables, such as {next(iter(fallen))!r}, are not in device "
            f"memory ({where})"
        )
        if self._on_device(fallen).fits:
            return (
                Message(
                    "plan-tables-host-memory-chosen",
                    f"{what}, although they would fit there",
                    where="host memory",
                    limit="tables in the same tier of a device share kernel calls, so this can be predicted to cost "
                    "less",
                    remedy="To keep these tables in device memory, set tiers=[device] in rules for them, or "
                    "compute_kernels=['fused'] in TorchRec's constraints",
                ),
            )
        return (
            Message(
                "plan-tables-in-host-memory",
                what,
                where="host memory",
                limit="a step takes longer, because rows of these tables come from host memory",
                remedy="Use more devices or more device memory. If this is meant, set tiers=[uvm_caching] or "
                "tiers=[uvm] in rules for these tables",
            ),
        )

    def _on_device(self, names: Collection[str]) -> "Plan":
        """Return a copy of the plan in which the tables called `names` are in device memory, on the same devices."""
        tables = {number for number, table in enumerate(self.task.tables) if table.name in names}
        moved = (
            replace(placed, tier_assignment=ON_DEVICE) if placed.shard.table in tables else placed
            for placed in self.placements
        )
        return Plan(self.task, tuple(moved))

    def _memory_in_use(self, device: int) -> tuple[str, str]:
        """Return the bytes in use on a device and the bytes of the device's memory, as text.

        The buffers for the device's own samples count as in use.
        """
        used = self.device_bytes[device] + self._buffer_bytes(device)
        return readable_bytes(used), readable_bytes(self.task.topology.device_memory[device])

    def _buffer_bytes(self, device: int) -> int:
        """Return the bytes of the buffers for a device's own samples; 0 if these buffers do not count."""
        return self.task.topology.device_memory[device] - self.task.shard_memory[device]

    def _of_wide_caches(self, device: int) -> str:
        """Return a text about the additional bytes that a device needs because narrow and wide tables share a cache.

        The text is empty if there are no such bytes.
        """
        here, memory = self.device_loads.take(np.array([device])), self.task.memory
        more = int((memory.bytes_with_caches(here) - memory.device_bytes(here.loads)).sum())
        if not more:
            return ""
        widest = int(memory.cache_widths(here)[here.loads.tier == TIERS.index(Tier.UVM_CACHING)].max())
        return (
            f" ({readable_bytes(more)} of this because narrow and wide tables share a cache with rows of {widest} "
            "columns: put cached tables of unequal widths on different devices, or cache fewer rows)"
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """Yield lines of text: one for the whole plan, one for the device with the largest share of its memory in use,
        and one for each device. If there are many devices, only the first devices have a line.
        """
        task, devices = self.task, self.task.topology.num_devices
        summary = f"{self.described_shards} on {devices:,} devices, batch {task.batch_size:,}, memory of {task.memory}"
        yield summary if self.prediction is None else f"{summary}: {self.prediction}"
        yield f"fullest device: {self.described_fullest}"
        for device in range(min(devices, _SHOWN_DEVICES)):
            yield f"device {device}: {self._contents(device)}"
        if devices > _SHOWN_DEVICES:
            yield f"... and {devices - _SHOWN_DEVICES} more devices"

    @property
    def described_fullest(self) -> str:
        """The device with the largest share of its memory in use, the bytes in use and the bytes of its memory, as
        text. The text also has the bytes of the buffers for the device's own samples, if these buffers count.
        """
        device = self.fullest_device
        used, memory = self._memory_in_use(device)
        buffers = self._buffer_bytes(device)
        of_samples = f", {readable_bytes(buffers)} of this for buffers of its own samples" if buffers else ""
        return f"{device}, with {used} of {memory} in use{of_samples}"

    @property
    def described_shards(self) -> str:
        """The number of tables of each sharding type, and the number of tables in each tier of host memory, as text."""
        types, tiers = Counter(self.sharding_types), Counter(assignment.tier for assignment in self.tier_assignments)
        shards = Counter(self.sharding_types[placed.shard.table] for placed in self.placements)
        described = [
            f"{types[name]:,} {name.replace('_', '-')}"
            + (f" in {shards[name]:,} shards" if name == COLUMN_WISE else "")
            for name in SHARDING_TYPES
            if types[name]
        ]
        described += [f"{tiers[tier]:,} {word}" for tier, word in _IN_HOST_MEMORY.items() if tiers[tier]]
        return f"{len(self.layouts):,} table{_s(len(self.layouts))}: {', '.join(described)}"

    def _contents(self, device: int) -> str:
        """Return a text about the shards on one device, which names the largest shards first."""
        here = [placed for placed in self.placements if placed.device == device]
        pairs = [(placed, self.task.tables[placed.shard.table]) for placed in here]
        pairs.sort(key=lambda pair: -pair[0].shard.dim * pair[0].shard.rows * pair[1].bytes_per_element)
        names = [_name(placed, table, self.layouts[placed.shard.table]) for placed, table in pairs]
        more = f", ... {len(names) - _SHOWN_SHARDS} more" if len(names) > _SHOWN_SHARDS else ""
        count = f"{len(names)} shard{_s(len(names))}"
        listed = ", ".join(names[:_SHOWN_SHARDS]) or "nothing"
        size = readable_bytes(self.device_bytes[device])
        return f"{count}, {self.device_dims[device]:,} columns, {size}: {listed}{more}"

    def save(self, path: str | Path) -> None:
        """Write the plan and its task to a JSON file."""
        write_json(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Return the plan in a file. The file was written by `save`, or by a planner for TorchRec with the option
        `keep=`.

        Raises:
            UserError: the file is missing or malformed, the shards do not cover the tables exactly once, or the file
                was written by a planner and has no table that NeuroShard planned.
        """
        if Path(path).is_dir():
            plans = sorted(Path(path).glob("plans/*.json"))
            raise UserError(
                "plan-file-directory",
                f"the path {str(path)!r} is a directory",
                limit="the path of a plan file is expected",
                remedy=f"Pass the path of a plan file{f', such as {plans[0]}' if plans else ''}",
            )
        content = read_json(Path(path), "plan")
        if is_kept(content):
            content = kept_content(content, f"kept plan {path}").get("plan")
            if content is None:
                raise UserError(
                    "kept-plan-without-tables",
                    f"kept plan {path} has no table that NeuroShard planned",
                    limit="TorchRec planned all tables of this kept plan",
                    remedy="Pass another plan file",
                )
        return cls.from_json(content, str(path))

    def to_json(self) -> dict[str, Any]:
        """Return the plan and its task as JSON-ready fields."""
        return {
            "format": _FORMAT,
            "placements": [_as_fields(placement) for placement in self.placements],
            "prediction": self.prediction and self.prediction.to_json(),
            "task": self.task.to_json(),
        }

    @classmethod
    def from_json(cls, content: object, where: str = "plan") -> "Plan":
        """Return the plan that is stored in `content`, in the form that `to_json` returns.
        `where` is the name of the content in error messages.

        Raises:
            UserError: the content is malformed, or the shards do not cover the tables exactly once.
        """
        plan_file = parse(of_format(content, _FORMAT, where), _PlanFile, where)
        try:
            return cls(plan_file.task, tuple(placed.read() for placed in plan_file.placements), plan_file.prediction)
        except UserError as error:
            raise error.at(where) from None


def _check_tiling(table: Table, placements: Sequence[Placement], layout: Layout, topology: Topology) -> None:
    """Raise UserError unless the shards of a table cover every element of the table exactly once.
    In a data-parallel table, however, each device must have the whole table. Also raise UserError if shards of the
    table have different tier assignments (memory tier and cache load factor).

    Raises:
        UserError: the error names the table, and the row and column or the device.
    """
    assignments = (placement.tier_assignment for placement in placements)
    if other := next((assignment for assignment in assignments if assignment != placements[0].tier_assignment), None):
        first, second = sorted(map(str, (placements[0].tier_assignment, other)))
        raise UserError(
            "plan-table-tiers-differ",
            f"table {table.name!r} has shards in tier {first} and shards in tier {second}",
            limit="all shards of a table must have the same tier and the same cache_load_factor",
            remedy="Set the same tier and the same cache_load_factor for all shards of the table",
        )
    layout.check(table, placements, topology)


def _check_devices(task: Task, placements: Sequence[Placement]) -> None:
    """Raise UserError if a placement names a table or a device that the task does not have.
    Also raise UserError if a device has several shards of one table, except column shards with more than 2048 columns
    in total, which are too many for one shard.

    Raises:
        UserError: a check fails; the message names the table and the device.
    """
    pairs = {(placement.shard.table, placement.device) for placement in placements}
    tables, devices = len(task.tables), task.topology.num_devices
    if len(pairs) == len(placements) and all(index < tables and device < devices for index, device in pairs):
        return
    taken: dict[tuple[int, int], int] = {}  # columns by (table, device)
    crowded: set[tuple[int, int]] = set()  # (table, device) with several shards
    for placement in placements:
        index, device = placement.shard.table, placement.device
        table, last = table_of(task, index), task.topology.num_devices - 1
        if device > last:
            raise UserError(
                "plan-device-outside",
                f"the plan places table {table.name!r} on device {device}",
                limit=f"the task has devices 0 to {last}",
                remedy="Correct the device, or use a task with more devices",
            )
        whole_columns = placement.shard.rows >= table.rows and placement.shard.dim < table.dim
        if (index, device) in taken:
            crowded.add((index, device))
        if (index, device) in crowded and not whole_columns:
            raise _crowded(table, device)
        taken[index, device] = taken.get((index, device), 0) + placement.shard.dim
    for index, device in sorted(crowded):
        if taken[index, device] <= MAX_SHARD_DIM:
            raise _crowded(task.tables[index], device)


def _crowded(table: Table, device: int) -> UserError:
    """Return the error for two shards of a table on one device."""
    return UserError(
        "plan-shards-on-one-device",
        f"two shards of table {table.name!r} are on device {device}",
        limit="shards of one table on the same device must be one shard, unless they are column shards with more than "
        f"{MAX_SHARD_DIM} columns together",
        remedy="Merge the two shards into one shard, or move one of the two to another device",
    )


def _columns_by_device(placements: Iterable[Placement]) -> dict[int, int]:
    """Return the number of columns of a table on each device that has a shard of the table, by device."""
    columns: dict[int, int] = {}
    for placed in placements:
        columns[placed.device] = columns.get(placed.device, 0) + placed.shard.dim
    return columns


def assemble(task: Task, placed: Iterable[tuple[int, int, int]]) -> Plan:
    """Return a column-wise plan made from triples of (table index, number of columns, device).
    Each triple in `placed` puts this number of columns of a table on a device.

    Columns of one table on one device become one shard with all rows, or several shards if they are wider than a shard
    may be. The devices get the columns of a table in ascending order.

    Raises:
        UserError: the columns do not cover each table of the task exactly once, or a table or device does not exist.
    """
    return Plan(task, tuple(place_column_wise(task, placed)))


def _as_fields(placement: Placement) -> dict[str, Any]:
    """Return a placement as JSON-ready fields."""
    assignment = placement.tier_assignment
    cache = {} if assignment.cache_load_factor is None else {"cache_load_factor": assignment.cache_load_factor}
    return vars(placement.shard) | {"device": placement.device, "tier": assignment.tier.value} | cache


@dataclass(frozen=True)
class _Placed(Shard):
    """The fields of a placement in a plan file."""

    device: Device
    tier: Name
    cache_load_factor: CacheShare | None = None

    def read(self) -> Placement:
        """Return the `Placement` with the fields of this object."""
        shard = Shard(self.table, self.column, self.dim, self.row, self.rows)
        return Placement(shard, self.device, TierAssignment(Tier(self.tier), self.cache_load_factor))


@dataclass(frozen=True)
class _PlanFile:
    """The content of a plan file without the field "format"."""

    placements: tuple[_Placed, ...]
    prediction: Prediction | None
    task: Task


def _broken_limits(name: str, layout: Layout, limits: TableLimits, columns: Mapping[int, int]) -> Iterator[str]:
    """Yield a line of text for each constraint on devices, number of shards or shard width that a table breaks.
    `columns` has the number of columns of the table on each device.
    """
    if wrong := set(columns).difference(limits.devices):
        yield f"table {name!r} is on device {min(wrong)}, but constraints forbid that device"
    if not limits.may_count(layout, len(columns)):
        least, most = limits.counts_of(layout)
        allowed, count = number_of(least, "shard") if least == most else f"{least} to {most} shards", len(columns)
        yield f"table {name!r} is on {number_of(count, 'device')}{layout.counted}, but constraints allow {allowed}"
    if (narrowest := min(columns.values())) < limits.min_dim:
        yield f"table {name!r} has a shard of {narrowest} columns, but constraints need {limits.min_dim} or more"


def _broken_tier(name: str, assignment: TierAssignment, limits: TableLimits) -> Iterator[str]:
    """Yield a line of text if the constraints on a table forbid the table's memory tier or cache load factor."""
    if assignment.tier not in limits.tiers:
        allowed = " or ".join(sorted(limits.tiers))
        yield f"table {name!r} is in tier {assignment.tier.value}, but constraints allow only {allowed}"
    elif not limits.allows_tier(assignment):
        yield (
            f"table {name!r} has cache_load_factor {assignment.cache_load_factor}, but constraints need "
            f"{limits.cache_load_factor}"
        )


def _broken_groups(
    constraints: Constraints, columns: Mapping[str, Mapping[int, int]], others: Collection[str]
) -> Iterator[str]:
    """Yield a line of text for each table with a broken constraint on pinned shards, and for each broken group of
    tables. A pinned shard must be on one of the devices that the constraint allows. The tables of a group must either
    be together on the same devices, or be apart, without any device in common. No other constraints are checked.

    Args:
        constraints: the constraints of the task.
        columns: columns of each table by device, by the table's name.
        others: names of tables that are not column-wise, which cannot have pinned shards.
    """
    for name, pinned in constraints.pins.items():
        if name in others or not _pins_met(pinned, columns[name]):
            yield f"table {name!r} does not have the pinned shards of constraints on the devices that these name"
    for group in constraints.together:
        if len({frozenset(columns[name]) for name in group}) > 1:
            yield f"tables {', '.join(group)} are on different devices, but constraints keep them together"
    for group in constraints.apart:
        devices = [device for name in dict.fromkeys(group) for device in columns[name]]
        if crowded := [device for device in devices if devices.count(device) > 1]:
            both = [name for name in dict.fromkeys(group) if crowded[0] in columns[name]]
            yield f"tables {', '.join(both)} are both on device {crowded[0]}, but constraints keep them apart"


def _pins_met(pinned: Sequence[PinnedShard], columns: Mapping[int, int]) -> bool:
    """Return True if a plan has all pinned shards of a table on allowed devices.
    Each pinned shard needs a different device. The constraint of the shard must allow this device, and the plan must
    place exactly as many columns of the table on this device as the pinned shard has.

    `columns` has the columns of the table by device.
    """
    fits = [[device in shard.devices and dim == shard.dim for device, dim in columns.items()] for shard in pinned]
    return own_places(np.array(fits)) is not None


def _name(placed: Placement, table: Table, layout: Layout) -> str:
    """Return the name of a shard in a printed plan, such as "name[0:8]" or "name[0:100, 0:8]", as slices of an array.

    The slices are the columns, or the rows and columns, of the shard. Notes follow the name: "name (data-parallel)",
    "name[0:8] (3 features, sequence)" for a sequence table that 3 features read, "name (uvm)" for a table in host
    memory, and "name (uvm_caching 0.2)" for a table in host memory with a cache for 20% of its rows.
    """
    notes_if = {
        layout.note: bool(layout.note), f"{table.features} features": table.features > 1, "sequence": not table.pooled,
        str(placed.tier_assignment): placed.tier_assignment.tier is not Tier.DEVICE,
    }  # fmt: skip
    notes = ", ".join(note for note, applies in notes_if.items() if applies)
    name = table.name + _inside(placed.shard, table, layout)
    return f"{name} ({notes})" if notes else name


def _inside(shard: Shard, table: Table, layout: Layout) -> str:
    """Return the rows and columns of a shard as slices in brackets.
    For example, "[0:8]" is a column shard, and "[0:100, :]" is a block of rows with all columns. The text is empty for
    a whole table.
    """
    rows = f"{shard.row}:{shard.row_end}" if layout.blocks else ""
    columns = f"{shard.column}:{shard.column_end}" if shard.dim < table.dim else ""
    inside = f"{rows}, {columns or ':'}" if rows else columns
    return f"[{inside}]" if inside else ""


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def data_parallel_remarks(plan: Plan) -> tuple[Message, ...]:
    """Return a warning if a plan has data-parallel tables, because the fused optimizer does not update these tables."""
    copied = plan.names_where(lambda layout: layout.dense)
    if not copied:
        return ()
    more = f" and {len(copied) - _SHOWN_TABLES} more" if len(copied) > _SHOWN_TABLES else ""
    each = zip(plan.layouts, plan.task.limits, strict=True)
    forced = any(layout.dense and limits.sharding_types == {Form.DATA_PARALLEL} for layout, limits in each)
    otherwise = "" if forced else ", or set searcher.sharding_types=[column_wise,row_wise] and search again"
    return (
        Message(
            "plan-data-parallel-tables",
            f"{number_of(len(copied), 'table')} {'is' if len(copied) == 1 else 'are'} data_parallel in TorchRec "
            f"({', '.join(copied[:_SHOWN_TABLES])}{more})",
            limit="the fused optimizer does not update data_parallel tables",
            remedy=f"Train these tables with neuroshard.torchrec.data_parallel_optimizer(model){otherwise}",
        ),
    )
