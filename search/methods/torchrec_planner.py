"""A searcher that runs TorchRec's own planner on tasks, for comparison with all other search methods."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from neuroshard.layouts import LAYOUTS, place_column_wise
from neuroshard.layouts.sharding_types import TABLE_ROW_WISE, forms_of
from neuroshard.layouts.widths import fewest_parts
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import BoolArray
from neuroshard.plumbing.errors import InfeasibleError, UserError, check_name, raised_by
from neuroshard.plumbing.schema import DIM_MULTIPLE, MAX_SHARD_DIM, CacheShare
from neuroshard.searching.searcher import Found, Searcher, within_hosts
from neuroshard.stages.search.methods.acceptance import cheapest
from neuroshard.stages.search.options.least_bytes import check_least_bytes
from neuroshard.stages.search.options.sharding_types import (
    BLOCKS,
    allowed_types,
    check_allowed_types,
    known_calls,
    searched_types,
)
from neuroshard.stages.search.options.tiers import LEAST_CACHED
from neuroshard.tasks.constraints import Constraints
from neuroshard.tasks.task import Task
from neuroshard.words.placement import Tier, TierAssignment

_SORTS = ("storage", "perf")
_ESTIMATES = ("torchrec", "simulator")


@dataclass(frozen=True)
class TorchRecSearch(Searcher):
    """Runs TorchRec's EmbeddingShardingPlanner with several settings, and returns the cheapest of the plans.

    TorchRec's planner chooses among `sharding_types`, and counts memory as the task does.

    Attributes:
        split_factors: list of numbers of column-wise shards per table, such as [1,2,4,8]; 1 leaves tables whole; the
            planner runs once for each number, so longer lists take longer. TorchRec allows one width of shards per
            table, `min_partition`.
        sort_by: list of placement orders: storage (most bytes first), perf (highest estimated cost first), or both; the
            planner runs once for each order. TorchRec's default is storage.
        estimates: torchrec | simulator: costs that TorchRec's planner minimizes: torchrec (its own estimates, with its
            default bandwidths) or simulator (predictions of NeuroShard's cost models).
        sharding_types: list of sharding types that the planner may choose, if cost models and constraints allow them;
            column_wise includes whole tables, and table_row_wise needs several hosts.
        cache_load_factor: list of cache sizes for tables in host memory, as fractions of a table's rows; the planner
            runs once for each size if topology.host_memory_bytes is not 0. TorchRec's planner takes the fraction as
            fixed.
    """

    split_factors: Sequence[int] = (1, 2, 4, 8)
    sort_by: Sequence[str] = _SORTS
    estimates: str = "torchrec"
    sharding_types: tuple[str, ...] = ("column_wise",)
    cache_load_factor: tuple[CacheShare, ...] = (0.05, 0.2, 0.5)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sharding_types", searched_types(self.sharding_types))
        for name in self.sort_by:
            check_name("sort_by", name, _SORTS)
        check_name("estimates", self.estimates, _ESTIMATES)

    @property
    def takes_sequences(self) -> bool:
        """Always False, because this searcher runs TorchRec's planner for pooled tables only."""
        return False

    @within_hosts
    def find(self, task: Task, simulator: Simulator) -> Found:
        """Run TorchRec's planner with several settings, and return the cheapest plan that keeps the constraints of the
        task.

        Raises:
            MissingPackageError: TorchRec isn't installed.
            UserError: a table isn't pooled.
            InfeasibleError: TorchRec finds no plan, or none that keeps them.
        """
        import neuroshard.torchrec  # noqa: F401  # says what to install
        from neuroshard.stages.search.methods.torchrec_estimators import (
            TaskStorageEstimator,
            WidestCacheStorageEstimator,
        )

        for table in task.tables:
            if not table.pooled:
                raise UserError(
                    "torchrec-search-not-pooled",
                    f"table {table.name!r} is not pooled",
                    limit="this searcher runs TorchRec's planner for pooled tables only",
                    remedy="Set searcher=neuroshard, or leave this table out of the task",
                )
        simulator.models.check(task)
        forms = forms_of(self.sharding_types)
        calls = known_calls(simulator.models, forms)
        allowed = allowed_types(task, calls)
        check_allowed_types(task, allowed, calls, forms)
        check_least_bytes(task, calls, min(self.cache_load_factor, default=LEAST_CACHED))
        plans = list(_plans(self, task, simulator, allowed, TaskStorageEstimator))
        if not plans:
            raise InfeasibleError(
                "torchrec-search-no-plan",
                "TorchRec's planner found no plan for this task, neither with whole tables nor with split tables",
                remedy="Give each device more memory (topology.memory_bytes), or set searcher=neuroshard",
            )
        kept = [plan for plan in plans if not plan.violations]
        if not kept and task.topology.host_bytes and task.memory.shares_caches:
            others = _plans(self, task, simulator, allowed, WidestCacheStorageEstimator)
            kept = [plan for plan in others if not plan.violations]
        if not kept:
            raise InfeasibleError(
                "torchrec-search-breaks-constraints",
                "every plan of TorchRec's planner breaks a limit of the task",
                limit=f"the first plan breaks this limit: {plans[0].violations[0]}",
                remedy="Loosen this limit, or set searcher=neuroshard",
            )
        return Found(kept[cheapest(simulator.costs(task, kept))])


def _plans(
    settings: TorchRecSearch, task: Task, simulator: Simulator, allowed: BoolArray, storage: Any
) -> Iterator[Plan]:
    """Yield the plans that TorchRec's planner finds, up to one for each combination of settings. The mask `allowed`, of
    shape (T, F), is for T tables and F families of sharding types, such as row-wise. An entry is True if the table may
    have a sharding type of the family.

    The class `storage`, of `torchrec_estimators`, counts the bytes of every shard.
    """
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner.types import PlannerError

    from neuroshard.measure.steps.stand_in import StandIn
    from neuroshard.torchrec import from_sharding_plan
    from neuroshard.torchrec.delegated import without_data_parallel_remarks

    # A module's parameters can't bear every name that a table can.
    tables = tuple(replace(table, name=f"table{index}") for index, table in enumerate(task.tables))
    renamed = replace(task, tables=tables, constraints=Constraints())
    if len(set(task.shard_memory)) > 1:
        allowed = allowed.copy()
        allowed[:, BLOCKS] = False  # they would be as unequal as the memory, which it misreads
    shares = settings.cache_load_factor if task.topology.host_bytes else settings.cache_load_factor[:1]
    for factor, sort_by, share in product(settings.split_factors, settings.sort_by, shares):
        limits = [
            _constraints(task, index, forms, settings.sharding_types, factor, share)
            for index, forms in enumerate(allowed.tolist())
        ]
        constraints = {table.name: limit for table, limit in zip(tables, limits, strict=True)}
        planner = _planner(settings.estimates, renamed, simulator, constraints, sort_by, storage)
        module = StandIn(tables, ()).pooled
        try:
            with without_data_parallel_remarks():
                sharding_plan = planner.plan(module, [EmbeddingBagCollectionSharder()])
        except PlannerError:
            continue
        except RuntimeError as error:  # nothing can be split that far
            if not raised_by(error, "torchrec"):
                raise
            continue
        yield cut_to_width(Plan(task, from_sharding_plan(renamed, sharding_plan).placements))


def cut_to_width(plan: Plan) -> Plan:
    """Cut every shard that is wider than FBGEMM supports into narrower shards, and return the new plan. A translated
    TorchRec plan may have such shards, because the columns of a table on one device are merged into one shard.
    """
    wide = {table for table, its in enumerate(plan.by_table) if any(one.shard.dim > MAX_SHARD_DIM for one in its)}
    if not wide:
        return plan
    held = [(one.shard.table, one.shard.dim, one.device) for one in plan.placements if one.shard.table in wide]
    cut = (
        replace(one, tier_assignment=plan.tier_assignments[one.shard.table])
        for one in place_column_wise(plan.task, held)
    )
    return replace(plan, placements=(*(one for one in plan.placements if one.shard.table not in wide), *cut))


def _planner(
    estimates: str, task: Task, simulator: Simulator, constraints: dict[str, Any], sort_by: str, storage: Any
) -> Any:
    from torchrec.distributed.planner import EmbeddingShardingPlanner
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
    from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, SortBy
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
    from torchrec.distributed.planner.types import CustomTopologyData, Topology

    devices = task.topology.num_devices
    memory = task.shard_memory
    host = task.topology.host_size
    on_host = task.topology.host_bytes // host  # an even share of its host's
    sizes: dict[str, Any] = {"hbm_cap": memory[0], "ddr_cap": on_host}
    if len(set(memory)) > 1:
        each = {"hbm_cap": list(memory), "ddr_cap": [on_host] * devices}
        sizes = {"custom_topology_data": CustomTopologyData(each, devices)}
    pods = {"local_world_size": host, "pod_size": task.topology.domain_size // host}  # rows of a table are in one
    topology = Topology(devices, "cuda", created_by_factory=True, **pods, **sizes)
    batch_size = max(task.batch_size // devices, 1)
    estimator, perf_model = _cost_model(estimates, task, simulator, topology)
    estimators = [estimator, storage(task)]
    return EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        enumerator=EmbeddingEnumerator(topology, batch_size, constraints, estimators),
        storage_reservation=FixedPercentageStorageReservation(0.0),
        partitioner=GreedyPerfPartitioner(SortBy(sort_by)),
        performance_model=perf_model,
        stats=[],
        constraints=constraints,
        debug=False,
    )


def _cost_model(estimates: str, task: Task, simulator: Simulator, topology: Any) -> tuple[Any, Any]:
    """Return the two objects with which TorchRec's planner estimates costs: the estimator that sets the `perf` of every
    shard, and the performance model that rates whole plans. If `estimates` is "simulator", both use NeuroShard's cost
    models. Otherwise, both are TorchRec's own.
    """
    from torchrec.distributed.planner.perf_models import NoopPerfModel
    from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator

    from neuroshard.stages.search.methods.torchrec_estimators import SimulatorPerfModel, SimulatorShardEstimator

    if estimates == "simulator":
        return SimulatorShardEstimator(task, simulator), SimulatorPerfModel(task, simulator)
    return EmbeddingPerfEstimator(topology), NoopPerfModel(topology)  # bytes over bandwidths; the largest sum


def _constraints(
    task: Task, index: int, forms: Sequence[bool], types: Collection[str], factor: int, share: float
) -> Any:
    """Return TorchRec's `ParameterConstraints` for the table with the index `index`. The mask `forms` (F,) says which
    of F families of sharding types (such as row-wise) the table may have. `types` has the names of the sharding types
    that the searcher may use. `factor` is the number of column shards into which the table may be split.

    FBGEMM may need more than `factor` shards for a wide table, because it limits the width of a shard.

    A cache, if there is one, has room for the fraction `share` of the rows.
    """
    from torchrec.distributed.planner.types import ParameterConstraints

    from neuroshard.torchrec.kernels import DENSE, KERNELS, cache_params

    table, limits = task.tables[index], task.limits[index]
    factor = max(factor, fewest_parts(table.dim))
    width = table.dim // factor // DIM_MULTIPLE * DIM_MULTIPLE
    splits = factor > 1 and width >= limits.min_dim and limits.max_shards > 1
    tiers = limits.tiers if task.topology.host_bytes else {Tier.DEVICE}
    offered = {
        "table_wise": not splits or limits.min_shards == 1,
        "column_wise": splits,
        "table_row_wise": len(task.topology.domains) > 1 and TABLE_ROW_WISE in types,
        "table_column_wise": False,
        "grid_shard": False,
    }
    words = (word for layout, may in zip(LAYOUTS.values(), forms, strict=True) if may for word in layout.words)
    return ParameterConstraints(
        sharding_types=[word for word in words if offered.get(word, True)],
        compute_kernels=[DENSE, *(KERNELS[tier] for tier in tiers)],
        cache_params=cache_params(TierAssignment(Tier.UVM_CACHING, share)) if Tier.UVM_CACHING in tiers else None,
        min_partition=width if splits else None,
        pooling_factors=[table.pooling_factor / table.features] * table.features,
    )
