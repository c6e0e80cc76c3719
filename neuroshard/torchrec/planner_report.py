"""What people and programs are told of a plan: TorchRec's reports, remarks, and callbacks as its planner has them."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn
from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.planners import to_sharding_plan
from torchrec.distributed.planner.types import (
    Perf,
    PlanDebugStats,
    ShardingOption,
    Stats,
)
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingPlan

from neuroshard.cost.cost import INPUT, described_wait
from neuroshard.cost.loads import LoadSets
from neuroshard.models import CostModels
from neuroshard.models.precision import Narrowed
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.schema import padded
from neuroshard.torchrec.asked import device_memory, named_optimizer
from neuroshard.torchrec.delegated import joined
from neuroshard.torchrec.kernels import COPIED, DENSE, IN_ROWS, cut_widths
from neuroshard.torchrec.model import Model
from neuroshard.torchrec.modules import listed
from neuroshard.torchrec.options import estimate, sharding_options, storage_estimator
from neuroshard.torchrec.parameters import Parameter
from neuroshard.torchrec.prefetching import flagged
from neuroshard.torchrec.releases import TORCHREC
from neuroshard.torchrec.sharding_plan import from_sharding_plan
from neuroshard.words.collective import ELEMENT_BYTES

Sharders = list[ModuleSharder[nn.Module]]
_log = logging.getLogger(__name__)
Callback = Callable[[list[ShardingOption]], list[ShardingOption]]


def late_remark(took_s: float, limit_s: int | None) -> str | None:
    """Say that planning took longer than it should; None where it didn't."""
    if limit_s is None or took_s <= limit_s:
        return None
    return (
        f"planning took {took_s:.1f} s, and timeout_seconds is {limit_s}: our search isn't cut off, so that plans "
        "repeat; searcher='size_lookup_greedy' or fewer num_candidates take less, and keep=FILE nothing at a restart"
    )


def precision_remark(model: Model, models: CostModels) -> str | None:
    """Say where an element of a model's exchanges takes other bytes than the models count; None elsewhere.

    Codecs of sharders (`QCommsConfig`) decide that; without any, what lookups put out (`output_dtype`).
    """
    registries = [getattr(sharder, "qcomm_codecs_registry", None) or {} for sharder in model.sharders]
    codecs = [codec for registry in registries for codec in registry.values()]
    outputs = {parameter.output_bytes for parameter in model.tables.values()} or {ELEMENT_BYTES}
    for way in ("forward", "backward"):
        exchange = getattr(models, way)
        counted = round(ELEMENT_BYTES * exchange.share) if isinstance(exchange, Narrowed) else ELEMENT_BYTES
        used = {getattr(codec, way).quantized_dtype.itemsize for codec in codecs} or outputs
        if used != {counted}:
            told = " or ".join(map(str, sorted(used)))
            return (
                f"the model exchanges {told} byte(s) of an element {way}, and costs count {counted}; give "
                "exchange_dtype='fp16', or the data types of both ways, such as exchange_dtype='fp16/bf16'"
            )
    return None


def data_parallel_remark(parameters: Sequence[Parameter], sharding_plan: ShardingPlan) -> str | None:
    """Return the warning that a whole model's plan leaves tables without their optimizer; None if it does not.

    TorchRec sets optimizers inside the fused kernels. Data-parallel tables have a dense kernel, whoever planned them,
    and so have others in plans that name no kernel. TorchRec trains those of fused collections all the same.
    """
    lost = [
        its
        for its, sharding in _lying(parameters, sharding_plan)
        if sharding.compute_kernel == DENSE and not (its.fused and sharding.sharding_type in COPIED)
    ]
    if not lost:
        return None
    optimizers = ", ".join(dict.fromkeys(map(named_optimizer, lost)))
    copied = all(its.sharding_in(sharding_plan).sharding_type in COPIED for its in lost)
    what = "are data_parallel" if copied else f"have the compute kernel {DENSE!r}"
    return (
        f"{len(lost)} table(s) {what} ({listed([its.qualified_name for its in lost])}). TorchRec does not "
        f"apply their optimizer ({optimizers}), which runs inside fused kernels: picked by "
        "in_backward_optimizer_filter they get your dense optimizer instead, and picked by name none at all. Train "
        f"them by neuroshard.torchrec.data_parallel_optimizer(model), or plan them otherwise: {_ways_out(lost)}"
    )


