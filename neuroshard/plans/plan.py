"""A sharding plan: every table, cut into shards, each in a place."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from neuroshard.cost.cost import Prediction
from neuroshard.cost.loads import Loads, LoadSets, Traffic
from neuroshard.layouts import Layout, given_bytes, in_columns, layouts_of, placed_loads
from neuroshard.layouts.layout import table_of
from neuroshard.plans.describe import plan_lines
from neuroshard.plans.violations import violations
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.schema import CacheShare, Count, Device, Dim, FirstRow, Name, Offset, Rows, of_format, parse
from neuroshard.tables import Table
from neuroshard.tasks.task import Task
from neuroshard.words.form import FORMS, Form
from neuroshard.words.placement import Home, Placement, Shard, Tier, by_table
from neuroshard.words.topology import Topology

_FORMAT = "neuroshard-plan-2"


@dataclass(frozen=True)
class Plan:
    """Placements (S,) of the shards of one task's tables; valid by construction.

    Every table lies in one of the forms of `Form`, and a device holds at most one shard of a table. Memory and the
    task's constraints are not checked here: a plan that breaks them can still be costed and reported; `violations`
    says what it breaks. `prediction` is what it was predicted to cost when it was found,
    None if nobody did; plans that differ in nothing else are equal.

    Raises:
        UserError: the shards don't make up the task's tables that way.
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
        """(T,) the forms that tables are laid out in."""
        return tuple(layout.form for layout in self.layouts)

    @property
    def in_columns(self) -> bool:
        """Whether every table is in columns."""
        return all(layout.free for layout in self.layouts)

    def names_where(self, has: Callable[[Layout], bool]) -> list[str]:
        """List the tables whose layouts have something, by name, in the task's order."""
        return [table.name for table, layout in zip(self.task.tables, self.layouts, strict=True) if has(layout)]

    def check_layouts(self, served: Callable[[Layout], bool], what: str, do: str) -> None:
        """Refuse layouts that something doesn't serve: `what` says so, and `do` what to do.

        Raises:
            UserError: a table lies in one of them; the line names it.
        """
        refused = {layout for layout in set(self.layouts) if not served(layout)}
        for table, layout in zip(self.task.tables, self.layouts, strict=True):
            if layout in refused:
                raise UserError(f"plan: table {table.name!r} lies in {layout}, and {what}; {do}")

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
    def table_loads(self) -> Loads:
        """(T,) loads of the whole tables, each in columns on a device, in the memory that it lies in."""
        return Loads.of(self.task.tables, self.task.batch_size).at(self.homes)

    @cached_property
    def device_loads(self) -> LoadSets:
        """D sets of loads: what the placements ask of each device."""
        num_devices = self.task.topology.num_devices
        devices = np.array([placement.device for placement in self.by_device], dtype=np.int64)
        loads = placed_loads(self.task.tables, self.by_device, self.task.batch_size, num_devices, self.layouts)
        return LoadSets(loads, np.bincount(devices, minlength=num_devices))

    @cached_property
    def traffic(self) -> Traffic:
        """What the devices exchange in a step (B = 1)."""
        topology = self.task.topology
        given = given_bytes(self.device_loads.loads, topology.num_devices)
        return Traffic.of(self.device_loads, given, topology.num_devices, self.task.batch_size, topology.fast_links)

    @cached_property
    def form_bytes(self) -> IntArray:
        """(D, F) bytes of the shards of each form on each device, with what the task counts besides weights."""
        sets = self.device_loads
        total = np.zeros((len(sets), len(FORMS)), dtype=np.int64)
        np.add.at(total, (sets.owners, sets.loads.form), self.task.memory.device_bytes(sets.loads))
        return total

    @cached_property
    def device_bytes(self) -> tuple[int, ...]:
        """(D,) bytes of the shards on each device, with what the task counts besides weights."""
        return tuple(self.form_bytes.sum(axis=1).tolist())

    @cached_property
    def host_bytes(self) -> tuple[int, ...]:
        """(H,) bytes of every host's memory that shards of its devices take."""
        used = self.task.memory.host_bytes(self.device_loads.loads)
        total = np.zeros(len(self.task.topology.hosts), dtype=np.int64)
        np.add.at(total, self.device_loads.owners // self.task.topology.host_size, used)
        return tuple(total.tolist())

    @cached_property
    def homes(self) -> tuple[Home, ...]:
        """(T,) the memory that holds each table."""
        return tuple(placed[0].home for placed in self.by_table)

    @cached_property
    def device_dims(self) -> tuple[int, ...]:
        """(D,) columns that a sample gets of each device's column shards: theirs for each of a table's outputs.

        Rounded, where tables aren't pooled; `traffic.columns` is exact, and has what sequence tables in rows give.
        """
        dims = [0.0] * self.task.topology.num_devices
        for placement in self.placements:
            if self.layouts[placement.shard.table].free:
                dims[placement.device] += placement.shard.dim * self.task.tables[placement.shard.table].outputs
        return tuple(round(columns) for columns in dims)

    @property
    def fits(self) -> bool:
        """Whether every device's shards fit in its memory, and in its host's."""
        pairs = zip(self.device_bytes, self.task.shard_memory, strict=True)
        return all(used <= free for used, free in pairs) and max(self.host_bytes) <= self.task.topology.host_bytes

    @cached_property
    def violations(self) -> tuple[str, ...]:
        """What the plan breaks of the task's memory and constraints, one line each; empty if nothing."""
        return tuple(violations(self.task, self.by_table, self.layouts, self.device_bytes, self.host_bytes))

    def __str__(self) -> str:
        held = self.device_bytes, self.device_dims
        return "\n".join(plan_lines(self.task, self.placements, *held, self.prediction))

    def save(self, path: str | Path) -> None:
        """Write the plan with its task as JSON."""
        write_json(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Load the plan in a file that `save` wrote.

        Raises:
            UserError: the file is missing, malformed, or its shards don't cover its tables exactly once.
        """
        content = read_json(Path(path), "plan")
        return cls.from_json(content, str(path))

    def to_json(self) -> dict[str, Any]:
        """Convert the plan to JSON-ready fields."""
        return {
            "format": _FORMAT,
            "placements": [_as_fields(placement) for placement in self.placements],
            "prediction": None if self.prediction is None else _predicted(self.prediction),
            "task": self.task.to_json(),
        }

    @classmethod
    def from_json(cls, content: object, where: str = "plan") -> "Plan":
        """Read the plan in `content`, as `to_json` gives it; `where` is what an error begins with.

        Raises:
            UserError: it is malformed, or its shards don't cover its tables exactly once.
        """
        plan_file = parse(of_format(content, _FORMAT, where), _PlanFile, where)
        try:
            return cls(plan_file.task, tuple(placed.read() for placed in plan_file.placements), plan_file.prediction)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None


def _check_tiling(table: Table, placements: Sequence[Placement], layout: Layout, topology: Topology) -> None:
    """Check that placements make up a table in a layout, in one memory.

    Raises:
        UserError: they don't; it names the table, and the row and column or the device.
    """
    if other := next((one.home for one in placements if one.home != placements[0].home), None):
        first, second = sorted(map(str, (placements[0].home, other)))
        raise UserError(f"plan: shards of table {table.name!r} lie in {first} and in {second}; put all in one memory")
    layout.check(table, placements, topology)


def _check_devices(task: Task, placements: Sequence[Placement]) -> None:
    """Check that a task has the tables and the devices of placements, at most one shard of each table on a device.

    Raises:
        UserError: it doesn't; it names the table and the device.
    """
    taken: set[tuple[int, int]] = set()
    for placement in placements:
        index, device = placement.shard.table, placement.device
        name, last = table_of(task, index).name, task.topology.num_devices - 1
        if device > last:
            raise UserError(f"plan: device {device} of table {name!r} must lie in 0..{last}")
        if (index, device) in taken:
            raise UserError(f"plan: two shards of table {name!r} on device {device}; merge them into one")
        taken.add((index, device))


def assemble(task: Task, placed: Iterable[tuple[int, int, int]]) -> Plan:
    """Assemble the plan that puts `dim` columns of a table on a device, for each (table index, dim, device).

    Columns of one table that meet on one device become one shard, with all rows; columns are handed out in order of
    device.
    """
    return Plan(task, tuple(in_columns(task, placed)))


def _predicted(prediction: Prediction) -> dict[str, Any]:
    """Convert a prediction to fields, without an expected cost or caveat where there is none."""
    fields, rare = asdict(prediction), ("expected_ms", "caveat")
    return {name: value for name, value in fields.items() if name not in rare or value is not None}


def _as_fields(placement: Placement) -> dict[str, Any]:
    shard, home = placement.shard, placement.home
    return {
        "table": shard.table,
        "column": shard.column,
        "dim": shard.dim,
        "row": shard.row,
        "rows": shard.rows,
        "device": placement.device,
        "tier": home.tier.value,
        **({} if home.cached is None else {"cached": home.cached}),
    }


@dataclass(frozen=True)
class _Placed:
    """A placement as it stands in a file."""

    table: Count
    column: Offset
    dim: Dim
    row: FirstRow
    rows: Rows
    device: Device
    tier: Name
    cached: CacheShare | None = None

    def read(self) -> Placement:
        """Make the placement that the fields describe."""
        shard = Shard(self.table, self.column, self.dim, self.row, self.rows)
        return Placement(shard, self.device, Home(Tier(self.tier), self.cached))


@dataclass(frozen=True)
class _PlanFile:
    """What a plan file holds, besides its format."""

    placements: tuple[_Placed, ...]
    prediction: Prediction | None
    task: Task
