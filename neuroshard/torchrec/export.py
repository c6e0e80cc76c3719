"""Plans between our form and TorchRec's."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from torch.distributed._shard.metadata import ShardMetadata
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.utils import placement
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardingType,
)

from neuroshard.errors import UserError, unknown_name
from neuroshard.files import read_json, write_json
from neuroshard.plans.form import Form, form_of
from neuroshard.plans.plan import Plan, assemble
from neuroshard.plans.shard import Placement, Shard
from neuroshard.plans.tiling import check_cover
from neuroshard.schema import MAX_DIM, MAX_ROWS, Device, Name, of_format, parse
from neuroshard.tables import Table
from neuroshard.tasks.task import Task

_FORMAT = "torchrec-sharding-plan-1"
_KERNEL = "fused"
_TYPES = tuple(kind.value for kind in ShardingType)
_KERNELS = tuple(kind.value for kind in EmbeddingComputeKernel)
# TorchRec's word for columns over the devices of one host; the plan itself looks the same.
_BY_COLUMNS = (ShardingType.TABLE_WISE.value, ShardingType.COLUMN_WISE.value, ShardingType.TABLE_COLUMN_WISE.value)


def to_sharding_plan(
    plan: Plan,
    modules: str | Mapping[str, str] = "",
    compute_device: str = "cuda",
    local_world_size: int | None = None,
) -> ShardingPlan:
    """The plan for DistributedModelParallel, with the fused kernel everywhere.

    Args:
        plan: table-wise where a table is whole, else column-wise; shards of unequal width stay as they are.
        modules: path of the EmbeddingBagCollection inside the model, such as "sparse_arch.ebc"; or the path for each
            table's name, where there are several.
        compute_device: "cuda" or "cpu".
        local_world_size: devices of one host; None takes all of them.

    Raises:
        UserError: a table has no module, or the devices don't fill whole hosts.
    """
    devices = plan.task.topology.num_devices
    local = devices if local_world_size is None else local_world_size
    if local < 1 or devices % local:
        raise UserError(f"local_world_size={local} must divide the plan's {devices} devices")
    placements: dict[int, list[Placement]] = {}
    for placed in sorted(plan.placements):
        placements.setdefault(placed.shard.table, []).append(placed)
    found: dict[str, EmbeddingModuleShardingPlan] = {}
    for index, table in enumerate(plan.task.tables):
        path = _module_of(table, modules)
        module_plan = found.setdefault(path, EmbeddingModuleShardingPlan())
        places = [(placed, placement(compute_device, placed.device, local)) for placed in placements[index]]
        module_plan[parameter_name(table.name, path)] = _parameter(places)
    return ShardingPlan(dict(found))


def parameter_name(table: str, path: str) -> str:
    """The table's name inside its module: names that aren't unique over all modules carry the module's path."""
    return table.removeprefix(f"{path}.")


def _module_of(table: Table, modules: str | Mapping[str, str]) -> str:
    if isinstance(modules, str):
        return modules
    if table.name not in modules:
        raise UserError(f"no module given for table {table.name!r}; modules names {', '.join(modules) or 'none'}")
    return modules[table.name]


def _parameter(places: list[tuple[Placement, str]]) -> ParameterSharding:
    return ParameterSharding(
        sharding_type=(ShardingType.TABLE_WISE if len(places) == 1 else ShardingType.COLUMN_WISE).value,
        compute_kernel=_KERNEL,
        ranks=[placed.device for placed, _ in places],
        sharding_spec=EnumerableShardingSpec([_metadata(placed.shard, place) for placed, place in places]),
    )


def _metadata(shard: Shard, place: str) -> ShardMetadata:
    return ShardMetadata([shard.row, shard.column], [shard.rows, shard.dim], place)


def from_sharding_plan(task: Task, sharding_plan: ShardingPlan) -> Plan:
    """TorchRec's plan as ours; shards of a table that lie on one device become one.

    Args:
        task: its tables bear the names of the plan's parameters, or "path.name" where that isn't unique.
        sharding_plan: table-wise and column-wise sharding only.

    Raises:
        UserError: the plan lacks a table of the task, shards rows or replicates, or doesn't cover a table's columns.
    """
    found: dict[str, list[ParameterSharding]] = {}
    for path, module_plan in sharding_plan.plan.items():
        for name, parameter in module_plan.items():
            for known_as in {name, f"{path}.{name}"}:
                found.setdefault(known_as, []).append(parameter)
    placed: list[tuple[int, int, int]] = []
    for index, table in enumerate(task.tables):
        parameters = found.get(table.name, [])
        if len(parameters) != 1:
            raise UserError(f"{len(parameters)} parameters of the sharding plan are named {table.name!r}, not one")
        placed += _columns(index, table, parameters[0])
    return assemble(task, placed)


