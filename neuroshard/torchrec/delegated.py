"""Parameters that NeuroShard does not plan: TorchRec's own planner plans them, or a plan from the user fixes them."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import replace
from math import prod
from typing import Any

from torch import nn
from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, ShardEstimator, Storage
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ModuleSharder, ShardingPlan, ShardingType

from neuroshard.plumbing.errors import InfeasibleError, UserError, first_line, raised_by
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import DIM_MULTIPLE, MAX_SHARD_DIM, padded
from neuroshard.torchrec.kernels import COPIED, DENSE, PREFETCH, PREFETCHED, SPLIT, WHOLE, widest_shard
from neuroshard.torchrec.modules import listed
from neuroshard.torchrec.options import (
    estimate,
    memory_of_tables,
    sharding_options,
    storage_estimator,
    storage_taken,
)
from neuroshard.torchrec.parameters import ANY_DEVICE, Parameter
from neuroshard.torchrec.planning_request import PlanningRequest
from neuroshard.torchrec.prefetching import flagged, flagged_constraint

_OF_COPIES = "Sharding spec not found for "  # the first words of TorchRec's warning


@contextmanager
def without_data_parallel_remarks() -> Iterator[None]:
    """Suppress one warning of TorchRec's planner inside a `with` block: that a data-parallel table has no shards.

    The warning is useless, because no data-parallel table has shards. The root logger emits this warning, so the level
    of a logger of TorchRec cannot be set instead.
    """
    root = logging.getLogger()
    root.addFilter(_is_other)
    try:
        yield
    finally:
        root.removeFilter(_is_other)


def _is_other(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_OF_COPIES)


def delegate(
    parameters: Sequence[Parameter], module: nn.Module, left: TorchRecTopology, request: PlanningRequest
) -> ShardingPlan:
    """Let TorchRec's planner plan the given parameters of a model, and return TorchRec's plan.
    In the topology `left`, each device has only the memory that is still free.

    Raises:
        InfeasibleError: TorchRec finds no plan.
        UserError: TorchRec cannot plan the parameters.
    """
    parameters = [_as_served(parameter, left, request.data_parallel) for parameter in parameters]
    if request.pipeline != PREFETCH:
        return _planned(parameters, module, left, request)
    ahead = [replace(table, constraints=flagged_constraint(table.constraints)) for table in parameters]
    sharding_plan = flagged(_planned(ahead, module, left, request), request.pipeline, "TorchRec's plan")
    for parameter in parameters:
        sharding = parameter.sharding_in(sharding_plan)
        if sharding.compute_kernel not in PREFETCHED:
            sharding.cache_params = parameter.user_constraints.cache_params
    return sharding_plan


def _planned(
    parameters: Sequence[Parameter], module: nn.Module, left: TorchRecTopology, request: PlanningRequest
) -> ShardingPlan:
    """Let TorchRec's planner plan the given parameters, and return TorchRec's plan.
    The constraints of the parameters must allow only sharding types that TorchRec can train.
    """
    for parameter in parameters:
        _check_offered(parameter, left.compute_device)
    if not parameters:
        return ShardingPlan({})
    first = {table.name: table.constraints for table in reversed(parameters)}
    # TorchRec identifies parameters by name alone.
    if others := [table for table in parameters if table.constraints != first[table.name]]:
        agreeing = [table for table in parameters if table.constraints == first[table.name]]
        theirs = _planned(agreeing, module, left, request)
        return joined(theirs, _planned(others, module, without(left, theirs, agreeing, request), request))
    constraints = {
        **request.constraints,
        **{table.name: table.constraints for table in parameters if table.constraints},
    }
    planner = EmbeddingShardingPlanner(
        topology=left,
        batch_size=request.batch_size,
        enumerator=EmbeddingEnumerator(left, request.batch_size, constraints, _estimators(left, constraints, request)),
        storage_reservation=FixedPercentageStorageReservation(0.0),  # the reservation is subtracted already
        stats=[],
        constraints=constraints,
        debug=False,
        timeout_seconds=request.timeout_s,
    )
    try:
        with without_data_parallel_remarks():
            plan = planner.plan(module, _only(parameters))
    except PlannerError as error:
        raise InfeasibleError(
            "delegated-no-plan",
            f"TorchRec's planner finds no plan for {_described(parameters)}",
            limit=first_line(error),
            remedy="Give the devices more memory, or allow more sharding types and compute kernels in constraints",
        ) from error
    except (RuntimeError, ValueError, AssertionError) as error:
        if not raised_by(error, "torchrec"):
            raise
        raise UserError(
            "delegated-planner-failed",
            f"TorchRec's planner cannot plan {_described(parameters)}",
            limit=str(error),
            remedy="Change the constraints of these parameters, or pass a ShardingPlan of them as given=",
        ) from error
    for parameter in parameters:
        _check_width(parameter, plan)
    return plan


def _check_width(parameter: Parameter, plan: ShardingPlan) -> None:
    """Raise UserError if TorchRec's plan gives the parameter a shard that is wider than FBGEMM's kernels support."""
    if parameter.config is None:
        return
    dim, sharding = int(parameter.config.embedding_dim), parameter.sharding_in(plan)
    widest = widest_shard(sharding, dim)
    if widest <= MAX_SHARD_DIM:
        return
    remedy = (
        f"Set sharding_types=[{SPLIT!r}] and min_partition={MAX_SHARD_DIM} in constraints of the table, or give the "
        f"table at most {MAX_SHARD_DIM} columns"
    )
    if parameter.unlike_kernels:
        remedy = (
            f"Give the table {padded(dim)} columns, so that a plan can cut the table, or at most {MAX_SHARD_DIM} "
            "columns"
        )
    raise UserError(
        "delegated-shard-too-wide",
        f"table {parameter.qualified_name!r} has {dim} columns, and TorchRec's planner makes the table "
        f"{sharding.sharding_type} with shards of up to {widest} columns",
        limit=f"FBGEMM's kernels take at most {MAX_SHARD_DIM} columns",
        remedy=remedy,
    )


def _estimators(
    topology: TorchRecTopology, constraints: dict[str, ParameterConstraints], request: PlanningRequest
) -> list[ShardEstimator]:
    """Return TorchRec's default estimators of time and memory.
    The estimate of memory includes the buffers that the training pipeline of the job needs.
    """
    perf = EmbeddingPerfEstimatorFactory.create(DEFAULT_PERF_ESTIMATOR, topology=topology, constraints=constraints)
    return [perf, storage_estimator(topology, constraints, request.pipeline)]


def _as_served(parameter: Parameter, left: TorchRecTopology, data_parallel: bool) -> Parameter:
    """Return the parameter with constraints that allow only sharding types that TorchRec can train.
    The topology `left` says on which type and number of devices the job runs.

    TorchRec's planner could choose other types. Unless `data_parallel` is true, the type data_parallel is also left out
    if the constraints do not name it and another type is left.

    Raises:
        UserError: the constraints allow no such type; TorchRec would plan the parameter, but fail when it shards the
            model.
    """
    device, num_devices = left.compute_device, int(left.world_size)
    failing = parameter.failing_types(device, num_devices)
    if parameter.unlike_kernels:
        dim, types = parameter.config.embedding_dim, [ShardingType.DATA_PARALLEL.value]
        if failing >= COPIED:
            raise parameter.failing_error(types, num_devices)
        why = (
            f"TorchRec trains a table of {dim} columns (not a multiple of {DIM_MULTIPLE}) only as data_parallel, "
            f"with the compute kernel {DENSE!r}"
        )
        remedy = f", or give the table {padded(dim)} columns"
        return _limited_to(parameter, why, remedy, sharding_types=types, compute_kernels=[DENSE])
    if parameter.is_virtual and device != "cpu":  # on CPUs a virtual table is an ordinary table
        why = "TorchRec shards a virtual table only row_wise, in whole buckets of rows on all devices"
        return _limited_to(parameter, why, sharding_types=[ShardingType.ROW_WISE.value])
    withheld = frozenset[str]() if parameter.user_constraints.sharding_types else parameter.withheld_types
    if not (data_parallel or parameter.names_data_parallel):
        withheld |= COPIED
    offered = _offered(parameter, device)
    trained = [kind for kind in offered if kind not in failing]
    if offered and not trained:
        raise parameter.failing_error(offered, num_devices)
    types = [kind for kind in trained if kind not in withheld] or trained
    return parameter if types == offered else _limited_to(parameter, sharding_types=types)


def _offered(parameter: Parameter, device: str) -> list[str]:
    """Return the sharding types that a parameter can have on devices of the type `device`.
    Both the constraints and the sharder of the parameter must allow the sharding type.
    """
    constraints, sharder = parameter.user_constraints, parameter.sharder
    return [
        sharding_type
        for sharding_type in dict.fromkeys(sharder.sharding_types(device))
        if (not constraints.sharding_types or sharding_type in constraints.sharding_types)
        and (
            not constraints.compute_kernels
            or {*constraints.compute_kernels}.intersection(sharder.compute_kernels(sharding_type, device))
        )
    ]


def _limited_to(parameter: Parameter, why: str = "", or_else: str = "", **limits: list[str]) -> Parameter:
    """Return a copy of the parameter with narrower constraints. Each keyword of `limits` is a field of the constraints,
    and lists the only values that the copy allows. For example, sharding_types=["row_wise"] allows only row-wise
    sharding.

    Raise UserError if the user's constraints already list values for a field, and none of these values is in `limits`.
    The texts `why` and `or_else` become parts of the error.
    """
    for word, only in limits.items():
        values = getattr(parameter.user_constraints, word)
        if values and not set(values).intersection(only):
            raise UserError(
                "delegated-constraints-untrainable",
                f"{word} is {values}",
                where=f"constraints of table {parameter.qualified_name!r}",
                limit=why,
                remedy=f"Add {only[0]!r} to {word}{or_else}",
            )
    return replace(parameter, constraints=replace(parameter.user_constraints, **limits))


def _described(parameters: Sequence[Parameter]) -> str:
    """Return the number and the names of the parameters, as text."""
    names = listed([parameter.qualified_name for parameter in parameters])
    return f"{number_of(len(parameters), 'parameter')} ({names})"


def _check_offered(parameter: Parameter, device: str) -> None:
    """Raise UserError if no sharding type can be used for a parameter on this type of device.
    A sharding type can be used if the constraints of the parameter allow it and the parameter's sharder supports it.
    """
    constraints, sharder = parameter.user_constraints, parameter.sharder
    if _offered(parameter, device):
        return
    has = list(dict.fromkeys(sharder.sharding_types(device)))
    types = [kind for kind in has if not constraints.sharding_types or kind in constraints.sharding_types]
    table, sharder_name = f"table {parameter.qualified_name!r}", type(sharder).__name__
    if not has:
        elsewhere = list(dict.fromkeys(sharder.sharding_types(ANY_DEVICE)))
        remedy = f"Remove {sharder_name} from sharders= to leave the module unsharded"
        if elsewhere:
            remedy += (
                f", or pass a topology of {ANY_DEVICE} devices, on which {sharder_name} "
                f"has the sharding types {', '.join(elsewhere)}"
            )
        raise UserError(
            "delegated-sharder-without-types",
            f"{sharder_name} cannot shard {table} on {device}",
            limit="the sharder has no sharding type on this type of device",
            remedy=remedy,
        )
    if not types:
        also = f", or add {WHOLE!r} to have NeuroShard plan the table" if parameter.forms else ""
        raise UserError(
            "delegated-types-unavailable",
            f"TorchRec's planner must plan {table}, but cannot use sharding_types={constraints.sharding_types}",
            limit=f"on {device} {sharder_name} has only the sharding types {', '.join(has)}",
            remedy=f"Add one of these sharding types to sharding_types{also}",
        )
    kernels = dict.fromkeys(kernel for kind in types for kernel in sharder.compute_kernels(kind, device))
    raise UserError(
        "delegated-kernels-unavailable",
        f"TorchRec's planner must plan {table}, but cannot use compute_kernels={constraints.compute_kernels}",
        limit=f"on {device} {sharder_name} has only the compute kernels {', '.join(kernels)} for the sharding types "
        f"{', '.join(types)}",
        remedy="Add one of these compute kernels to compute_kernels",
    )


def _only(parameters: Sequence[Parameter]) -> list[ModuleSharder[nn.Module]]:
    """Return copies of the sharders of the given parameters; the copies can shard only the given parameters."""
    wanted = {(id(parameter.module), parameter.name) for parameter in parameters}
    sharders = {id(parameter.sharder): parameter.sharder for parameter in parameters}
    return [_limited(sharder, wanted) for sharder in sharders.values()]


def _limited(sharder: Any, wanted: set[tuple[int, str]]) -> ModuleSharder[nn.Module]:
    """Return a copy of the sharder; the copy can shard only the parameters in `wanted`.

    The copy has the same class, because TorchRec tests the classes of sharders.
    """

    def shardable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters of a module that are in `wanted` and that `sharder` can shard, by name. In the copy of
        `sharder`, this function replaces the method of the same name.
        """
        parameters = sharder.shardable_parameters(module).items()
        return {name: weights for name, weights in parameters if (id(module), name) in wanted}

    limited = copy(sharder)
    limited.shardable_parameters = shardable_parameters
    return limited


