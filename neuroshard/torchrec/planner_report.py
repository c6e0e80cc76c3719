"""Reports on a plan: the reports of TorchRec, warnings of NeuroShard, and callbacks as in TorchRec's planner."""

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
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.schema import padded
from neuroshard.torchrec.delegated import joined
from neuroshard.torchrec.kernels import COPIED, DENSE, IN_ROWS, cut_widths
from neuroshard.torchrec.model import Model
from neuroshard.torchrec.modules import listed
from neuroshard.torchrec.options import estimate, sharding_options, storage_estimator
from neuroshard.torchrec.parameters import Parameter
from neuroshard.torchrec.planning_request import device_memory, named_optimizer
from neuroshard.torchrec.prefetching import flagged
from neuroshard.torchrec.releases import TORCHREC
from neuroshard.torchrec.sharding_plan import from_sharding_plan
from neuroshard.words.collective import ELEMENT_BYTES, Precision

Sharders = list[ModuleSharder[nn.Module]]
_log = logging.getLogger(__name__)
Callback = Callable[[list[ShardingOption]], list[ShardingOption]]


def late_remark(took_s: float, limit_s: int | None) -> Message | None:
    """Return the warning that planning took longer than the timeout; None if planning ended before the timeout."""
    if limit_s is None or took_s <= limit_s:
        return None
    return Message(
        "planning-over-timeout",
        f"planning took {took_s:.1f} s",
        limit=f"timeout_seconds is {limit_s}, but NeuroShard's search ignores timeouts, so plans are reproducible",
        remedy="Do one of these: set searcher='size_lookup_greedy'; set a smaller num_candidates; or set keep=FILE, "
        "which reuses the plan at a restart",
    )


def precision_remark(model: Model, models: CostModels) -> Message | None:
    """Return a warning if an element that devices exchange has more or fewer bytes than the cost models count.
    The result is None if the numbers of bytes are equal.

    The codecs of the sharders (`QCommsConfig`) decide the bytes; without codecs, the data type of lookups' outputs does
    (`output_dtype`).
    """
    registries = [getattr(sharder, "qcomm_codecs_registry", None) or {} for sharder in model.sharders]
    codecs = [codec for registry in registries for codec in registry.values()]
    outputs = {parameter.output_bytes for parameter in model.tables.values()} or {ELEMENT_BYTES}
    for way in ("forward", "backward"):
        precision: Precision = getattr(models, f"{way}_precision")
        counted = precision.element_bytes
        used = {getattr(codec, way).quantized_dtype.itemsize for codec in codecs} or outputs
        if used != {counted}:
            *smaller, largest = sorted(used)
            sizes = " or ".join([*map(str, smaller), number_of(largest, "byte")])
            return Message(
                "exchange-dtype-differs",
                f"the model exchanges {sizes} per element in the {way} pass",
                limit=f"predicted costs count {number_of(counted, 'byte')} per element",
                remedy="Set exchange_dtype to the data type of the exchanges, such as exchange_dtype='fp16', or to the "
                "data types of the forward and the backward pass, such as exchange_dtype='fp16/bf16'",
            )
    return None


def data_parallel_remark(parameters: Sequence[Parameter], sharding_plan: ShardingPlan) -> Message | None:
    """Return the warning that TorchRec does not use the optimizers that are set for some tables of a plan.
    The result is None if TorchRec trains all tables with their optimizers.

    TorchRec sets optimizers inside the fused kernels. Data-parallel tables have a dense kernel, independent of who
    planned them; so do other tables in plans that name no kernel. TorchRec does train data-parallel tables of fused
    collections.
    """
    lost = [
        table
        for table, sharding in _shardings_in(parameters, sharding_plan)
        if sharding.compute_kernel == DENSE and not (table.fused and sharding.sharding_type in COPIED)
    ]
    if not lost:
        return None
    optimizers = ", ".join(dict.fromkeys(map(named_optimizer, lost)))
    copied = all(table.sharding_in(sharding_plan).sharding_type in COPIED for table in lost)
    what = "that the plan makes data_parallel" if copied else f"with the compute kernel {DENSE!r}"
    tables = f"{number_of(len(lost), 'table')} ({listed([table.qualified_name for table in lost])})"
    return Message(
        "tables-optimizer-not-applied",
        f"TorchRec does not apply the optimizer ({optimizers}) to {tables} {what}",
        limit="this optimizer runs inside fused kernels only, so that only your dense optimizer can train these "
        "tables: it does if you select its parameters with in_backward_optimizer_filter, and it does not if you select "
        "them by name",
        remedy="Do one of these: train these tables with neuroshard.torchrec.data_parallel_optimizer(model); or have "
        f"fused kernels train these tables: {_ways_out(lost)}",
    )


