"""Our cost models as a hardware config of TorchRec's estimators: for jobs that can't change their planner."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torchrec.distributed.planner.estimator.annotations import (
    backward_compute,
    bwd_comms,
    forward_compute,
    fwd_comms,
    input_dist_comms,
    prefetch_compute,
)
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.estimator.types import HardwarePerfConfig, ShardPerfContext
from torchrec.distributed.planner.types import Perf
from torchrec.distributed.types import CacheParams

from neuroshard.layouts import LAYOUTS
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tables.reuse import zipf_reuse
from neuroshard.tasks.task import Task
from neuroshard.torchrec.estimators import ms_per_column, of_both_ways
from neuroshard.torchrec.kernels import home_of
from neuroshard.torchrec.known_tables import Known, known_tables
from neuroshard.torchrec.pods import ranks_per_pod
from neuroshard.words.form import CALLS, Call
from neuroshard.words.topology import Topology

_COLUMNS = 512  # on every device, in the exchange that a column's share is taken of
_UNKNOWN_MS = 1e9  # of what the models don't know: chosen where there is nothing else
_AMPLE = 1 << 50  # bytes: costs don't hang on memory
_LAYOUTS = {word: layout for layout in LAYOUTS.values() for word in layout.words}


def _told(part: str, mark: Any) -> Any:
    """Make a method that tells a part of a shard's ms, marked as TorchRec's decorators do, which have no types."""
    return mark(lambda config, ctx: float(getattr(config._perf(ctx), part)))


class SimulatorPerfConfig(HardwarePerfConfig):
    """Estimates every shard by cost models, as far as a shard can be estimated alone: subclasses name the models.

    As SimulatorShardEstimator does, but with what TorchRec tells a config of a table. What the models don't know (a
    form, a memory, columns that are no multiple of 4) costs so much that it is chosen where nothing else is left.
    """

    simulator: ClassVar[Simulator]
    known: ClassVar[Mapping[str, Table]] = {}

    forward_compute_ms = _told("fwd_compute", forward_compute)
    backward_compute_ms = _told("bwd_compute", backward_compute)
    forward_communication_ms = _told("fwd_comms", fwd_comms)
    backward_communication_ms = _told("bwd_comms", bwd_comms)
    input_ms = _told("input_dist_comms", input_dist_comms)  # 0: TorchRec's totals leave the exchange of indices out
    prefetch_ms = _told("prefetch_compute", prefetch_compute)  # 0: what a cache takes is in the kernels' ms

    def __init__(self) -> None:
        self._last: tuple[ShardPerfContext, Perf] | None = None

    def _perf(self, ctx: ShardPerfContext) -> Perf:
        """Estimate all of a shard's ms at once; TorchRec asks for one after the other."""
        if self._last is None or self._last[0] is not ctx:
            try:
                self._last = ctx, self._estimated(ctx)
            except UserError:
                self._last = ctx, Perf(_UNKNOWN_MS, 0.0, 0.0, 0.0)
        return self._last[1]

    def _estimated(self, ctx: ShardPerfContext) -> Perf:
        """Cost the plan of a task of this table alone, of which the first device counts."""
        plan = _alone(ctx, self.known.get(ctx.table_name))
        cost = self.simulator.cost(plan.task, plan)
        forward, backward = float(cost.forward[0]), float(cost.backward[0])
        if plan.in_columns:
            each = ms_per_column(self.simulator, plan.task, _COLUMNS)
            forward, backward = (ms * plan.task.output_columns for ms in each)
        ahead, back = of_both_ways(float(cost.compute[0]), ctx.bwd_compute_multiplier)
        return Perf(fwd_compute=ahead, fwd_comms=forward, bwd_compute=back, bwd_comms=backward)


def _alone(ctx: ShardPerfContext, known: Table | None) -> Plan:
    """Build the plan of a task of one table, as wide as the shard, in the form and memory that TorchRec says."""
    whole = int(ctx.batch_sizes[0]) * ctx.world_size
    table = known.with_dim(ctx.emb_dim) if known else _guessed(ctx, whole)
    pod = ranks_per_pod(ctx)
    topology = Topology(
        ctx.world_size,
        _AMPLE,
        devices_per_host=ctx.local_world_size,
        host_memory_bytes=_AMPLE,
        devices_per_domain=pod,
    )
    task = Task((table,), topology, whole)
    layout = _LAYOUTS[ctx.sharding_type]
    placed = layout.over(task, 0, range(ctx.world_size if ctx.sharding_type == layout.words[0] else pod))
    home = home_of(table.name, ctx.compute_kernel, CacheParams(load_factor=ctx.caching_ratio))
    plan = Plan(task, tuple(replace(one, home=home) for one in placed))
    if Call(plan.forms[0], table.pooled, home.tier) not in CALLS:
        raise UserError(f"no kernel serves table {table.name!r} so")
    return plan


def _guessed(ctx: ShardPerfContext, batch_size: int) -> Table:
    """Build a table as TorchRec tells it, as wide as the shard, read as by a Zipf law at a global batch size."""
    rows, lookups = int(ctx.hash_size_for_clamping), ctx.batch_inputs / ctx.batch_sizes[0]
    return Table(
        ctx.table_name,
        rows,
        int(ctx.emb_dim),
        lookups,
        zipf_reuse(rows, lookups * batch_size),
        int(ctx.table_data_type_size),
        batch_size,
        features=len(ctx.input_lengths),
        pooled=ctx.is_pooled,
    )


def register_perf_config(
    name: str, models: CostModels | str, tables: Known = None, batch_size: int | None = None
) -> type[HardwarePerfConfig]:
    """Register cost models as the hardware `name` of TorchRec's EmbeddingPerfEstimatorFactory.

    Args:
        name: that `EmbeddingPerfEstimatorFactory.create(name, topology=...)` makes the estimator by. TorchRec's own
            name, "default_estimator", has every planner of the process estimate by these models.
        models: cost models, or their name or path.
        tables: statistics of tables by their names, or a file of them, as `NeuroShardPlanner` takes them.
        batch_size: global, that such a file is read for.

    Returns:
        The config's class.

    Raises:
        UserError: the models or tables can't be read.
    """
    loaded = CostModels.load(models) if isinstance(models, str) else models
    said: dict[str, Any] = {
        "name": loaded.name or name,
        "simulator": Simulator(loaded),
        "known": known_tables(tables, batch_size or 1),
    }
    config = type("SimulatorPerfConfig", (SimulatorPerfConfig,), said)
    registered: type[HardwarePerfConfig] = EmbeddingPerfEstimatorFactory.register(name)(config)
    return registered
