"""A sharding plan: every table's columns, cut into shards, each on a device."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuroshard.errors import UserError
from neuroshard.files import read_json, write_json
from neuroshard.loads import Loads
from neuroshard.matching import own_places
from neuroshard.plans.prediction import Prediction
from neuroshard.schema import DIM_MULTIPLE, Count, Device, Dim, Offset, of_format, parse
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableLimits
from neuroshard.tasks.task import Task
from neuroshard.units import readable_bytes

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan

_FORMAT = "neuroshard-plan-1"


@dataclass(frozen=True, order=True)
class Shard:
    """Columns offset ... offset + dim of a table, all its rows; `table` is its index in the task."""

    table: int
    offset: int
    dim: int


@dataclass(frozen=True)
class Plan:
    """Shards (S,) and the device of each, (S,), for one task; valid by construction.

    Every table's columns are covered exactly once, every dim is a multiple of 4, and a device holds at most one
    shard of a table. Memory and the task's constraints are not checked here: a plan that breaks them can still be
    costed and reported; `violations` says what it breaks. `prediction` is what it was predicted to cost when it was
    found, None if nobody did; plans that differ in nothing else are equal.

    Raises:
        UserError: the shards don't cover the task's tables that way.
    """

    task: Task
    shards: tuple[Shard, ...]
    devices: tuple[int, ...]
    prediction: Prediction | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if len(self.shards) != len(self.devices):
            raise UserError(f"plan: {len(self.shards)} shards but {len(self.devices)} devices")
        by_table = self._by_table()
        self._check_devices()
        for index, shards in enumerate(by_table):
            _check_cover(self.task.tables[index], shards)

    def _check_devices(self) -> None:
        for shard, device in zip(self.shards, self.devices, strict=True):
            if not isinstance(device, int) or not 0 <= device < self.task.topology.num_devices:
                last = self.task.topology.num_devices - 1
                raise UserError(f"plan: device {device!r} of table {shard.table} must lie in 0..{last}")
        if len({(s.table, d) for s, d in zip(self.shards, self.devices, strict=True)}) < len(self.shards):
            raise UserError("plan: two shards of one table on one device; merge them into one")

    def _by_table(self) -> list[list[Shard]]:
        grouped: list[list[Shard]] = [[] for _ in self.task.tables]
        for shard in self.shards:
            if not isinstance(shard.table, int) or not 0 <= shard.table < len(grouped):
                raise UserError(f"plan: no table {shard.table!r} in a task of {len(grouped)} tables")
            grouped[shard.table].append(shard)
        return grouped

    @cached_property
    def device_tables(self) -> tuple[tuple[Table, ...], ...]:
        """(D,) the tables on each device, each as wide as its shard there."""
        grouped: list[list[Table]] = [[] for _ in range(self.task.topology.num_devices)]
        for shard, device in zip(self.shards, self.devices, strict=True):
            grouped[device].append(self.task.tables[shard.table].with_dim(shard.dim))
        return tuple(tuple(tables) for tables in grouped)

    @cached_property
    def device_bytes(self) -> tuple[int, ...]:
        """(D,) bytes of the shards on each device, with what the task counts besides weights."""
        loads = Loads.of([table for tables in self.device_tables for table in tables], self.task.batch_size)
        size = self.task.memory.device_bytes(loads)
        device = np.repeat(np.arange(len(self.device_tables)), [len(tables) for tables in self.device_tables])
        total = np.zeros(len(self.device_tables), dtype=np.int64)
        np.add.at(total, device, size)
        return tuple(total.tolist())

    @cached_property
    def device_dims(self) -> tuple[int, ...]:
        """(D,) columns on each device: what the all-to-all moves for every sample."""
        return tuple(sum(table.dim for table in tables) for tables in self.device_tables)

    @property
    def fits(self) -> bool:
        """Whether every device's shards fit in its memory."""
        pairs = zip(self.device_bytes, self.task.shard_memory, strict=True)
        return all(used <= free for used, free in pairs)

    @cached_property
    def violations(self) -> tuple[str, ...]:
        """What the plan breaks of the task's memory and constraints, one line each; empty if nothing."""
        return tuple(_violations(self))

    def __str__(self) -> str:
        from neuroshard.plans.describe import plan_lines  # which needs this class

        return "\n".join(plan_lines(self))

    def save(self, path: str | Path) -> None:
        """Write the plan with its task as JSON."""
        write_json(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """The plan in a file that `save` wrote.

        Raises:
            UserError: the file is missing, malformed, or its shards don't cover its tables exactly once.
        """
        content = read_json(Path(path), "plan")
        return cls.from_json(content, str(path))

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-ready fields."""
        pairs = zip(self.shards, self.devices, strict=True)
        shards = [{"table": s.table, "offset": s.offset, "dim": s.dim, "device": d} for s, d in pairs]
        known = {} if self.prediction is None else {"prediction": asdict(self.prediction)}
        return {"format": _FORMAT, "shards": shards, "task": self.task.to_json()} | known

    @classmethod
    def from_json(cls, content: object, where: str = "plan") -> "Plan":
        """The plan in `content`, as `to_json` gives it; `where` is what an error begins with.

        Raises:
            UserError: it is malformed, or its shards don't cover its tables exactly once.
        """
        found = parse(of_format(content, _FORMAT, where), _PlanFile, where)
        shards = tuple(Shard(placed.table, placed.offset, placed.dim) for placed in found.shards)
        try:
            return cls(found.task, shards, tuple(placed.device for placed in found.shards), found.prediction)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None

    def to_torchrec(
        self, modules: str | Mapping[str, str] = "", compute_device: str = "cuda", local_world_size: int | None = None
    ) -> "ShardingPlan":
        """The plan for TorchRec's DistributedModelParallel; see `neuroshard.torchrec.to_sharding_plan`."""
        from neuroshard.torchrec import to_sharding_plan

        return to_sharding_plan(self, modules, compute_device, local_world_size)

    @classmethod
    def from_torchrec(cls, task: Task, sharding_plan: "ShardingPlan") -> "Plan":
        """TorchRec's plan for the tables of `task`; see `neuroshard.torchrec.from_sharding_plan`."""
        from neuroshard.torchrec import from_sharding_plan

        return from_sharding_plan(task, sharding_plan)


@dataclass(frozen=True)
class _PlacedShard:
    """A shard as it stands in a file."""

    table: Count
    offset: Offset
    dim: Dim
    device: Device


@dataclass(frozen=True)
class _PlanFile:
    shards: tuple[_PlacedShard, ...]
    task: Task
    prediction: Prediction | None = None


def _violations(plan: Plan) -> Iterator[str]:
    for device, (used, free) in enumerate(zip(plan.device_bytes, plan.task.shard_memory, strict=True)):
        if used > free:
            yield f"device {device} needs {readable_bytes(used)}, it has {readable_bytes(free)}"
    held = {table.name: dict[int, int]() for table in plan.task.tables}
    for shard, device in zip(plan.shards, plan.devices, strict=True):
        held[plan.task.tables[shard.table].name][device] = shard.dim
    for table in plan.task.tables:
        limits = plan.task.constraints.limits(table, plan.task.topology.num_devices)
        yield from _broken_limits(table.name, limits, held[table.name])
    yield from _broken_groups(plan.task.constraints, held)


def _broken_limits(name: str, limits: TableLimits, held: Mapping[int, int]) -> Iterator[str]:
    """Of one table; `held`: columns by device."""
    if wrong := set(held).difference(limits.devices):
        yield f"table {name!r} must not lie on device {min(wrong)}"
    if not limits.min_shards <= len(held) <= limits.max_shards:
        yield f"table {name!r} is on {len(held)} devices, not on {limits.min_shards} to {limits.max_shards}"
    if min(held.values()) < limits.min_dim:
        yield f"table {name!r} has a shard of {min(held.values())} columns, fewer than {limits.min_dim}"


def _broken_groups(constraints: Constraints, held: Mapping[str, Mapping[int, int]]) -> Iterator[str]:
    """`held`: columns by table and device."""
    for name in dict.fromkeys(shard.table for shard in constraints.pinned):
        if not _pins_met([shard for shard in constraints.pinned if shard.table == name], held[name]):
            yield f"the pinned shards of table {name!r} are not where they belong"
    for group in constraints.together:
        if len({tuple(held[name]) for name in group}) > 1:
            yield f"tables {', '.join(group)} are not together"
    for group in constraints.apart:
        devices = [device for name in dict.fromkeys(group) for device in held[name]]
        if crowded := [device for device in devices if devices.count(device) > 1]:
            both = [name for name in dict.fromkeys(group) if crowded[0] in held[name]]
            yield f"tables {', '.join(both)} are both on device {crowded[0]}"


def _pins_met(pinned: Sequence[PinnedShard], held: Mapping[int, int]) -> bool:
    """Whether every pinned shard has a device of its own that holds just as many columns; `held`: columns by device."""
    fits = [[device in shard.devices and dim == shard.dim for device, dim in held.items()] for shard in pinned]
    return own_places(np.array(fits)) is not None


def _check_cover(table: Table, shards: list[Shard]) -> None:
    for shard in shards:
        if not isinstance(shard.dim, int) or shard.dim < DIM_MULTIPLE or shard.dim % DIM_MULTIPLE:
            raise UserError(
                f"plan: a shard of table {table.name!r} has dim {shard.dim!r}, "
                f"not a positive multiple of {DIM_MULTIPLE}"
            )
        if not isinstance(shard.offset, int):
            raise UserError(f"plan: a shard of table {table.name!r} has offset {shard.offset!r}, not a whole number")
    end = 0
    for shard in sorted(shards):
        if shard.offset != end:
            kind = "twice" if shard.offset < end else "by no shard"
            raise UserError(f"plan: column {min(shard.offset, end)} of table {table.name!r} is covered {kind}")
        end += shard.dim
    if end != table.dim:
        raise UserError(f"plan: table {table.name!r} has {table.dim} columns, its shards cover {end}")


def assemble(task: Task, placed: Iterable[tuple[int, int, int]]) -> Plan:
    """The plan that puts `dim` columns of a table on a device, for each (table index, dim, device) in `placed`.

    Columns of one table that meet on one device become one shard; offsets are handed out in order of device.
    """
    dims: dict[tuple[int, int], int] = {}
    for table, dim, device in placed:
        dims[table, device] = dims.get((table, device), 0) + dim
    shards, devices = [], []
    offset, previous = 0, -1
    for (table, device), dim in sorted(dims.items()):
        offset = 0 if table != previous else offset
        shards.append(Shard(table, offset, dim))
        devices.append(device)
        offset, previous = offset + dim, table
    return Plan(task, tuple(shards), tuple(devices))