def _ways_out(lost: Sequence[Parameter]) -> str:
    """Return advice, as text, on how to make fused kernels train the tables in `lost`, which have dense kernels."""
    odd = [
        f"{table.qualified_name} to {padded(table.config.embedding_dim)} columns"
        for table in lost
        if table.unlike_kernels
    ]
    ways = [] if len(odd) == len(lost) else ["remove data_parallel=True and remove data_parallel from sharding_types"]
    if any(DENSE in (table.user_constraints.compute_kernels or ()) for table in lost):
        ways.append(f"remove {DENSE!r} from compute_kernels")
    if odd:
        ways.append(f"pad {listed(odd)}, because fused kernels need a multiple of 4 columns")
    return ", and ".join(ways)


def loading_remark(parameters: Sequence[Parameter], sharding_plan: ShardingPlan) -> Message | None:
    """Return the warning that TorchRec cannot load saved weights into the shards of a plan.
    The result is None if TorchRec can load the weights.

    When it loads weights, TorchRec assumes that all column shards of a table are as wide as the first shard.
    """
    cut = [
        table.qualified_name
        for table, sharding in _shardings_in(parameters, sharding_plan)
        if len({*cut_widths(sharding)}) > 1
    ]
    if not cut:
        return None
    return Message(
        "plan-widths-not-loadable",
        f"the plan cuts {number_of(len(cut), 'table')} into column shards of unequal width ({listed(cut)})",
        limit=f"load_state_dict of {TORCHREC} cannot load sharded weights into shards of unequal width",
        remedy="Set rules=Constraints(rules=(TableRule('*', equal_widths=True),)) for shards of equal width",
    )


def unsound_remarks(parameters: Sequence[Parameter], sharding_plan: ShardingPlan) -> Iterator[Message]:
    """Yield a warning for each group of tables that makes TorchRec compute wrong outputs with this plan.

    If a mean-pooled table is row-wise, TorchRec divides outputs of its collection by the lengths, even if other code
    has divided them before. The exception are the outputs of features that other, sum-pooled row-wise tables read.
    Row-wise tables with processed features change the weights of the batch in place.
    """
    with_types = [(table, sharding.sharding_type) for table, sharding in _shardings_in(parameters, sharding_plan)]
    in_rows = [parameter for parameter, kind in with_types if kind in IN_ROWS]
    for path, means in grouped((table for table in in_rows if table.mean_pooled), lambda table: table.path).items():
        shared = {feature for parameter in means for feature in parameter.config.feature_names}
        beside = [
            parameter.name
            for parameter, kind in with_types
            if parameter.path == path
            and (
                kind not in IN_ROWS
                or (not parameter.mean_pooled and shared.intersection(parameter.config.feature_names))
            )
        ]
        if beside:
            yield Message(
                "mean-pooled-tables-row-wise",
                f"mean-pooled tables of {_collection(path)} are row-wise, but other tables there "
                f"({listed(beside)}) are not row-wise, or share features with the mean-pooled tables",
                limit=f"{TORCHREC} then divides some outputs of the collection wrongly",
                remedy="Do one of these: make all tables of the collection row-wise, with different features for "
                "mean-pooled and sum-pooled tables; or make no table of the collection row-wise",
            )
    processed = [parameter.qualified_name for parameter in in_rows if parameter.processed]
    if processed and any(parameter.config is not None and not parameter.processed for parameter, _ in with_types):
        yield Message(
            "processed-tables-row-wise",
            f"tables of a FeatureProcessedEmbeddingBagCollection are row-wise ({listed(processed)})",
            limit=f"{TORCHREC} then writes the processed weights of features into the batch, so other collections that "
            "read the batch compute wrong outputs",
            remedy="Pass a separate batch to the other collections, or set sharding_types of these tables without "
            "row-wise types",
        )


