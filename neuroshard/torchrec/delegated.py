"""What isn't planned here: planned by TorchRec's own planner, or taken from a plan that the user gives."""

from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any

from torch import nn
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ModuleSharder, ShardingPlan, ShardingType

from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.torchrec.asked import Asked
from neuroshard.torchrec.kernels import DENSE
from neuroshard.torchrec.modules import listed
from neuroshard.torchrec.options import device_bytes, estimate_storage, memory_of_tables, sharding_options
from neuroshard.torchrec.parameters import WHOLE, Parameter
from neuroshard.torchrec.remarks import without_copies_remarks


def delegate(parameters: Sequence[Parameter], module: nn.Module, left: TorchRecTopology, asked: Asked) -> ShardingPlan:
    """TorchRec's plan for some parameters of a model, on devices with the memory that is left to them.

    Raises:
        InfeasibleError: TorchRec finds none.
        UserError: TorchRec can't plan them.
    """
    parameters = [_copied(parameter) if parameter.unlike_kernels else parameter for parameter in parameters]
    for parameter in parameters:
        _check_offered(parameter, left.compute_device)
    if not parameters:
        return ShardingPlan({})
    planner = EmbeddingShardingPlanner(
        topology=left,
        batch_size=asked.batch_size,
        storage_reservation=FixedPercentageStorageReservation(0.0),  # it is taken off already
        stats=[],
        constraints={**asked.constraints, **{it.name: it.constraints for it in parameters if it.constraints}},
        debug=False,
        timeout_seconds=asked.timeout_s,
    )
    try:
        with without_copies_remarks():
            found: ShardingPlan = planner.plan(module, _only(parameters))
    except PlannerError as error:
        raise InfeasibleError(f"{_whose(parameters)}: {str(error).splitlines()[0]}") from error
    except (RuntimeError, ValueError, AssertionError) as error:
        raise UserError(f"{_whose(parameters)}: {error}") from error
    return found


def _copied(parameter: Parameter) -> Parameter:
    """A table that only TorchRec's dense kernel takes, with constraints that leave it nothing else.

    Raises:
        UserError: constraints leave it no copies; TorchRec would plan it, and fail when the model is sharded.
    """
    said, dim = parameter.said, parameter.config.embedding_dim
    types, kernels = [ShardingType.DATA_PARALLEL.value], [DENSE]
    for word, asked, only in (
        ("sharding_types", said.sharding_types, types),
        ("compute_kernels", said.compute_kernels, kernels),
    ):
        if asked and not set(asked).intersection(only):
            raise UserError(
                f"table {parameter.qualified_name!r} has {dim} columns, which TorchRec trains in copies only, and "
                f"{word}={asked}; allow {only[0]!r}, or give it {-(-dim // DIM_MULTIPLE) * DIM_MULTIPLE} columns"
            )
    return replace(parameter, constraints=replace(said, sharding_types=types, compute_kernels=kernels))


def _whose(parameters: Sequence[Parameter]) -> str:
    names = listed([parameter.qualified_name for parameter in parameters])
    return f"TorchRec's planner, asked for {len(parameters)} parameter(s) ({names})"


def _check_offered(parameter: Parameter, device: str) -> None:
    """Check that a parameter's sharder has something on such devices of what its constraints leave.

    Raises:
        UserError: it hasn't; TorchRec's planner would say so without what to do.
    """
    given, sharder = parameter.said, parameter.sharder
    offered = list(dict.fromkeys(sharder.sharding_types(device)))
    types = [kind for kind in offered if not given.sharding_types or kind in given.sharding_types]
    kernels = {kind: sharder.compute_kernels(kind, device) for kind in types}
    what = f"table {parameter.qualified_name!r} is left to TorchRec's planner by its"
    if not types:
        also = f"; with {WHOLE!r} besides it is planned here" if parameter.forms else ""
        raise UserError(
            f"{what} sharding_types={given.sharding_types}, and {type(sharder).__name__} has only {', '.join(offered)} "
            f"on {device}; allow one of them{also}"
        )
    asked = given.compute_kernels
    if asked and not any(set(asked).intersection(its) for its in kernels.values()):
        known = ", ".join(dict.fromkeys(kernel for its in kernels.values() for kernel in its))
        raise UserError(
            f"{what} compute_kernels={asked}, and {type(sharder).__name__} has only {known} on {device} for "
            f"{', '.join(types)}; allow one of them"
        )


def _only(parameters: Sequence[Parameter]) -> list[ModuleSharder[nn.Module]]:
    """The parameters' sharders, as if there were no others to shard."""
    wanted = {(id(parameter.module), parameter.name) for parameter in parameters}
    sharders = {id(parameter.sharder): parameter.sharder for parameter in parameters}
    return [_limited(sharder, wanted) for sharder in sharders.values()]


def _limited(sharder: Any, wanted: set[tuple[int, str]]) -> ModuleSharder[nn.Module]:
    """A copy, because TorchRec asks sharders what class they are of."""

    def shardable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
        found = sharder.shardable_parameters(module).items()
        return {name: weights for name, weights in found if (id(module), name) in wanted}

    limited: Any = copy(sharder)
    limited.shardable_parameters = shardable_parameters
    found: ModuleSharder[nn.Module] = limited
    return found


def joined(*plans: ShardingPlan) -> ShardingPlan:
    """One plan of all; where several have a module, each has other parameters of it."""
    found: dict[str, Any] = {}
    for plan in plans:
        for path, module_plan in plan.plan.items():
            if isinstance(module_plan, dict):
                found.setdefault(path, EmbeddingModuleShardingPlan()).update(module_plan)
            else:  # of something else than tables: kept as it is
                found[path] = module_plan
    return ShardingPlan(found)


def without(
    topology: TorchRecTopology, sharding_plan: ShardingPlan, parameters: Sequence[Parameter], asked: Asked
) -> TorchRecTopology:
    """The devices with the memory that a plan's parameters leave by TorchRec's estimate: a byte of each at least."""
    if not parameters:
        return topology
    options = sharding_options(sharding_plan, parameters, asked.batch_size, topology)
    sharders = list({id(parameter.sharder): parameter.sharder for parameter in parameters}.values())
    estimate_storage(options, sharders, topology, asked.constraints)
    left, memory = deepcopy(topology), memory_of_tables(topology)
    for device, taken in zip(left.devices, device_bytes(options, topology), strict=True):
        setattr(device.storage, memory, max(getattr(device.storage, memory) - taken, 1))
    return left
