"""What isn't planned here: planned by TorchRec's own planner, or taken from a plan that the user gives."""

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from typing import Any

from torch import nn
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ModuleSharder, ShardingPlan

from neuroshard.errors import InfeasibleError, UserError
from neuroshard.torchrec.modules import Parameter
from neuroshard.torchrec.options import device_bytes, estimate_storage, sharding_options


def delegate(
    parameters: Sequence[Parameter],
    module: nn.Module,
    topology: TorchRecTopology,
    batch_size: int,
    constraints: Mapping[str, ParameterConstraints],
) -> ShardingPlan:
    """TorchRec's plan for some parameters of a model; `topology` has the memory that is left to them.

    Raises:
        InfeasibleError: TorchRec finds none.
        UserError: TorchRec can't plan them.
    """
    if not parameters:
        return ShardingPlan({})
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        storage_reservation=FixedPercentageStorageReservation(0.0),  # it is taken off already
        stats=[],
        constraints=dict(constraints),
        debug=False,
    )
    try:
        found: ShardingPlan = planner.plan(module, _only(parameters))
    except PlannerError as error:
        raise InfeasibleError(f"{_whose(parameters)}: {str(error).splitlines()[0]}") from error
    except (RuntimeError, ValueError, AssertionError) as error:
        raise UserError(f"{_whose(parameters)}: {error}") from error
    return found


def _whose(parameters: Sequence[Parameter]) -> str:
    return f"TorchRec's planner, asked for {len(parameters)} parameter(s) such as {parameters[0].qualified_name!r}"


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
    topology: TorchRecTopology,
    sharding_plan: ShardingPlan,
    parameters: Sequence[Parameter],
    batch_size: int,
    constraints: Mapping[str, ParameterConstraints],
) -> TorchRecTopology:
    """The devices with the memory that a plan's parameters leave by TorchRec's estimate: a byte of each at least."""
    if not parameters:
        return topology
    options = sharding_options(sharding_plan, parameters, batch_size, topology, constraints)
    sharders = list({id(parameter.sharder): parameter.sharder for parameter in parameters}.values())
    estimate_storage(options, sharders, topology, constraints)
    left = deepcopy(topology)
    for device, taken in zip(left.devices, device_bytes(options, topology), strict=True):
        if topology.compute_device == "cpu":
            device.storage.ddr = max(device.storage.ddr - taken, 1)
        else:
            device.storage.hbm = max(device.storage.hbm - taken, 1)
    return left