def mixed_remarks(parameters: Sequence[Parameter], sharding_plan: ShardingPlan, num_ranks: int) -> Iterator[Message]:
    """Yield a warning for each collection in which the ranks expect outputs of different data types.
    TorchRec cannot exchange the outputs of a collection in this case.

    The data type of a rank is the widest of its tables' types, and fp32 if the rank has no table. Row-wise and
    data-parallel tables, and codecs (`QCommsConfig`), set one data type for all ranks.
    """
    in_columns = [
        (parameter, sharding)
        for parameter, sharding in _shardings_in(parameters, sharding_plan)
        if parameter.config is not None
        and sharding.sharding_type not in IN_ROWS | COPIED
        and not getattr(parameter.sharder, "qcomm_codecs_registry", None)
    ]
    for path, members in grouped(in_columns, lambda member: member[0].path).items():
        sizes = [
            max(
                (parameter.output_bytes for parameter, sharding in members if rank in (sharding.ranks or ())),
                default=ELEMENT_BYTES,
            )
            for rank in range(num_ranks)
        ]
        if len(set(sizes)) > 1:
            yield Message(
                "outputs-precision-mixed",
                f"outputs of {_collection(path)} have {min(sizes)} bytes per element on some ranks and {max(sizes)} on "
                "others",
                limit=f"{TORCHREC} cannot exchange outputs of different data types",
                remedy="Remove output_dtype, or set the data type of exchanges with QCommsConfig instead",
            )


def _collection(path: str) -> str:
    """Return the name of the collection at a path, for messages; the empty path is the path of the model itself."""
    return f"collection {path!r}" if path else "the model"


def _shardings_in(
    parameters: Sequence[Parameter], sharding_plan: ShardingPlan
) -> list[tuple[Parameter, ParameterSharding]]:
    """Return a list of pairs: each parameter that the plan contains, and the sharding of the parameter in the plan."""
    return [
        (parameter, parameter.sharding_in(sharding_plan)) for parameter in parameters if parameter.is_in(sharding_plan)
    ]


def withheld_remedy(parameters: Iterable[Parameter]) -> str:
    """Return a sentence for an error message that advises the user to allow row-wise sharding of some tables.
    NeuroShard makes these tables row-wise only if constraints name a row-wise type. Return "" if `parameters` has no
    such tables.
    """
    withheld = [
        parameter.qualified_name
        for parameter in parameters
        if not parameter.user_constraints.sharding_types and parameter.withheld_types & IN_ROWS
    ]
    if not withheld:
        return ""
    return (
        f"Or allow row-wise sharding of {listed(withheld)} with sharding_types=['row_wise'], but these tables are "
        f"mean-pooled or have processed features, and {TORCHREC} then computes wrong outputs of other tables"
    )


@dataclass(frozen=True)
class Reports:
    """Passes a finished plan to the planner's callbacks, which can change the plan.
    Then TorchRec's reports (`Stats`) describe the plan.
    """

    stats: Sequence[Stats]
    callbacks: Sequence[Callback]
    debug: bool

    def pass_on(
        self, simulator: Simulator, model: Model, sharding_plan: ShardingPlan, plan: Plan | None, run_time_s: float
    ) -> tuple[ShardingPlan, Plan | None]:
        """Let the callbacks change a plan, let the reports describe the changed plan, and return the changed plan.
        The plan is given and returned in two forms. `sharding_plan` is the plan of the whole model. `plan` is the same
        plan as a NeuroShard `Plan`, but only of the tables that NeuroShard plans; None if there are no such tables.
        `simulator` predicts the cost of `plan`.

        Returns:
            Copies of `sharding_plan` and `plan` with the callbacks' changes; without callbacks, the same two objects.

        Raises:
            UserError: a callback moved shards such that TorchRec would fail or train wrong rows.
        """
        if not self.stats and not self.callbacks:
            return sharding_plan, plan
        request, options = model.request, options_of(simulator, model, sharding_plan, plan)
        for callback in self.callbacks:
            options = callback(options)
        if self.callbacks:
            changed = flagged(to_sharding_plan(options, request.topology), request.pipeline, "callbacks")
            sharding_plan = joined(sharding_plan, changed)
            plan = None if plan is None else from_sharding_plan(plan.task, model.ours_in(sharding_plan))
        for report in self.stats:
            report.log(
                sharding_plan=sharding_plan,
                topology=request.topology,
                batch_size=request.batch_size,
                storage_reservation=request.reservation,
                num_proposals=1,  # one search counts as one proposal
                num_plans=1,
                run_time=run_time_s,
                best_plan=options,
                constraints=dict(request.constraints),
                sharders=list(model.sharders),
                debug=self.debug,
                debug_stats=PlanDebugStats(planner_type="NeuroShardPlanner", timeout_seconds=request.timeout_s),
            )
        if self.stats and plan is not None:
            _log.info(_summary_of(plan, simulator, device_memory(request.topology)))
        return sharding_plan, plan