def _ways_out(lost: Sequence[Parameter]) -> str:
    """Return the advice on how fused kernels can train tables that have dense kernels."""
    odd = [f"{its.qualified_name} to {padded(its.config.embedding_dim)} columns" for its in lost if its.unlike_kernels]
    ways = [] if len(odd) == len(lost) else ["leave out data_parallel=True, and data_parallel in sharding_types"]
    if any(DENSE in (its.said.compute_kernels or ()) for its in lost):
        ways.append(f"remove {DENSE!r} from compute_kernels")
    if odd:
        ways.append(f"pad {listed(odd)}, because fused kernels take multiples of 4 only")
    return "; ".join(ways)


def loading_remark(parameters: Sequence[Parameter], sharding_plan: ShardingPlan) -> str | None:
    """Return the warning that TorchRec can't load weights into a whole model's plan; None if it can.

    It reads all column shards of a table as wide as the first one, whoever planned them.
    """
    cut = [
        its.qualified_name for its, sharding in _lying(parameters, sharding_plan) if len({*cut_widths(sharding)}) > 1
    ]
    if not cut:
        return None
    return (
        f"load_state_dict of {TORCHREC} fails with sharded weights of {len(cut)} table(s) in shards of unequal width "
        f"({listed(cut)}); rules=Constraints(rules=(TableRule('*', equal_widths=True),)) has none"
    )


def unsound_remarks(parameters: Sequence[Parameter], sharding_plan: ShardingPlan) -> Iterator[str]:
    """Yield a warning for each plan of parameters with which TorchRec computes other outputs than the unsharded model.

    If a mean-pooled table is row-wise, TorchRec divides outputs of its collection by lengths: all but the outputs of
    features that other, sum-pooled row-wise tables read, even if other code divided them before. Row-wise tables of
    processed features change the weights of the batch in place.
    """
    lying = [(its, sharding.sharding_type) for its, sharding in _lying(parameters, sharding_plan)]
    in_rows = [parameter for parameter, its in lying if its in IN_ROWS]
    for path, means in grouped((its for its in in_rows if its.mean_pooled), lambda its: its.path).items():
        shared = {feature for parameter in means for feature in parameter.config.feature_names}
        beside = [
            parameter.name
            for parameter, its in lying
            if parameter.path == path
            and (
                its not in IN_ROWS
                or (not parameter.mean_pooled and shared.intersection(parameter.config.feature_names))
            )
        ]
        if beside:
            yield (
                f"mean-pooled tables of {path or 'the model'!r} are row-wise, and others of it are not, or share their "
                f"features ({listed(beside)}): {TORCHREC} divides some outputs wrongly then; let all tables of the "
                "collection be row-wise, without such features, or none"
            )
    processed = [parameter.qualified_name for parameter in in_rows if parameter.processed]
    if processed and any(parameter.config is not None and not parameter.processed for parameter, _ in lying):
        yield (
            f"tables of processed features are row-wise ({listed(processed)}): {TORCHREC} writes their weights into "
            "the batch, so that outputs of other collections that read it are wrong; give those a batch of their own"
        )


def mixed_remarks(parameters: Sequence[Parameter], sharding_plan: ShardingPlan, num_ranks: int) -> Iterator[str]:
    """Yield a warning for each collection whose outputs TorchRec can't exchange: a rank expects its own data type.

    The data type of a rank is the widest of its tables' types, and fp32 if the rank has no table. Row-wise and
    data-parallel tables, and codecs (`QCommsConfig`), set one data type for all ranks.
    """
    in_columns = [
        (parameter, sharding)
        for parameter, sharding in _lying(parameters, sharding_plan)
        if parameter.config is not None
        and sharding.sharding_type not in IN_ROWS | COPIED
        and not getattr(parameter.sharder, "qcomm_codecs_registry", None)
    ]
    for path, its in grouped(in_columns, lambda one: one[0].path).items():
        sizes = [
            max(
                (parameter.output_bytes for parameter, sharding in its if rank in (sharding.ranks or ())),
                default=ELEMENT_BYTES,
            )
            for rank in range(num_ranks)
        ]
        if len(set(sizes)) > 1:
            yield (
                f"outputs of {path or 'the model'!r} have {min(sizes)} bytes an element on some ranks, {max(sizes)} on "
                f"others, which {TORCHREC} can't exchange; leave output_dtype out, or narrow exchanges: QCommsConfig"
            )


