"""A sharding plan: every table, cut into shards, each in a place."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from neuroshard.cost.cost import Prediction
from neuroshard.cost.loads import LoadSets, Traffic
from neuroshard.layouts import Layout, given_bytes, in_columns, layouts_of, placed_loads
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
from neuroshard.words.placement import TIERS, Placement, Shard, Tier, TierAssignment, by_table
from neuroshard.words.topology import Topology

_FORMAT = "neuroshard-plan-3"
_SHOWN_DEVICES = 8
_SHOWN_SHARDS = 6
_SHOWN_TABLES = 5  # that a warning names
_IN_HOST_MEMORY = {Tier.UVM_CACHING: "behind a cache", Tier.UVM: "in host memory"}
_WITH_CACHE = {Tier.UVM_CACHING: "in host memory behind a device cache", Tier.UVM: "in host memory without a cache"}


@dataclass(frozen=True)
class Plan:
    """Placements (S,) of the shards of one task's tables; valid by construction.

    Every table has one of TorchRec's sharding types (`sharding_types`). A device holds at most one shard of a table, or
    several column shards that together are wider than a shard may be. A plan may break memory limits and the task's
    constraints: such a plan can be costed and reported, and `violations` lists what it breaks. `prediction` is the
    predicted cost from when the plan was found, or None; two plans that differ only in their predictions are equal.

    Raises:
        UserError: the shards do not make up the task's tables in this way.
    """

    task: Task
    placements: tuple[Placement, ...]
    prediction: Prediction | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _check_devices(self.task, self.placements)
        for table, its, layout in zip(self.task.tables, self.by_table, self.layouts, strict=True):
            _check_tiling(table, its, layout, self.task.topology)

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """(T,) the layout of each table."""
        return layouts_of(self.task.tables, self.by_table)

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """(T,) the family of each table's sharding type."""
        return tuple(layout.form for layout in self.layouts)

    @cached_property
    def sharding_types(self) -> tuple[str, ...]:
        """(T,) the sharding type of each table, in TorchRec's words; a table in one shard is table_wise."""
        each = zip(self.layouts, self.by_table, strict=True)
        return tuple(layout.sharding_type(placed, self.task.topology) for layout, placed in each)

    @property
    def in_columns(self) -> bool:
        """True if every table is table-wise or column-wise."""
        return all(layout.free for layout in self.layouts)

    def names_where(self, has: Callable[[Layout], bool]) -> list[str]:
        """List the tables whose layouts have something, by name, in the task's order."""
        return [table.name for table, layout in zip(self.task.tables, self.layouts, strict=True) if has(layout)]

    def check_layouts(self, served: Callable[[Layout], bool], limit: str, remedy: str) -> None:
        """Refuse layouts that are not `served`; `limit` and `remedy` are parts of the error.

        Raises:
            UserError: a table has one of these layouts; the message names the table.
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
        """(D,) the tables on each device, each as wide as its shard there; blocks of rows count as all rows."""
        grouped: list[list[Table]] = [[] for _ in range(self.task.topology.num_devices)]
        for placement in self.placements:
            shard = placement.shard
            grouped[placement.device].append(self.task.tables[shard.table].with_dim(shard.dim))
        return tuple(tuple(tables) for tables in grouped)

    @cached_property
    def by_device(self) -> tuple[Placement, ...]:
        """(S,) the placements, device by device: in the order of `device_loads`."""
        return tuple(sorted(self.placements, key=lambda placement: placement.device))

    @cached_property
    def by_table(self) -> tuple[tuple[Placement, ...], ...]:
        """(T,) the placements of each table, in the plan's order."""
        return by_table(self.placements, len(self.task.tables))

    @cached_property
    def device_loads(self) -> LoadSets:
        """D sets of loads: the work that the placements give each device."""
        num_devices = self.task.topology.num_devices
        devices = np.array([placement.device for placement in self.by_device], dtype=np.int64)
        loads = placed_loads(self.task.tables, self.by_device, self.task.batch_size, num_devices, self.layouts)
        return LoadSets(loads, np.bincount(devices, minlength=num_devices))

    @cached_property
    def traffic(self) -> Traffic:
        """The traffic between devices in a step (B = 1)."""
        topology = self.task.topology
        given = given_bytes(self.device_loads.loads, topology.num_devices)
        return Traffic.of(self.device_loads, given, topology.num_devices, self.task.batch_size, topology.fast_links)

    @cached_property
    def form_bytes(self) -> IntArray:
        """(D, F) bytes of the shards on each device, by `Form`, with what the task counts in addition to weights."""
        sets = self.device_loads
        total = np.zeros((len(sets), len(FORMS)), dtype=np.int64)
        np.add.at(total, (sets.owners, sets.loads.form), self.task.memory.bytes_beside(sets))
        return total

    @cached_property
    def device_bytes(self) -> tuple[int, ...]:
        """(D,) bytes of the shards on each device, with what the task counts in addition to weights."""
        return tuple(self.form_bytes.sum(axis=1).tolist())

    @cached_property
    def host_bytes(self) -> tuple[int, ...]:
        """(H,) bytes of every host's memory that shards of its devices take."""
        used = self.task.memory.host_bytes(self.device_loads.loads)
        total = np.zeros(len(self.task.topology.hosts), dtype=np.int64)
        np.add.at(total, self.device_loads.owners // self.task.topology.host_size, used)
        return tuple(total.tolist())

    @cached_property
    def tier_assignments(self) -> tuple[TierAssignment, ...]:
        """(T,) the memory that holds each table."""
        return tuple(placed[0].tier_assignment for placed in self.by_table)

    @cached_property
    def device_dims(self) -> tuple[int, ...]:
        """(D,) columns that a sample gets from the table-wise and column-wise shards of each device, over all outputs.

        They are rounded if tables are not pooled; `traffic.columns` is exact, and also counts row-wise sequence tables.
        """
        dims = [0.0] * self.task.topology.num_devices
        for placement in self.placements:
            if self.layouts[placement.shard.table].free:
                dims[placement.device] += placement.shard.dim * self.task.tables[placement.shard.table].outputs
        return tuple(round(columns) for columns in dims)

    @property
    def fits(self) -> bool:
        """True if the shards of every device fit in the device's memory, and tables in host memory in the host's."""
        pairs = zip(self.device_bytes, self.task.shard_memory, strict=True)
        return all(used <= free for used, free in pairs) and max(self.host_bytes) <= self.task.topology.host_bytes

    @cached_property
    def violations(self) -> tuple[str, ...]:
        """The memory limits and constraints of the task that the plan breaks, one line each; empty if none."""
        return tuple(self._broken())

    def _broken(self) -> Iterator[str]:
        task, others = self.task, self.names_where(lambda layout: not layout.free)
        rooms = zip(self.device_bytes, task.shard_memory, task.topology.device_memory, strict=True)
        for device, (used, free, there) in enumerate(rooms):
            if used > free:  # of its memory, buffers of its own samples take what isn't free
                sizes = readable_bytes(used + there - free), readable_bytes(there)
                yield f"device {device} needs {sizes[0]}, but has {sizes[1]}{self._of_wide_caches(device)}"
        for host, used in enumerate(self.host_bytes):
            if used > (free := task.topology.host_bytes):
                sizes = readable_bytes(used), readable_bytes(free)
                yield f"host {host} needs {sizes[0]} of host memory for tables, but has {sizes[1]}"
        pairs = zip(task.tables, self.by_table, strict=True)
        held = {table.name: _columns_by_device(its) for table, its in pairs}
        each = zip(task.tables, task.limits, self.layouts, self.tier_assignments, self.by_table, strict=True)
        for table, limits, layout, home, placed in each:
            widths = [one.shard.dim for one in placed]
            if (widest := max(widths)) > MAX_SHARD_DIM:
                yield (
                    f"table {table.name!r} has a shard of {widest} columns, but FBGEMM's kernels take at most "
                    f"{MAX_SHARD_DIM}"
                )
            if not limits.sharding_types & layout.allowed_by(placed, task.topology):
                its, allowed = layout.sharding_type(placed, task.topology), " or ".join(sorted(limits.sharding_types))
                yield f"table {table.name!r} is {its}, but constraints allow only {allowed}"
            yield from _broken_limits(table.name, layout, limits, held[table.name])
            yield from _broken_home(table.name, home, limits)
            if not table.pooled and (why := layout.unserved(widths, task.topology.num_devices)) is not None:
                yield f"table {table.name!r} is a sequence table {why}"
        yield from _broken_groups(task.constraints, held, others)

    @property
    def warnings(self) -> tuple[Message, ...]:
        """A warning of tables that are in host memory although the task lets them be in device memory."""
        triples = zip(self.task.tables, self.task.limits, self.tier_assignments, strict=True)
        fallen = {
            table.name: home.tier
            for table, limits, home in triples
            if home.tier is not Tier.DEVICE and Tier.DEVICE in limits.tiers
        }
        if not fallen:
            return ()
        tiers = list(fallen.values())
        where = ", ".join(f"{tiers.count(tier)} {word}" for tier, word in _WITH_CACHE.items() if tier in tiers)
        return (
            Message(
                "plan-tables-in-host-memory",
                f"{len(fallen)} of {len(self.task.tables)} tables, such as {next(iter(fallen))!r}, are not in device "
                f"memory ({where})",
                where="host memory",
                limit="a step takes longer, because rows of these tables come from host memory",
                remedy="Use more devices or more device memory. If this is meant, set tiers=[uvm_caching] or "
                "tiers=[uvm] in rules for these tables",
            ),
        )

    def _of_wide_caches(self, device: int) -> str:
        """Return as text the bytes that a device needs because of unequal widths in its caches; empty if none."""
        here, memory = self.device_loads.take(np.array([device])), self.task.memory
        more = int((memory.bytes_beside(here) - memory.device_bytes(here.loads)).sum())
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
        """Yield a line for the plan and one for each of the first devices."""
        task, devices = self.task, self.task.topology.num_devices
        what = f"{self.described_shards} on {devices:,} devices, batch {task.batch_size:,}, memory of {task.memory}"
        yield what if self.prediction is None else f"{what}: {self.prediction}"
        for device in range(min(devices, _SHOWN_DEVICES)):
            yield f"device {device}: {self._contents(device)}"
        if devices > _SHOWN_DEVICES:
            yield f"... and {devices - _SHOWN_DEVICES} more devices"

    @property
    def described_shards(self) -> str:
        """The numbers of tables of each sharding type and in host memory, as text."""
        types, tiers = Counter(self.sharding_types), Counter(home.tier for home in self.tier_assignments)
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
        """Describe the shards on one device; the largest ones are named first."""
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
        """Write the plan with its task as JSON."""
        write_json(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Load the plan from a file that `save` wrote, or from a kept plan's file (`keep=` of a planner for TorchRec).

        Raises:
            UserError: the file is missing, malformed, or its shards don't cover its tables exactly once; or it is a
                kept plan without a table that NeuroShard planned.
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
        """Convert the plan to JSON-ready fields."""
        return {
            "format": _FORMAT,
            "placements": [_as_fields(placement) for placement in self.placements],
            "prediction": self.prediction and self.prediction.to_json(),
            "task": self.task.to_json(),
        }

    @classmethod
    def from_json(cls, content: object, where: str = "plan") -> "Plan":
        """Read the plan in `content`, as `to_json` returns it; `where` names the content in errors.

        Raises:
            UserError: the content is malformed, or the shards don't cover the tables exactly once.
        """
        plan_file = parse(of_format(content, _FORMAT, where), _PlanFile, where)
        try:
            return cls(plan_file.task, tuple(placed.read() for placed in plan_file.placements), plan_file.prediction)
        except UserError as error:
            raise error.at(where) from None


def _check_tiling(table: Table, placements: Sequence[Placement], layout: Layout, topology: Topology) -> None:
    """Check that placements make up a table in a layout, in one memory.

    Raises:
        UserError: the placements don't; the error names the table, and the row and column or the device.
    """
    if other := next(
        (one.tier_assignment for one in placements if one.tier_assignment != placements[0].tier_assignment), None
    ):
        first, second = sorted(map(str, (placements[0].tier_assignment, other)))
        raise UserError(
            "plan-table-tiers-differ",
            f"table {table.name!r} has shards in tier {first} and shards in tier {second}",
            limit="all shards of a table must have the same tier and the same cache_load_factor",
            remedy="Set the same tier and the same cache_load_factor for all shards of the table",
        )
    layout.check(table, placements, topology)


def _check_devices(task: Task, placements: Sequence[Placement]) -> None:
    """Check that a task has the tables and the devices of placements, and that no device could merge two shards.

    A device holds at most one shard of a table, or several column shards that are together too wide for one shard.

    Raises:
        UserError: a check fails; the message names the table and the device.
    """
    taken: dict[tuple[int, int], int] = {}  # columns
    crowded: set[tuple[int, int]] = set()
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
    return UserError(
        "plan-shards-on-one-device",
        f"two shards of table {table.name!r} are on device {device}",
        limit="shards of one table on the same device must be one shard, unless they are column shards with more than "
        f"{MAX_SHARD_DIM} columns together",
        remedy="Merge the two shards into one shard, or move one of the two to another device",
    )


def _columns_by_device(placements: Iterable[Placement]) -> dict[int, int]:
    """Count the columns of a table on each device that holds any of it."""
    held: dict[int, int] = {}
    for placed in placements:
        held[placed.device] = held.get(placed.device, 0) + placed.shard.dim
    return held


def assemble(task: Task, placed: Iterable[tuple[int, int, int]]) -> Plan:
    """Assemble the plan that puts `dim` columns of a table on a device, for each (table index, dim, device).

    Columns of one table that meet on one device become one shard, with all rows; columns are handed out in order of
    device.
    """
    return Plan(task, tuple(in_columns(task, placed)))


def _as_fields(placement: Placement) -> dict[str, Any]:
    memory = placement.tier_assignment
    cache = {} if memory.cache_load_factor is None else {"cache_load_factor": memory.cache_load_factor}
    return vars(placement.shard) | {"device": placement.device, "tier": memory.tier.value} | cache


@dataclass(frozen=True)
class _Placed(Shard):
    """A placement as a file has it."""

    device: Device
    tier: Name
    cache_load_factor: CacheShare | None = None

    def read(self) -> Placement:
        """Make the placement that the fields describe."""
        shard = Shard(self.table, self.column, self.dim, self.row, self.rows)
        return Placement(shard, self.device, TierAssignment(Tier(self.tier), self.cache_load_factor))


@dataclass(frozen=True)
class _PlanFile:
    """The content of a plan file, without its format."""

    placements: tuple[_Placed, ...]
    prediction: Prediction | None
    task: Task


def _broken_limits(name: str, layout: Layout, limits: TableLimits, held: Mapping[int, int]) -> Iterator[str]:
    """Yield a line for each limit that a table breaks; `held`: columns by device."""
    if wrong := set(held).difference(limits.devices):
        yield f"table {name!r} is on device {min(wrong)}, but constraints forbid that device"
    if not limits.may_count(layout, len(held)):
        least, most = limits.counts_of(layout)
        allowed = number_of(least, "shard") if least == most else f"{least} to {most} shards"
        yield f"table {name!r} is on {number_of(len(held), 'device')}{layout.counted}, but constraints allow {allowed}"
    if min(held.values()) < limits.min_dim:
        yield (
            f"table {name!r} has a shard of {min(held.values())} columns, but constraints need {limits.min_dim} or more"
        )


def _broken_home(name: str, home: TierAssignment, limits: TableLimits) -> Iterator[str]:
    """Yield a line if a table's tier assignment breaks its limits: the tier, or the cache load factor."""
    if home.tier not in limits.tiers:
        allowed = " or ".join(sorted(limits.tiers))
        yield f"table {name!r} is in tier {home.tier.value}, but constraints allow only {allowed}"
    elif not limits.may_lie_in(home):
        yield (
            f"table {name!r} has cache_load_factor {home.cache_load_factor}, but constraints need "
            f"{limits.cache_load_factor}"
        )


def _broken_groups(
    constraints: Constraints, held: Mapping[str, Mapping[int, int]], others: Collection[str]
) -> Iterator[str]:
    """Yield a line for each broken pin and group; `others` are tables whose shards aren't free, so not pinned."""
    for name, pinned in constraints.pins.items():
        if name in others or not _pins_met(pinned, held[name]):
            yield f"table {name!r} does not have the pinned shards of constraints on the devices that these name"
    for group in constraints.together:
        if len({frozenset(held[name]) for name in group}) > 1:
            yield f"tables {', '.join(group)} are on different devices, but constraints keep them together"
    for group in constraints.apart:
        devices = [device for name in dict.fromkeys(group) for device in held[name]]
        if crowded := [device for device in devices if devices.count(device) > 1]:
            both = [name for name in dict.fromkeys(group) if crowded[0] in held[name]]
            yield f"tables {', '.join(both)} are both on device {crowded[0]}, but constraints keep them apart"


def _pins_met(pinned: Sequence[PinnedShard], held: Mapping[int, int]) -> bool:
    """Return True if every pinned shard has a device of its own with as many columns; `held`: columns by device."""
    fits = [[device in shard.devices and dim == shard.dim for device, dim in held.items()] for shard in pinned]
    return own_places(np.array(fits)) is not None


def _name(placed: Placement, table: Table, layout: Layout) -> str:
    """Name a shard: its columns as "name[0:8]", or its rows and columns as "name[0:100, 0:8]", as in an array.

    Notes follow the name: "name (data-parallel)", "name[0:8] (3 features, sequence)" for a sequence table that 3
    features read, "name (uvm)" for a table in host memory, and "name (uvm_caching 0.2)" for a table in host memory with
    a cache for that share of its rows.
    """
    said = {
        layout.note: bool(layout.note), f"{table.features} features": table.features > 1, "sequence": not table.pooled,
        str(placed.tier_assignment): placed.tier_assignment.tier is not Tier.DEVICE,
    }  # fmt: skip
    notes = ", ".join(note for note, holds in said.items() if holds)
    name = table.name + _inside(placed.shard, table, layout)
    return f"{name} ({notes})" if notes else name


def _inside(shard: Shard, table: Table, layout: Layout) -> str:
    """Return the part of the table that is in the shard, in brackets; empty if that is the whole table."""
    rows = f"{shard.row}:{shard.row_end}" if layout.blocks else ""
    columns = f"{shard.column}:{shard.column_end}" if shard.dim < table.dim else ""
    inside = f"{rows}, {columns or ':'}" if rows else columns
    return f"[{inside}]" if inside else ""


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def copies_remarks(plan: Plan) -> tuple[Message, ...]:
    """Return the warning that TorchRec's fused optimizer does not update data-parallel tables; empty without any."""
    copied = plan.names_where(lambda layout: layout.dense)
    if not copied:
        return ()
    more = f" and {len(copied) - _SHOWN_TABLES} more" if len(copied) > _SHOWN_TABLES else ""
    return (
        Message(
            "plan-data-parallel-tables",
            f"{number_of(len(copied), 'table')} {'is' if len(copied) == 1 else 'are'} data_parallel in TorchRec "
            f"({', '.join(copied[:_SHOWN_TABLES])}{more})",
            limit="the fused optimizer does not update data_parallel tables",
            remedy="Train these tables with neuroshard.torchrec.data_parallel_optimizer(model), or set "
            "searcher.sharding_types=[column_wise,row_wise] and search again",
        ),
    )