def options_of(
    simulator: Simulator, model: Model, sharding_plan: ShardingPlan, plan: Plan | None
) -> list[ShardingOption]:
    """Return TorchRec's sharding options for a plan of the whole model, with estimates of memory and of times in ms.
    `sharding_plan` is the plan of the whole model. `plan` is the same plan, but only of the tables that NeuroShard
    plans; None if there are no such tables. TorchRec estimates the memory. NeuroShard's simulator predicts the times of
    the tables in `plan`, and TorchRec estimates the times of all other parameters.

    The options of NeuroShard's `plan` come first, with the lookups of the plan's tables.
    """
    batch_size, topology, constraints = (
        model.request.batch_size,
        model.request.topology,
        dict(model.request.constraints),
    )
    options = sharding_options(sharding_plan, model.division.parameters, batch_size, model.left)
    ours, others = options[: len(model.tables)], options[len(model.tables) :]
    tables = () if plan is None else plan.task.tables
    for option, parameter, table in zip(ours, model.tables.values(), tables, strict=True):
        option.input_lengths = parameter.reported_lookups(table, batch_size)
    estimate(storage_estimator(topology, constraints, model.request.pipeline), options, model.sharders)
    perf = EmbeddingPerfEstimatorFactory.create(DEFAULT_PERF_ESTIMATOR, topology=topology, constraints=constraints)
    estimate(perf, others, model.sharders)
    if plan is not None:
        _set_perf(ours, plan, simulator, topology.bwd_compute_multiplier)
    return options


def _summary_of(plan: Plan, simulator: Simulator, capacity: Sequence[int]) -> str:
    """Return a summary of a plan, as text: imbalance, memory used, and the name of the cost models.
    TorchRec's reports have no columns for these values.

    `capacity` has the bytes of each device, (D,). Memory used counts tables, reservations and the tables that TorchRec
    planned.
    """
    cost, name = simulator.cost(plan.task, plan), simulator.models.label
    device_ms = cost.device_ms
    imbalance = float(device_ms.max() / device_ms.mean()) if device_ms.any() else 1.0
    each = zip(plan.device_bytes, plan.task.topology.device_memory, capacity, strict=True)
    full = [(held + has - left) / has for held, left, has in each]
    waits = [f"; host: {text}" for text in (described_wait(cost.waited_ms),) if text is not None]
    return (
        f"NeuroShard's plan: imbalance {imbalance:.2f} (slowest device / mean of devices), memory {min(full):.0%} to "
        f"{max(full):.0%} full including reservations, costs predicted by {name} "
        f"(compute of both passes together, split as TorchRec splits it){''.join(waits)}"
    )


def _set_perf(options: Sequence[ShardingOption], plan: Plan, simulator: Simulator, multiplier: float) -> None:
    """Set the `perf` (predicted times) of all shards in `options`.
    The predicted times of each device are divided between the shards of the device.

    Compute is divided in proportion to the predicted time of each shard alone, communication in proportion to the
    columns that samples get from each shard. So the sum over a device is the predicted time of the device. The models
    predict compute of both passes together; as in TorchRec, `multiplier` is the ratio of backward to forward compute.
    The input dist, if the models predict it, is not part of the sum. `options` must be in the order of the plan's
    tables.
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
    """Divide the ms of each device between the shards of the device, and return the ms of each of S shards, (S,).
    `total_ms` (D,) has the ms of each of D devices, and `devices` (S,) has the device of each shard. Shards of the same
    device get ms in proportion to the weights of the shards, `weight` (S,).

    If all weights of a device are 0, its total is divided equally.
    """
    weight = np.maximum(weight, 0) + 1e-12
    return total_ms[devices] * weight / np.bincount(devices, weight, minlength=len(total_ms))[devices]


def _of_both_ways(compute_ms: float, multiplier: float) -> tuple[float, float]:
    """Divide `compute_ms` between the forward pass and the backward pass, and return both times in ms.
    As in TorchRec, the backward pass takes `multiplier` times as long as the forward pass.
    """
    forward = compute_ms / (1 + multiplier)
    return forward, compute_ms - forward
