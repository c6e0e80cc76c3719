"""Translate between NeuroShard's plans and TorchRec's plans."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torchrec.distributed.planner.utils import placement
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardingType,
)

from neuroshard.layouts import Layout, layout_of, place_column_wise, place_data_parallel
from neuroshard.layouts.layout import check_cover
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError, check_name, unknown_name
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import MAX_SHARD_DIM
from neuroshard.tables import Table
from neuroshard.tasks.task import Task
from neuroshard.torchrec.kernels import SHARDING_TYPES, cache_params, kernel_of, shards_of, tier_assignment_of
from neuroshard.torchrec.prefetching import check_cache, flagged
from neuroshard.torchrec.releases import COMPUTE_DEVICES
from neuroshard.torchrec.sequences import check_sequences
from neuroshard.words.placement import Placement, Shard

_BY_HOST = (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD)


def to_sharding_plan(
    plan: Plan,
    modules: str | Mapping[str, str] = "",
    compute_device: str = "cuda",
    local_world_size: int | None = None,
    cache: CacheParams | None = None,
) -> ShardingPlan:
    """Translate a NeuroShard plan into a TorchRec plan for DistributedModelParallel.

    Data-parallel tables get the kernel dense. The tier decides the kernel of all other tables: fused on devices,
    fused_uvm_caching or fused_uvm in host memory.

    Args:
        plan: the plan to translate; every table keeps its sharding type, and shards of unequal width stay as they are.
            As an exception, unsplit pooled tables become column_wise if another table of their collection is
            column_wise.
        modules: path of the collection inside the model, such as "sparse_arch.ebc"; or, if there are several
            collections, a mapping from each table's name to the path.
        compute_device: "cuda", "cpu" or another type of device for which TorchRec has topologies.
        local_world_size: number of devices on a host; None takes the number from the plan's topology.
        cache: parameters of the caches of uvm_caching tables, such as the algorithm or the prefetching flag; the load
            factors are the plan's. None is an LRU cache with FBGEMM's settings. If the task's memory counts the
            pipeline "prefetch", all of these caches are set up to prefetch.

    Raises:
        UserError: `cache` contradicts that pipeline; a table has no module; the devices do not fill whole hosts; the
            plan has row-wise tables for hosts of another size; TorchRec does not support the sharding of a sequence
            table; or TorchRec's collections refuse the name of a table, such as a name with a dot.
    """
    check_name("compute_device", compute_device, COMPUTE_DEVICES)
    pipeline = plan.task.memory.pipeline
    if cache is not None:
        check_cache("cache", cache, pipeline)
    topology = plan.task.topology
    local = topology.host_size if local_world_size is None else local_world_size
    if local < 1 or topology.num_devices % local:
        raise UserError(
            "plan-host-size-not-divisor",
            f"local_world_size is {local}",
            limit=f"local_world_size must divide the number of devices of the plan, which is {topology.num_devices}",
            remedy="Set local_world_size to the number of devices on each host",
        )
    placements = [sorted(placements_of_table) for placements_of_table in plan.by_table]
    pairs = zip(placements, plan.layouts, strict=True)
    sharding_types = [
        ShardingType(layout.sharding_type(placements_of_table, topology)) for placements_of_table, layout in pairs
    ]
    paths = [_module_of(table, modules) for table in plan.task.tables]
    cut = {path for path, kind in zip(paths, sharding_types, strict=True) if kind is ShardingType.COLUMN_WISE}
    module_plans: dict[str, EmbeddingModuleShardingPlan] = {}
    shardings: list[tuple[str, Table, ParameterSharding]] = []
    for index, (table, path) in enumerate(zip(plan.task.tables, paths, strict=True)):
        module_plan = module_plans.setdefault(path, EmbeddingModuleShardingPlan())
        places = [(placed, placement(compute_device, placed.device, local)) for placed in placements[index]]
        sharding_type = _as_one_group(sharding_types[index], table, path in cut)
        if sharding_type in _BY_HOST and local != topology.host_size:
            raise UserError(
                "plan-host-size-differs",
                f"local_world_size is {local}",
                limit=f"the plan has table {table.name!r} row-wise on hosts of {topology.host_size} devices",
                remedy=f"Set local_world_size={topology.host_size}, or make a plan for hosts of {local} devices",
            )
        name = table.name.removeprefix(f"{path}.")  # names that several modules share have the path in front
        _check_table_name(name, path)
        module_plan[name] = sharding = _parameter(places, sharding_type, plan.layouts[index], cache)
        shardings.append((path, table, sharding))
    check_sequences(shardings)
    return flagged(ShardingPlan(dict(module_plans)), pipeline, "the plan")


def _check_table_name(name: str, path: str) -> None:
    """Raise UserError if TorchRec's collections refuse a table that is called `name`.
    Collections store tables in a ModuleDict, which does not allow some names.

    Without a path, a name with dots counts as the name of a table with the path of its module in front.
    """
    plain = name if path else name.rpartition(".")[2]
    dotted = "." in plain
    if dotted or hasattr(nn.ModuleDict(), plain):
        why = "has a dot" if dotted else "is an attribute of torch.nn.ModuleDict"
        other = plain.replace(".", "_") if dotted else f"{plain}_table"
        raise UserError(
            "table-name-refused-by-torchrec",
            f"table {name!r} cannot be exported to TorchRec",
            limit=f"TorchRec's collections refuse a table whose name {why}",
            remedy=f"Rename the table, such as to {other!r}, in the planned tables and in the model, and search again",
        )


def _module_of(table: Table, modules: str | Mapping[str, str]) -> str:
    """Return the path of a table's module; raise UserError if `modules` lacks the table."""
    if isinstance(modules, str):
        return modules
    if table.name not in modules:
        raise UserError(
            "table-without-module",
            f"modules has no path for table {table.name!r}",
            limit=f"modules has paths only for {', '.join(map(repr, modules))}" if modules else "modules is empty",
            remedy="Add the path of the table's collection to modules",
        )
    return modules[table.name]