def _lying(parameters: Sequence[Parameter], sharding_plan: ShardingPlan) -> list[tuple[Parameter, ParameterSharding]]:
    """List how a plan shards those of the parameters that it holds."""
    return [(its, its.sharding_in(sharding_plan)) for its in parameters if its.is_in(sharding_plan)]


def withheld_remark(parameters: Iterable[Parameter]) -> str:
    """Return advice that names the tables without a plan that could be row-wise if constraints named it; else ""."""
    withheld = [
        its.qualified_name for its in parameters if not its.said.sharding_types and its.withheld_types & IN_ROWS
    ]
    if not withheld:
        return ""
    return (
        f"; or let {listed(withheld)} be row-wise by naming sharding_types=['row_wise'], but they are mean-pooled or "
        f"have processed features, and {TORCHREC} then computes outputs of other tables wrongly"
    )


@dataclass(frozen=True)
class Reports:
    """Callbacks, which get every plan and return the plan to use, and TorchRec's reports, which get it then."""

    stats: Sequence[Stats]
    callbacks: Sequence[Callback]
    debug: bool

    def told(
        self, simulator: Simulator, model: Model, sharding_plan: ShardingPlan, plan: Plan | None, run_time_s: float
    ) -> tuple[ShardingPlan, Plan | None]:
        """Hand the whole model's plan and ours in it to callbacks, then to reports; return both as callbacks left them.

        `simulator` predicts what ours costs.

        Raises:
            UserError: a callback moved shards such that TorchRec would fail, or train other rows than it should.
        """
        if not self.stats and not self.callbacks:
            return sharding_plan, plan
        asked, options = model.asked, options_of(simulator, model, sharding_plan, plan)
        for callback in self.callbacks:
            options = callback(options)
        if self.callbacks:
            changed = flagged(to_sharding_plan(options, asked.topology), asked.pipeline, "callbacks")
            sharding_plan = joined(sharding_plan, changed)
            plan = None if plan is None else from_sharding_plan(plan.task, model.ours_in(sharding_plan))
        for report in self.stats:
            report.log(
                sharding_plan=sharding_plan,
                topology=asked.topology,
                batch_size=asked.batch_size,
                storage_reservation=asked.reservation,
                num_proposals=1,  # a search counts as one
                num_plans=1,
                run_time=run_time_s,
                best_plan=options,
                constraints=dict(asked.constraints),
                sharders=list(model.sharders),
                debug=self.debug,
                debug_stats=PlanDebugStats(planner_type="NeuroShardPlanner", timeout_seconds=asked.timeout_s),
            )
        if self.stats and plan is not None:
            _log.info(_told_of(plan, simulator, device_memory(asked.topology)))
        return sharding_plan, plan


def options_of(
    simulator: Simulator, model: Model, sharding_plan: ShardingPlan, plan: Plan | None
) -> list[ShardingOption]:
    """List the plan as sharding options: what shards take is TorchRec's estimate, what ours cost the simulator's.

    Those of `plan`, ours, come first, and have the lookups that its tables have.
    """
    batch_size, topology, constraints = model.asked.batch_size, model.asked.topology, dict(model.asked.constraints)
    options = sharding_options(sharding_plan, model.division.parameters, batch_size, model.left)
    ours, others = options[: len(model.tables)], options[len(model.tables) :]
    tables = () if plan is None else plan.task.tables
    for option, parameter, table in zip(ours, model.tables.values(), tables, strict=True):
        option.input_lengths = parameter.told_lookups(table, batch_size)
    estimate(storage_estimator(topology, constraints, model.asked.pipeline), options, model.sharders)
    perf = EmbeddingPerfEstimatorFactory.create(DEFAULT_PERF_ESTIMATOR, topology=topology, constraints=constraints)
    estimate(perf, others, model.sharders)
    if plan is not None:
        _set_perf(ours, plan, simulator, topology.bwd_compute_multiplier)
    return options


