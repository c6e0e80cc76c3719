"""The task that a model's tables make, on TorchRec's devices."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from glob import escape
from typing import Any

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task, Topology
from neuroshard.torchrec.bags import BagTable, form_rules
from neuroshard.torchrec.kernels import KERNELS
from neuroshard.torchrec.known_tables import warn_of_guesses, with_statistics

# Optimizers by the names that TorchRec, torch and FBGEMM give them; any other is counted as the largest.
_OPTIMIZERS = {
    "sgd": "sgd",
    "exact_sgd": "sgd",
    "rowwiseadagrad": "rowwise_adagrad",
    "row_wise_adagrad": "rowwise_adagrad",
    "exact_row_wise_adagrad": "rowwise_adagrad",
}
_LARGEST_OPTIMIZER = "adam"


@dataclass(frozen=True)
class Asked:
    """What is asked of every plan, whatever the model.

    Attributes:
        batch_size: samples of one device per step.
        rules: ours, besides TorchRec's constraints.
        memory: what counts besides weights; None counts one batch's buffers and the optimizer of the tables.
        known: statistics of tables, by name.
    """

    batch_size: int
    rules: Constraints = field(default_factory=Constraints)
    memory: MemoryUse | None = None
    known: Mapping[str, Table] = field(default_factory=dict)

    def task(self, bags: Mapping[str, BagTable], left: TorchRecTopology) -> Task:
        """Of the tables by name, on devices with the memory that is left to them.

        Raises:
            UserError: there is none, or the constraints contradict each other or the tables.
        """
        if not bags:
            raise UserError("no table of the model is planned here; plan() gives what TorchRec's planner makes of it")
        devices = left.world_size
        guessed = tuple(bag.table(name, self.batch_size, devices) for name, bag in bags.items())
        rules = tuple(rule for name, bag in bags.items() if (rule := bag.rule(name)) is not None)
        return Task(
            with_statistics(guessed, self.known),
            Topology(
                devices,
                device_memory(left),
                devices_per_host=left.local_world_size,
                host_memory_bytes=host_memory(left),
            ),
            self.batch_size * devices,
            self.memory or MemoryUse(_optimizer(bags.values()), batches_in_flight=1),
            replace(self.rules, rules=self.rules.rules + rules + form_rules(bags) + tier_rules(bags)),
        )

    def warn(self, bags: Mapping[str, BagTable]) -> None:
        """Log what is assumed of the tables by name."""
        warn_of_guesses({name: bag.is_guessed for name, bag in bags.items()}, self.known)


def device_memory(topology: TorchRecTopology) -> tuple[int, ...]:
    """(D,) bytes of the memory that holds tables."""
    on_cpu = topology.compute_device == "cpu"
    return tuple(device.storage.ddr if on_cpu else device.storage.hbm for device in topology.devices)


def host_memory(topology: TorchRecTopology) -> int:
    """Bytes of a host's memory for tables that its devices have no room for: of the host that has least.

    None on CPU, whose own memory it is.
    """
    if topology.compute_device == "cpu":
        return 0
    own: list[int] = [device.storage.ddr for device in topology.devices]
    size = topology.local_world_size
    return min(sum(own[first : first + size]) for first in range(0, len(own), size))


def tier_rules(bags: Mapping[str, BagTable]) -> tuple[TableRule, ...]:
    """The memories that tables may lie in, by name, where TorchRec's constraints name kernels or the cache's size."""
    found = []
    for name, bag in bags.items():
        given = bag.constraints or ParameterConstraints()
        share = None if given.cache_params is None else given.cache_params.load_factor
        kernels = given.compute_kernels or list(KERNELS.values())
        tiers = tuple(tier for tier, kernel in KERNELS.items() if kernel in kernels)
        if share is not None or (tiers and len(tiers) < len(KERNELS)):
            found.append(TableRule(escape(name), tiers=tiers or None, cached=share))
    return tuple(found)


def _optimizer(bags: Iterable[BagTable]) -> str:
    """The optimizer that takes the most memory among the tables'."""
    found = {_optimizer_of(bag) for bag in bags}
    return max(found, key=("sgd", "rowwise_adagrad", _LARGEST_OPTIMIZER).index)


def _optimizer_of(bag: BagTable) -> str:
    """What is set on the weights, in the collection (a fused one), or in the sharder's parameters."""
    classes: list[Any] = getattr(bag.parameter, "_optimizer_classes", [])
    fused = getattr(bag.module, "optimizer_type", None)
    if classes:
        given: Any = classes[0].__name__
    elif fused is not None:
        given = fused().__name__
    else:
        given = (bag.sharder.fused_params or {}).get("optimizer", "sgd")
    return _OPTIMIZERS.get(str(getattr(given, "value", given)).lower(), _LARGEST_OPTIMIZER)