def _as_one_group(sharding_type: ShardingType, table: Table, beside_cut: bool) -> ShardingType:
    """Return the sharding type that TorchRec's plan gets for a table: `sharding_type`, with one exception.
    A pooled table_wise table becomes column_wise if `beside_cut` is True, that is, if the collection of the table also
    has column_wise tables.

    TorchRec then looks up and exchanges all these tables together, not separately for each sharding type.
    For a table in one shard, table_wise and column_wise mean the same. Sequence tables keep their type, because
    TorchRec assumes that all their column-wise shards are equally wide.
    """
    if sharding_type is ShardingType.TABLE_WISE and table.pooled and beside_cut:
        return ShardingType.COLUMN_WISE
    return sharding_type


def _parameter(
    places: Sequence[tuple[Placement, str]], sharding_type: ShardingType, layout: Layout, cache: CacheParams | None
) -> ParameterSharding:
    """Return TorchRec's `ParameterSharding` of one table.
    Each item of `places` has two values: the placement of a shard, and TorchRec's name of the device. The items must be
    sorted by column, and then by row.
    """
    copied, assignment = sharding_type is ShardingType.DATA_PARALLEL, places[0][0].tier_assignment
    shards = [
        ShardMetadata([placed.shard.row, placed.shard.column], [placed.shard.rows, placed.shard.dim], at)
        for placed, at in places
    ]
    return ParameterSharding(
        sharding_type=sharding_type.value,
        compute_kernel=kernel_of(layout, assignment),
        cache_params=cache_params(assignment, cache),
        ranks=[placed.device for placed, _ in places],
        sharding_spec=None if copied else EnumerableShardingSpec(shards),
    )


def parameters_in(sharding_plan: ShardingPlan) -> Iterator[tuple[str, str, ParameterSharding]]:
    """Yield the module path, the name and the sharding of every parameter; modules without tables are left out."""
    for path, module_plan in sharding_plan.plan.items():
        if isinstance(module_plan, Mapping):
            yield from ((path, name, sharding) for name, sharding in module_plan.items())


