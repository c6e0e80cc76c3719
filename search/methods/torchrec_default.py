"""The plan that TorchRec's default planner finds for a task: `compare=torchrec` compares other plans with it."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import InfeasibleError, UserError, first_line, raised_by
from neuroshard.tasks.constraints import Constraints
from neuroshard.tasks.task import Task

Compare = Literal["torchrec"]
TORCHREC_DEFAULT = "TorchRec's default planner"


def check_compare(compare: Compare | None) -> None:
    """Raise MissingPackageError if `compare` asks for TorchRec's plans, but TorchRec is not installed."""
    if compare is not None:
        import neuroshard.torchrec  # noqa: F401  # raises the error, which says what to install


def torchrec_default(task: Task, simulator: Simulator) -> Plan:
    """Return the plan that TorchRec's EmbeddingShardingPlanner finds with default settings. The returned plan contains
    the cost that the cost models of `simulator` predict for the plan.

    The planner knows the devices with their memory, the batch size, and the mean lookups of each feature. It may use
    all of TorchRec's sharding types and the memory of hosts, if the task has any. It knows no constraints of the task,
    so that the plan may break some of them.

    Raises:
        InfeasibleError: TorchRec finds no plan.
        UserError: TorchRec cannot plan the tables, a plan of NeuroShard cannot express TorchRec's plan, or the cost
            models do not support it.
        MissingPackageError: TorchRec is not installed.
    """
    check_compare("torchrec")
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner
    from torchrec.distributed.planner.types import ParameterConstraints, PlannerError

    from neuroshard.measure.steps.stand_in import StandIn
    from neuroshard.stages.search.methods.torchrec_planner import cut_to_width  # slow to import
    from neuroshard.torchrec import from_sharding_plan

    # Parameters of a module cannot have every name that a table can have.
    tables = tuple(replace(table, name=f"table{number}") for number, table in enumerate(task.tables))
    plain = replace(task, tables=tables, constraints=Constraints())
    lookups = {
        table.name: ParameterConstraints(pooling_factors=[table.pooling_factor / table.features] * table.features)
        for table in tables
    }
    topology, local_batch_size = _topology(task, simulator), max(task.batch_size // task.topology.num_devices, 1)
    sharders = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
    try:
        with _without_advice():
            planner = EmbeddingShardingPlanner(topology, local_batch_size, constraints=lookups, stats=[], debug=False)
            sharding_plan = planner.plan(StandIn(tables, ()), sharders)
    except PlannerError as error:
        raise InfeasibleError(
            "torchrec-default-no-plan",
            f"{TORCHREC_DEFAULT} finds no plan",
            limit=first_line(error),
            remedy="Give each device more memory (topology.memory_bytes), or remove compare=torchrec",
        ) from error
    except (RuntimeError, ValueError, AssertionError) as error:
        if not raised_by(error, "torchrec"):
            raise
        raise UserError(
            "torchrec-default-failed",
            f"{TORCHREC_DEFAULT} cannot plan the tables",
            limit=first_line(error),
            remedy="Remove compare=torchrec",
        ) from error
    return simulator.predicted(cut_to_width(Plan(task, from_sharding_plan(plain, sharding_plan).placements)))


@contextmanager
def _without_advice() -> Iterator[None]:
    """Suppress useless warnings of TorchRec's planner inside a `with` block. For example, the planner gives advice
    about the memory for dense tensors, but a task has no dense tensors.
    """
    from neuroshard.torchrec.delegated import without_data_parallel_remarks

    logger = logging.getLogger("torchrec.distributed.planner.storage_reservations")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), without_data_parallel_remarks():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def _topology(task: Task, simulator: Simulator) -> Any:
    """Return the task's devices as TorchRec's topology: CPUs if the cost models were measured on a CPU, else GPUs."""
    from torchrec.distributed.planner.types import CustomTopologyData, Topology

    topology, hardware = task.topology, simulator.models.hardware
    devices, memory = topology.num_devices, list(topology.device_memory)
    on_host = topology.host_bytes // topology.host_size
    if hardware is not None and hardware.kind == "cpu":
        compute_device, caps = "cpu", {"ddr_cap": memory}
    else:
        compute_device, caps = "cuda", {"hbm_cap": memory, "ddr_cap": [on_host] * devices}
    # With CustomTopologyData, blocks of rows are as unequal as the memory.
    equal = len(set(memory)) == 1
    sizes: dict[str, Any] = (
        {name: cap[0] for name, cap in caps.items()}
        if equal
        else {"custom_topology_data": CustomTopologyData(caps, devices)}
    )
    return Topology(
        devices,
        compute_device,
        local_world_size=topology.host_size,
        pod_size=topology.domain_size // topology.host_size,
        created_by_factory=True,
        **sizes,
    )