def _columns(index: int, table: Table, parameter: ParameterSharding) -> list[tuple[int, int, int]]:
    """(index, dim, device) of each shard of the table of that index, as `assemble` takes them."""
    if parameter.sharding_type not in _BY_COLUMNS:
        raise UserError(
            f"table {table.name!r} is sharded {parameter.sharding_type}; "
            f"plans hold whole columns only: {', '.join(_BY_COLUMNS)}"
        )
    ranks, spec = parameter.ranks or [], parameter.sharding_spec
    shards = [] if spec is None else spec.shards
    if not ranks or len(ranks) != len(shards):
        raise UserError(f"table {table.name!r} has {len(shards)} shards on {len(ranks)} ranks in the sharding plan")
    found = [_rectangle(index, table, shard) for shard in shards]
    check_cover(table, found)
    if form_of(table, found) is not Form.COLUMNS:
        raise UserError(f"table {table.name!r} is not cut into columns in the sharding plan")
    return [(index, shard.dim, rank) for shard, rank in zip(found, ranks, strict=True)]


def _rectangle(index: int, table: Table, shard: ShardMetadata) -> Shard:
    (row, column), (rows, dim) = shard.shard_offsets, shard.shard_sizes
    try:
        return Shard(index, column, dim, row, rows)
    except UserError as error:
        raise UserError(f"table {table.name!r} in the sharding plan: {error}") from None


def save_sharding_plan(sharding_plan: ShardingPlan, path: str | Path) -> None:
    """Write TorchRec's plan as JSON: types, kernels, ranks and shards of every parameter."""
    modules = {
        module: {name: _parameter_json(parameter) for name, parameter in module_plan.items()}
        for module, module_plan in sharding_plan.plan.items()
    }
    write_json(Path(path), {"format": _FORMAT, "modules": modules})


def _parameter_json(parameter: ParameterSharding) -> dict[str, Any]:
    spec = parameter.sharding_spec
    return {
        "sharding_type": parameter.sharding_type,
        "compute_kernel": parameter.compute_kernel,
        "ranks": parameter.ranks,
        "shards": None
        if spec is None
        else [
            {"offsets": list(s.shard_offsets), "sizes": list(s.shard_sizes), "placement": str(s.placement)}
            for s in spec.shards
        ],
    }


def load_sharding_plan(path: str | Path) -> ShardingPlan:
    """The plan in a file that `save_sharding_plan` wrote.

    Raises:
        UserError: the file is missing or malformed.
    """
    where = f"sharding plan {path}"
    read = parse(of_format(read_json(Path(path), "sharding plan"), _FORMAT, where), _File, where)
    try:
        return ShardingPlan(
            {
                module: EmbeddingModuleShardingPlan({name: _parameter_of(read) for name, read in parameters.items()})
                for module, parameters in read.modules.items()
            }
        )
    except (ValueError, RuntimeError) as error:  # what TorchRec says of shards
        raise UserError(f"{where}: {error}") from None


_Extent = tuple[Annotated[int, Meta(ge=0, le=MAX_ROWS)], Annotated[int, Meta(ge=0, le=MAX_DIM)]]  # rows, columns


@dataclass(frozen=True)
class _Shard:
    offsets: _Extent
    sizes: _Extent
    placement: Name


@dataclass(frozen=True)
class _Parameter:
    sharding_type: str
    compute_kernel: str
    ranks: tuple[Device, ...] | None
    shards: tuple[_Shard, ...] | None

    def __post_init__(self) -> None:
        if self.sharding_type not in _TYPES:
            raise unknown_name("sharding type", self.sharding_type, _TYPES)
        if self.compute_kernel not in _KERNELS:
            raise unknown_name("compute kernel", self.compute_kernel, _KERNELS)


@dataclass(frozen=True)
class _File:
    modules: dict[str, dict[str, _Parameter]]


def _parameter_of(read: _Parameter) -> ParameterSharding:
    ranks = None if read.ranks is None else list(read.ranks)
    if read.shards is None:
        return ParameterSharding(read.sharding_type, read.compute_kernel, ranks, None)
    shards = [ShardMetadata(list(s.offsets), list(s.sizes), s.placement) for s in read.shards]
    return ParameterSharding(read.sharding_type, read.compute_kernel, ranks, EnumerableShardingSpec(shards))