def _told_of(plan: Plan, simulator: Simulator, capacity: Sequence[int]) -> str:
    """Say what reports have no column for: how even a plan is, how full devices (D,) of such bytes are, which models.

    Full of tables and of all that is kept free or planned elsewhere.
    """
    cost, name = simulator.cost(plan.task, plan), simulator.models.label
    device_ms = cost.device_ms
    imbalance = float(device_ms.max() / device_ms.mean()) if device_ms.any() else 1.0
    each = zip(plan.device_bytes, plan.task.topology.device_memory, capacity, strict=True)
    full = [(held + has - left) / has for held, left, has in each]
    waits = [f"; host: {told}" for told in (described_wait(cost.waited_ms),) if told is not None]
    return (
        f"planned here: imbalance {imbalance:.2f} (slowest device over the mean), memory {min(full):.0%} to "
        f"{max(full):.0%} full with what is kept free, costs predicted by {name} "
        f"(compute forward and backward together, shared out as TorchRec does){''.join(waits)}"
    )


def _set_perf(options: Sequence[ShardingOption], plan: Plan, simulator: Simulator, multiplier: float) -> None:
    """Fill in the `perf` of all shards: the predicted parts of each device, divided between its shards.

    Compute is divided by the predicted time of each shard alone, communication by the columns that samples get from
    each shard; so the sum over a device is the predicted time of the device. The models predict compute of both passes
    together: it is divided as TorchRec does, with `multiplier`, the ratio of backward to forward compute. The input
    dist, if the models know it, is not part of the sum. Options are of the plan's tables, in their order.
    """
    cost, models = simulator.cost(plan.task, plan), simulator.models
    devices = np.array([placed.device for placed in plan.by_device], dtype=np.int64)
    loads = plan.device_loads.loads
    compute = _shared(cost.compute, models.compute.predict(LoadSets.alone(loads)).astype(np.float64), devices)
    columns = loads.dim * loads.outputs / loads.samples
    forward, backward = (_shared(ms, columns, devices) for ms in (cost.forward, cost.backward))
    inputs = next((part.ms for part in cost.parts if part.name == INPUT), np.zeros_like(cost.compute))
    input_ms = _shared(inputs, loads.lookups.astype(np.float64), devices)
    perfs: dict[tuple[int, int, int, int], Perf] = {}
    for number, placed in enumerate(plan.by_device):
        shard, (ahead, back) = placed.shard, _of_both_ways(float(compute[number]), multiplier)
        perfs[shard.table, placed.device, shard.row, shard.column] = Perf(
            fwd_compute=ahead,
            fwd_comms=float(forward[number]),
            bwd_compute=back,
            bwd_comms=float(backward[number]),
            input_dist_comms=float(input_ms[number]),
        )
    for index, option in enumerate(options):
        for option_shard in option.shards:
            row, column = option_shard.offset
            option_shard.perf = perfs[index, int(option_shard.rank or 0), row, column]


def _shared(total_ms: FloatArray, weight: FloatArray, devices: IntArray) -> FloatArray:
    """Split devices' totals (D,) by the weights (S,) of the shards on them, into (S,); evenly if all weights are 0."""
    weight = np.maximum(weight, 0) + 1e-12
    return total_ms[devices] * weight / np.bincount(devices, weight, minlength=len(total_ms))[devices]


def _of_both_ways(compute_ms: float, multiplier: float) -> tuple[float, float]:
    """Split compute, which our models predict for both ways together, into the forward and the backward pass, ms.

    Split as TorchRec splits it: the backward pass takes `multiplier` times as long as the forward pass.
    """
    forward = compute_ms / (1 + multiplier)
    return forward, compute_ms - forward