def from_sharding_plan(task: Task, sharding_plan: ShardingPlan) -> Plan:
    """Translate a TorchRec plan into a NeuroShard plan; column shards of a table on one device are merged.

    If a shard is wider than FBGEMM's kernels support, the shards of its table are not merged, and the plan's
    `violations` name the table.

    Args:
        task: the tables, with the names of the plan's parameters, or "path.name" if a name is not unique. The topology
            of the task sets the number of devices on a host.
        sharding_plan: TorchRec's plan, with any sharding types.

    Raises:
        UserError: the plan lacks a table of the task, the shards do not cover a table, or they are placed such that
            TorchRec would fail or train wrong rows.
    """
    by_name: dict[str, list[tuple[str, ParameterSharding]]] = {}
    for path, name, parameter in parameters_in(sharding_plan):
        for table_name in {name, f"{path}.{name}"}:
            by_name.setdefault(table_name, []).append((path, parameter))
    placed: list[Placement] = []
    shardings: list[tuple[str, Table, ParameterSharding]] = []
    for index, table in enumerate(task.tables):
        parameters = by_name.get(table.name, [])
        if len(parameters) != 1:
            remedy = "Name the table PATH.NAME, with the path of its module in front"
            if not parameters:
                remedy = "Name the table as the parameter is named in the sharding plan"
            raise UserError(
                "sharding-plan-table-not-unique",
                f"the sharding plan has {number_of(len(parameters), 'parameter')} of the name {table.name!r}",
                limit="each table of the task needs exactly 1 parameter of its name",
                remedy=remedy,
            )
        ((path, parameter),) = parameters
        assignment = tier_assignment_of(table.name, parameter.compute_kernel, parameter.cache_params)
        placed += (
            replace(placed_shard, tier_assignment=assignment) for placed_shard in _placements(task, index, parameter)
        )
        shardings.append((path, table, parameter))
    check_sequences(shardings)
    return Plan(task, tuple(placed))


def _placements(task: Task, index: int, parameter: ParameterSharding) -> list[Placement]:
    """Return the placements of a table.
    Raise UserError if the shards do not cover the table or contradict the sharding type of the table.
    """
    table, sharding_type = task.tables[index], _sharding_type(task.tables[index], parameter)
    if sharding_type is ShardingType.DATA_PARALLEL:
        return _copies(task, index, parameter)
    ranks, shards = parameter.ranks or [], shards_of(parameter)
    if not ranks or len(ranks) != len(shards):
        raise UserError(
            "sharding-plan-shards-without-ranks",
            f"table {table.name!r} has {number_of(len(shards), 'shard')} and {number_of(len(ranks), 'rank')}",
            where="sharding plan",
            limit="a table needs 1 shard or more, and exactly one rank for each shard",
            remedy="Correct the ranks or the shards of the table",
        )
    rectangles = [_rectangle(index, table, shard) for shard in shards]
    check_cover(table, rectangles)
    layout = layout_of(table, rectangles)
    if layout.free and all(shard.dim <= MAX_SHARD_DIM for shard in rectangles):
        placed = place_column_wise(
            task, ((index, shard.dim, rank) for shard, rank in zip(rectangles, ranks, strict=True))
        )
    else:
        placed = sorted(_placed(table, shard, rank) for shard, rank in zip(rectangles, ranks, strict=True))
        layout.check(table, placed, task.topology)
    if sharding_type.value not in layout.sharding_types(placed, task.topology):
        raise UserError(
            "sharding-plan-type-contradicted",
            f"table {table.name!r} is {sharding_type.value}, but its shards are placed as those of a "
            f"{layout.sharding_type(placed, task.topology)} table",
            where="sharding plan",
            limit="the type can depend on the number of devices on a host (or a pod of hosts), which is "
            f"{task.topology.domain_size} in the task",
            remedy="Correct the sharding type, or the number of devices on a host",
        )
    return placed


def _sharding_type(table: Table, parameter: ParameterSharding) -> ShardingType:
    if parameter.sharding_type not in SHARDING_TYPES:
        raise unknown_name("sharding type", parameter.sharding_type, SHARDING_TYPES).at(f"table {table.name!r}")
    return ShardingType(parameter.sharding_type)


def _placed(table: Table, shard: Shard, rank: int) -> Placement:
    try:
        return Placement(shard, rank)
    except UserError as error:
        raise error.at(f"table {table.name!r} in the sharding plan") from None


def _copies(task: Task, index: int, parameter: ParameterSharding) -> list[Placement]:
    devices = list(range(task.topology.num_devices))
    if sorted(parameter.ranks or devices) != devices:
        raise UserError(
            "sharding-plan-copies-missing",
            f"table {task.tables[index].name!r} is data_parallel on ranks {parameter.ranks}",
            where="sharding plan",
            limit=f"a data_parallel table must be on all {len(devices)} ranks",
            remedy="Make a plan for this number of devices, or correct the table's ranks",
        )
    return place_data_parallel(task, index)


def _rectangle(index: int, table: Table, shard: ShardMetadata) -> Shard:
    (row, column), (rows, dim) = shard.shard_offsets, shard.shard_sizes
    try:
        return Shard(index, column, dim, row, rows)
    except UserError as error:
        raise error.at(f"table {table.name!r} in the sharding plan") from None
