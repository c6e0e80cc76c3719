"""A planner for TorchRec's DistributedModelParallel that searches with our cost models."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import nn
from torchrec.distributed.collective_utils import invoke_on_rank_and_broadcast_result
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder, ShardingPlan, ShardingPlanner

from neuroshard.errors import UserError
from neuroshard.models import CostModels
from neuroshard.plans.plan import Plan
from neuroshard.searcher import Searcher
from neuroshard.searching import searcher_of
from neuroshard.simulator import Simulator
from neuroshard.tasks.constraints import Constraints
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task, Topology
from neuroshard.threads import blas_threads
from neuroshard.torchrec.bags import BagTable, find_bags, form_rules
from neuroshard.torchrec.export import parameter_name, to_sharding_plan

_log = logging.getLogger(__name__)
_BATCH_SIZE = 512  # TorchRec's default
_RESERVED_SHARE = 0.15  # as TorchRec's default reservation
_DEFAULT_MODELS = {"cpu": "cpu", "cuda": "roofline:h100"}
# Optimizers by the names that TorchRec, torch and FBGEMM give them; any other is counted as the largest.
_OPTIMIZERS = {
    "sgd": "sgd",
    "exact_sgd": "sgd",
    "rowwiseadagrad": "rowwise_adagrad",
    "row_wise_adagrad": "rowwise_adagrad",
    "exact_row_wise_adagrad": "rowwise_adagrad",
}
_LARGEST_OPTIMIZER = "adam"
_PASSED_ON = (
    "cache_params",
    "enforce_hbm",
    "stochastic_rounding",
    "bounds_check_mode",
    "output_dtype",
    "key_value_params",
)


class NeuroShardPlanner(ShardingPlanner):
    """Drop-in for TorchRec's EmbeddingShardingPlanner: the same arguments where they mean the same.

    Args:
        topology: TorchRec's; None makes the one of the current process group, as TorchRec does.
        batch_size: samples of one device per step; None is TorchRec's default, 512.
        models: cost models, or their name or path; None takes "cpu" for CPUs, "roofline:h100" (a datasheet) for GPUs.
        constraints: TorchRec's, by name of the table: sharding types, min_partition, pooling factors, and what is
            passed on to the kernels. Rows and copies are looked at for tables whose sharding types name row_wise or
            data_parallel.
        storage_reservation: TorchRec's; memory left to the rest of the model. None leaves it 15% of every GPU.
        rules: ours, for what TorchRec has no word for: devices, tables together or apart, pinned shards.
        memory: what counts besides weights; None counts one batch's buffers and the optimizer that the module or the
            sharders name.
        searcher: a search method, or the name of one in `conf/searcher/`, whose config's settings `settings` override.
    """

    def __init__(
        self,
        topology: TorchRecTopology | None = None,
        batch_size: int | None = None,
        models: CostModels | str | None = None,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        storage_reservation: StorageReservation | None = None,
        rules: Constraints | None = None,
        memory: MemoryUse | None = None,
        searcher: Searcher | str = "neuroshard",
        **settings: Any,
    ) -> None:
        self._topology = topology or _topology_of_group()
        self._batch_size = batch_size or _BATCH_SIZE
        models = models or _default_models(self._topology.compute_device)
        self._simulator = Simulator(CostModels.load(models) if isinstance(models, str) else models)
        self._constraints = dict(constraints or {})
        self._reservation = storage_reservation or FixedPercentageStorageReservation(_RESERVED_SHARE)
        self._rules = rules or Constraints()
        self._memory = memory
        self._searcher = searcher_of(searcher, **settings)

    def plan(self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]] | None = None) -> ShardingPlan:
        """The plan for `module`, which may be on the meta device; modules without a sharder are left out.

        Args:
            module: holds the collections of tables.
            sharders: None takes TorchRec's default ones.

        Raises:
            UserError: the tables can't be planned, or the constraints contradict each other.
            InfeasibleError: no plan fits in memory.
        """
        sharders = sharders or get_default_sharders()
        bags = _named(find_bags(module, sharders, self._constraints))
        if not bags:
            return ShardingPlan({})
        return self._exported(self._search(module, sharders, bags), bags)

    def search(self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]] | None = None) -> Plan:
        """As `plan`, in our form: to be saved, costed, evaluated."""
        sharders = sharders or get_default_sharders()
        return self._search(module, sharders, _named(find_bags(module, sharders, self._constraints)))

    def collective_plan(
        self,
        module: nn.Module,
        sharders: list[ModuleSharder[nn.Module]] | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """The plan that rank 0 of the process group finds, on all of its ranks.

        Raises:
            UserError: rank 0 found none; on every rank.
        """
        group = pg or dist.GroupMember.WORLD
        if group is None:
            raise UserError("no process group; call torch.distributed.init_process_group() first, or use plan()")
        found = invoke_on_rank_and_broadcast_result(group, 0, self._plan_or_error, module, sharders)
        if isinstance(found, UserError):
            raise found
        planned: ShardingPlan = found
        return planned

    def _plan_or_error(
        self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]] | None
    ) -> ShardingPlan | UserError:
        """An error is an answer too: the other ranks wait for one."""
        try:
            return self.plan(module, sharders)
        except UserError as error:
            return error

    def _search(self, module: nn.Module, sharders: Sequence[Any], bags: Mapping[str, BagTable]) -> Plan:
        task = self._task(module, sharders, bags)
        with blas_threads(1):
            found = self._searcher.find(task, self._simulator)
        plan = found.plan
        cost = self._simulator.cost(task, plan)
        for warning in filter(None, (found.warning, *self._simulator.warnings(plan))):
            _log.warning(warning)
        _log.info("%d tables on %d devices:\n%s", len(task.tables), task.topology.num_devices, cost)
        return plan

    def _task(self, module: nn.Module, sharders: Sequence[Any], bags: Mapping[str, BagTable]) -> Task:
        devices = self._topology.world_size
        tables = tuple(bag.table(name, self._batch_size, devices) for name, bag in bags.items())
        rules = tuple(rule for name, bag in bags.items() if (rule := bag.rule(name)) is not None)
        return Task(
            tables,
            Topology(
                devices,
                self._device_memory(module, sharders),
                devices_per_host=self._topology.local_world_size,
            ),
            self._batch_size * devices,
            self._memory or MemoryUse(_optimizer(bags.values()), batches_in_flight=1),
            replace(self._rules, rules=self._rules.rules + rules + form_rules(bags)),
        )

    def _device_memory(self, module: nn.Module, sharders: Sequence[Any]) -> tuple[int, ...]:
        """(D,) bytes that the reservation leaves."""
        left = self._reservation.reserve(
            topology=self._topology,
            batch_size=self._batch_size,
            module=module,
            sharders=list(sharders),
            constraints=self._constraints,
        )
        on_cpu = self._topology.compute_device == "cpu"
        return tuple(device.storage.ddr if on_cpu else device.storage.hbm for device in left.devices)

    def _exported(self, plan: Plan, bags: Mapping[str, BagTable]) -> ShardingPlan:
        modules = {name: bag.path for name, bag in bags.items()}
        exported = to_sharding_plan(plan, modules, self._topology.compute_device, self._topology.local_world_size)
        for name, bag in bags.items():
            if bag.constraints is not None:
                parameter: Any = exported.plan[bag.path][parameter_name(name, bag.path)]
                for field in _PASSED_ON:
                    setattr(parameter, field, getattr(bag.constraints, field))
        return exported


def _named(bags: Sequence[BagTable]) -> dict[str, BagTable]:
    """By the name of the table; by path and name where several collections have one of that name."""
    count = Counter(bag.name for bag in bags)
    return {bag.name if count[bag.name] == 1 else bag.qualified_name: bag for bag in bags}


def _topology_of_group() -> TorchRecTopology:
    if not dist.is_initialized():
        raise UserError("no process group to take the topology from; give topology=..., or init_process_group() first")
    device = "cuda" if "nccl" in dist.get_backend() else "cpu"
    return TorchRecTopology(dist.get_world_size(), device, local_world_size=get_local_size(), created_by_factory=True)


def _default_models(compute_device: str) -> str:
    if compute_device not in _DEFAULT_MODELS:
        raise UserError(f"no cost models for compute device {compute_device!r}; give models=...")
    name = _DEFAULT_MODELS[compute_device]
    if name.startswith("roofline"):
        _log.warning("costs are computed from a datasheet (%s); give models=... that were measured on your GPUs", name)
    return name


def _optimizer(bags: Any) -> str:
    """The optimizer that takes the most memory among the tables'."""
    found = {_optimizer_of(bag) for bag in bags}
    return max(found, key=("sgd", "rowwise_adagrad", _LARGEST_OPTIMIZER).index)


def _optimizer_of(bag: BagTable) -> str:
    classes = getattr(bag.parameter, "_optimizer_classes", [])
    given = classes[0].__name__ if classes else (bag.sharder.fused_params or {}).get("optimizer", "sgd")
    name = str(getattr(given, "value", given)).lower()
    return _OPTIMIZERS.get(name, _LARGEST_OPTIMIZER)