def joined(*plans: ShardingPlan) -> ShardingPlan:
    """Return one plan that joins all given plans.
    Plans of the same module must have different parameters of that module.
    """
    modules: dict[str, Any] = {}
    for plan in plans:
        for path, module_plan in plan.plan.items():
            if isinstance(module_plan, dict):
                modules.setdefault(path, EmbeddingModuleShardingPlan()).update(module_plan)
            else:  # a module without tables: its plan is kept as it is
                modules[path] = module_plan
    return ShardingPlan(modules)


def without(
    topology: TorchRecTopology, sharding_plan: ShardingPlan, parameters: Sequence[Parameter], request: PlanningRequest
) -> TorchRecTopology:
    """Return a copy of a topology with the memory that is left after the given parameters of a plan are placed.
    Every device keeps at least one byte.

    The subtracted memory is TorchRec's estimate plus bytes that TorchRec does not count: second caches of key-value
    kernels in host memory, gradients and optimizer state of data-parallel parameters, and other tensors of modules,
    such as the ids of managed collision.
    """
    if not parameters:
        return topology
    options = sharding_options(sharding_plan, parameters, request.batch_size, topology)
    sharders = list({id(parameter.sharder): parameter.sharder for parameter in parameters}.values())
    estimate(storage_estimator(topology, dict(request.constraints), request.pipeline), options, sharders)
    left, memory = deepcopy(topology), memory_of_tables(topology)
    memory_use = request.memory_use(parameters)
    beside = untrained_bytes(parameters) // topology.world_size + sum(
        memory_use.dense_bytes(parameter.weights.shape[0], prod(parameter.weights.shape[1:]))
        for parameter in parameters
        if parameter.sharding_in(sharding_plan).sharding_type in COPIED
    )
    for device, taken in zip(left.devices, storage_taken(options, topology), strict=True):
        free = device.storage - taken
        device.storage = Storage(max(free.hbm, 0), max(free.ddr, 0), max(free.ssd, 0))
        setattr(device.storage, memory, max(getattr(free, memory) - beside, 1))
    return left


def untrained_bytes(parameters: Sequence[Parameter]) -> int:
    """Return the total bytes of tensors that are neither trained nor weights of a table. Only tensors in the modules of
    the given parameters count. An example is the tensor of ids in a module for managed collision.

    TorchRec shards these tensors row-wise.
    """
    total = 0
    for module, sharder in {
        id(parameter.module): (parameter.module, parameter.sharder) for parameter in parameters
    }.values():
        tables = {id(weights) for weights in sharder.shardable_parameters(module).values()}
        untrained = (
            weights for weights in module.parameters() if not weights.requires_grad and id(weights) not in tables
        )
        total += sum(tensor.numel() * tensor.element_size() for tensor in (*module.buffers(), *untrained))
    return total
