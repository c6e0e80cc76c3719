"""The requirements of a job for its plan, such as devices, batch size and constraints.
The requirements and a model's tables together give the task for NeuroShard's search.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from typing import Any

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ModuleSharder, ShardingPlan
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection, FusedEmbeddingCollection

from neuroshard.layouts import DATA_PARALLEL_LAYOUT, LAYOUTS
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.memory import STATE_FLOATS, MemoryUse
from neuroshard.tasks.task import Task
from neuroshard.torchrec.groups import Groups
from neuroshard.torchrec.names import TableNames, by_plain_name
from neuroshard.torchrec.options import memory_of_tables
from neuroshard.torchrec.parameters import Parameter, dense_bytes
from neuroshard.torchrec.pods import ranks_per_pod
from neuroshard.torchrec.sequences import deduplicated
from neuroshard.torchrec.table_statistics import with_statistics
from neuroshard.words.topology import Topology

# Optimizers by the names that `optimizer_of` returns; an unknown optimizer counts as the largest.
_OPTIMIZERS = {
    "sgd": "sgd",
    "rowwiseadagrad": "rowwise_adagrad",
    "adagrad": "adagrad",
    "larssgd": "adagrad",  # has a state of the same size: a momentum
    "partialrowwiseadam": "partial_rowwise_adam",
    "partialrowwiselamb": "partial_rowwise_adam",
}
_BY_STATE = tuple(STATE_FLOATS)  # sorted by size, the largest last
DENSE_OPTIMIZER = "adam"  # counted for data-parallel tables: the most common one, with the most state
_UPDATED_BY_KERNELS = tuple(name for layout in LAYOUTS.values() if not layout.dense for name in layout.type_names)


@dataclass(frozen=True)
class PlanningRequest:
    """The requirements of a job for its plan, such as devices, batch size, constraints and memory.
    The model itself is not part of the request.

    Attributes:
        topology: TorchRec's topology of a sharding group, with all of its memory.
        batch_size: samples of one device per step.
        reservation: TorchRec's reservation of memory for the rest of the model.
        constraints: TorchRec's constraints, by the name of the table.
        fixed: a plan whose parameters are kept as they are.
        rules: NeuroShard's constraints, in addition to TorchRec's.
        memory: settings of the memory that counts in addition to weights; None counts the buffers of one batch, the
            optimizer of the tables, and Adam's state for data-parallel tables, whose optimizer is not known before the
            job runs.
        pipeline: TorchRec's training pipeline, as in `MemoryUse.pipeline`; the pipeline of `memory` if it names one.
        known: statistics of tables, by name.
        groups: groups that the job's ranks are divided into.
        timeout_s: seconds that TorchRec's planner may take for the delegated parameters; None sets no limit.
        data_parallel: True if the search may make any table data-parallel; False if only tables for which `constraints`
            or `rules` name that type.
    """

    topology: TorchRecTopology
    batch_size: int
    reservation: StorageReservation
    constraints: Mapping[str, ParameterConstraints]
    fixed: ShardingPlan
    rules: Constraints
    memory: MemoryUse | None
    pipeline: str | None
    known: Mapping[str, Table]
    groups: Groups
    timeout_s: int | None = None
    data_parallel: bool = False

    def named_in(self, tables: Mapping[str, Parameter], parameters: Sequence[Parameter]) -> "PlanningRequest":
        """Return a copy of the request with the table names by which NeuroShard's search and TorchRec's planner look up
        tables. In the rules and statistics, the names that NeuroShard's search uses replace the names that users wrote.
        In the constraints, each constraint for `path.name`, where `path` is the path of the module, gets a copy under
        `name`, because TorchRec's planner looks up `name`.

        Names that several tables have get no additional entry.

        Raises:
            UserError: a name in the rules or statistics stands for several tables, or two names in the statistics stand
                for the same table.
        """
        names = TableNames(tables)
        return replace(
            self,
            constraints=by_plain_name(self.constraints, parameters),
            rules=names.in_rules(self.rules),
            known=names.in_statistics(self.known),
        )

    def left(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]) -> TorchRecTopology:
        """Return a copy of the topology in which every device has only the memory that is free for tables.
        The job's `StorageReservation` subtracts the memory for the rest of the model, as in TorchRec's planner.

        Raises:
            InfeasibleError: the reservation fails, or leaves no memory on a device.
        """
        try:
            left = self.reservation.reserve(
                topology=self.topology,
                batch_size=self.batch_size,
                module=module,
                sharders=list(sharders),
                constraints=dict(self.constraints),
            )
        except PlannerError as error:
            raise InfeasibleError(
                "reservation-failed",
                f"{type(self.reservation).__name__} cannot reserve memory",
                where="storage_reservation",
                limit=str(error),
                remedy="Reserve less memory, or pass a topology with more memory per device",
            ) from error
        for device, (has, free) in enumerate(zip(device_memory(self.topology), device_memory(left), strict=True)):
            if free <= 0 < has:
                raise InfeasibleError(
                    "reservation-leaves-nothing",
                    f"{type(self.reservation).__name__} reserves {readable_bytes(has - free)} of device {device}",
                    where="storage_reservation",
                    limit=f"the device has {readable_bytes(has)}, so no memory is left for tables",
                    remedy="Reserve less memory, or pass a topology with more memory per device",
                )
        return left

    def task(self, tables: Mapping[str, Parameter], left: TorchRecTopology) -> Task:
        """Return the input of NeuroShard's search (a `Task`) for some tables of the model.
        `tables` has the tables by name. The topology `left` says how much memory is free for these tables on each
        device.

        Raises:
            UserError: there are no tables, or the constraints contradict each other or the tables.
        """
        if not tables:
            raise no_table_planned()
        devices = left.world_size
        guessed = tuple(parameter.table(name, self.batch_size, devices) for name, parameter in tables.items())
        looked_up = with_statistics(guessed, self.known)
        pairs = list(zip(tables.values(), looked_up, strict=True))
        expanded = [table for parameter, table in pairs if parameter.deduplicated]
        samples = self.batch_size * devices
        memory = self.memory_use(tables.values())
        rules_of = (Parameter.split_rule, Parameter.type_rule, Parameter.tier_rule)
        rules = [rule_of(parameter, name) for rule_of in rules_of for name, parameter in tables.items()]
        rules += [TableRule(names, sharding_types=_UPDATED_BY_KERNELS) for names in self._not_data_parallel(tables)]
        return Task(
            tuple(
                deduplicated(table, samples, devices) if parameter.deduplicated else table for parameter, table in pairs
            ),
            Topology(
                devices,
                device_memory(left),
                _expanded_bytes(expanded, memory, samples, devices),
                devices_per_host=left.local_world_size,
                host_memory_bytes=min(host_memory(left)),
                devices_per_domain=_domain(left),
            ),
            samples,
            memory,
            self.rules.with_rules(rule for rule in rules if rule is not None),
        )

    def memory_use(self, parameters: Iterable[Parameter]) -> MemoryUse:
        """Return the settings for memory use: the optimizer state and buffers that count in addition to the weights.
        If the request has no such settings, one optimizer counts for all tables except data-parallel tables: the
        optimizer with the most state of all optimizers in `parameters`. For data-parallel tables, Adam counts.
        """
        optimizers = map(counted_optimizer, parameters)
        largest = max(optimizers, key=_BY_STATE.index, default=_BY_STATE[0])
        memory = self.memory or MemoryUse(largest, batches_in_flight=1, dense_optimizer=DENSE_OPTIMIZER)
        return memory if self.pipeline is None else replace(memory, pipeline=self.pipeline)

    def _not_data_parallel(self, tables: Mapping[str, Parameter]) -> list[str]:
        """Return name patterns that match exactly the tables that must not be data-parallel.
        If no table may be data-parallel, the only pattern is "*". The list is empty if all tables may be data-parallel.
        """
        if self.data_parallel:
            return []
        kept = [escape(name) for name, parameter in tables.items() if not self._names_data_parallel(name, parameter)]
        return ["*"] if len(kept) == len(tables) else kept

    def _names_data_parallel(self, name: str, parameter: Parameter) -> bool:
        """Return True if a rule or a constraint of the table names data_parallel,
        or if TorchRec can train the table only as data_parallel.
        """
        ours = any(
            rule.sharding_types and DATA_PARALLEL_LAYOUT.form in rule.sharding_types
            for rule in self.rules.rules_of(name)
        )
        return ours or parameter.unlike_kernels or parameter.names_data_parallel


def dense_remark(
    module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]], topology: TorchRecTopology, reserved_share: float
) -> Message | None:
    """Return a warning if the dense network of a model needs more memory than the default reservation of a GPU.
    The dense parameters count with gradients and Adam's state. Return None on CPUs, or if the reservation is enough.

    `reserved_share` is the share of every GPU's memory that the default reservation keeps free.
    """
    dense, per_weight = dense_bytes(module, sharders), 2 + STATE_FLOATS[DENSE_OPTIMIZER][0]
    reserved = int(reserved_share * min(device.storage.hbm for device in topology.devices))
    if topology.compute_device == "cpu" or per_weight * dense <= reserved:
        return None
    return Message(
        "reservation-dense-large",
        f"the dense parameters take {readable_bytes(dense)}, and with gradients and the state of Adam "
        f"{readable_bytes(per_weight * dense)}",
        where="storage_reservation",
        limit=f"the default reservation keeps only {readable_bytes(reserved)} of a device free, so training may run "
        "out of memory",
        remedy=f"Set storage_reservation=HeuristicalStorageReservation({reserved_share}), which is TorchRec's default "
        "and also reserves memory for dense parameters",
    )


def no_table_planned() -> UserError:
    """Return the error that is raised if NeuroShard plans no table of a model."""
    return UserError(
        "model-no-table-planned",
        "NeuroShard plans no table of the model",
        remedy="Call plan() instead, which returns the plan of TorchRec's planner",
    )


def device_memory(topology: TorchRecTopology) -> tuple[int, ...]:
    """Return the bytes of memory for tables on each device, (D,)."""
    memory = memory_of_tables(topology)
    return tuple(getattr(device.storage, memory) for device in topology.devices)


def host_memory(topology: TorchRecTopology) -> tuple[int, ...]:
    """Return the bytes of memory on each host, (H,), for tables that do not fit on the devices.

    The bytes are 0 on CPUs, where host memory is the device memory.
    """
    on_cpu = topology.compute_device == "cpu"
    own: list[int] = [0 if on_cpu else device.storage.ddr for device in topology.devices]
    size = topology.local_world_size
    return tuple(sum(own[first : first + size]) for first in range(0, len(own), size))


def _domain(topology: TorchRecTopology) -> int | None:
    """Return the number of devices joined by fast links; None if fast links join only the devices of one host."""
    size = ranks_per_pod(topology)
    return None if size == topology.local_world_size else size


def _expanded_bytes(tables: Sequence[Table], memory: MemoryUse, batch_size: int, num_devices: int) -> int:
    """Return the bytes of some buffers that each device needs for sequence tables with deduplicated indices. Devices
    exchange each index and each embedding of these tables only once. But before and after the exchange, a device needs
    buffers with one entry for every lookup. The result counts only these buffers.

    Before the deduplicated exchange, each lookup has an index and the position of its row; after the exchange, each
    lookup has an embedding and its gradient.
    """
    inputs = sum(2 * table.pooling_factor + table.features for table in tables)
    return memory.received_bytes(sum(table.output_columns for table in tables), batch_size, num_devices, inputs)


def counted_optimizer(table: Parameter) -> str:
    """Return the optimizer whose state counts for a table, as `MemoryUse` names optimizers.
    An unknown optimizer counts as the optimizer with the most state.
    """
    return _OPTIMIZERS.get(optimizer_of(table), _BY_STATE[-1])


def optimizer_of(table: Parameter) -> str:
    """Return the name of a table's optimizer in lower case, without the prefix "exact_" and without underscores.

    The optimizer is set on the weights, in a fused collection, or in the sharder's `fused_params`.
    """
    return named_optimizer(table).lower().removeprefix("exact_").replace("_", "")


def named_optimizer(table: Parameter) -> str:
    """Return the name of a table's optimizer as TorchRec, torch or FBGEMM write it.
    The name is "sgd", which is the default, if no optimizer is set.
    """
    classes: list[Any] = getattr(table.weights, "_optimizer_classes", [])
    if classes:
        optimizer: Any = classes[0].__name__  # set by apply_optimizer_in_backward
    elif isinstance(table.module, FusedEmbeddingBagCollection | FusedEmbeddingCollection):
        optimizer = table.module.optimizer_type().__name__
    else:
        optimizer = (getattr(table.sharder, "fused_params", None) or {}).get("optimizer", "sgd")
    return str(getattr(optimizer, "value", optimizer))
