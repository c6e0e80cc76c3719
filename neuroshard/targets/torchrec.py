"""Exports to TorchRec: files that contain sharding plans in TorchRec's own format, for DistributedModelParallel.
The tables in a file can have any of the sharding types.
"""

from collections.abc import Mapping
from typing import Any

from neuroshard.layouts import LAYOUTS
from neuroshard.models.predicted_for import PredictedFor
from neuroshard.plans.plan import Plan, data_parallel_remarks
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.targets.target import Exported, Target

_NO_MODULE = Message(
    "export-without-module",
    "module is not set, so the file does not say which collection of the model has the tables",
    remedy="Export with module=PATH of the tables' collection, such as module=sparse_arch.ebc, or load the file with "
    "load_sharding_plan(file, model)",
)


def write(plan: Plan, module: str = "") -> Exported:
    """Return a plan in the format of TorchRec.

    `module` is the path of the collection that has all tables inside the model, such as "sparse_arch.ebc". The shards
    are placed on CPUs if the cost models that predicted the plan were measured on a CPU; otherwise on CUDA GPUs.
    """
    # TorchRec is optional, and slow to import.
    from neuroshard.torchrec.sharding_file import file_content
    from neuroshard.torchrec.sharding_plan import to_sharding_plan

    remarks = (*_remarks(plan), *(() if module else (_NO_MODULE, *_dotted_remarks(plan))))
    return Exported(file_content(to_sharding_plan(plan, module, _compute_device(plan)), remarks), remarks=remarks)


def _compute_device(plan: Plan) -> str:
    """Return the type of the devices that a plan was predicted for: "cpu" or "cuda"; "cuda" if the type is unknown."""
    predicted = plan.prediction and PredictedFor.of(plan.prediction.models)
    return predicted.kind if predicted else "cuda"


def write_kept(plan: Plan, modules: Mapping[str, Any], module: str = "") -> Exported:
    """Return a plan that a planner kept in a file, in the format of TorchRec, with the tables of the whole model.

    Args:
        plan: the part of the plan that has the tables that NeuroShard planned.
        modules: the plan of the whole model by the path of the module, as in the file.
        module: other path of the collection inside the model, if the plan has only one collection.

    Raises:
        UserError: `module` is not a collection of the plan, and the plan has several collections.
    """
    from neuroshard.torchrec.sharding_file import content_of

    if module and module not in modules:
        if len(modules) != 1:
            raise UserError(
                "export-module-not-kept",
                f"module is {module!r}",
                limit=f"the kept plan has the collections {', '.join(map(repr, modules))}",
                remedy="Remove module, because a kept plan has the path of each collection",
            )
        modules = dict(zip([module], modules.values(), strict=True))
    remarks = _remarks(plan)
    return Exported(content_of(modules, remarks), remarks=remarks)


def _remarks(plan: Plan) -> tuple[Message, ...]:
    """Return warnings about the special settings that training with a plan requires.
    Data-parallel tables require a separate optimizer, and some row-wise tables require TorchRec's pod size. Return an
    empty tuple if the plan requires no special setting.
    """
    return (*data_parallel_remarks(plan), *_pod_remarks(plan))


def _dotted_remarks(plan: Plan) -> tuple[Message, ...]:
    """Return a warning if names of tables contain dots.
    If a plan is exported without `module`, a name such as `sparse.ebc.t1` is read as the table `t1` of the module
    `sparse.ebc`. Return an empty tuple if no name contains a dot.
    """
    dotted = [table.name for table in plan.task.tables if "." in table.name]
    if not dotted:
        return ()
    path, _, name = dotted[0].rpartition(".")
    return (
        Message(
            "export-dotted-names",
            f"the plan has {number_of(len(dotted), 'table')} with a dot in the name",
            limit=f"TorchRec allows no dot in names, so {dotted[0]!r} is read as table {name!r} of module {path!r}",
            remedy="If the part before the last dot is the path of a module, change nothing; otherwise rename each of "
            "these tables",
        ),
    )


def _pod_remarks(plan: Plan) -> tuple[Message, ...]:
    """Return a warning if the user must set the pod size (the number of hosts per pod) to train with the plan.
    TorchRec needs the pod size if a pod has several hosts, and a row-wise table is not on all devices. A plan file does
    not contain the pod size. Return an empty tuple if TorchRec does not need the pod size.
    """
    topology = plan.task.topology
    hosts = topology.domain_size // topology.host_size
    tables = [
        table.name
        for table, layout, placed in zip(plan.task.tables, plan.layouts, plan.by_table, strict=True)
        if layout.blocks and len({placement.device for placement in placed}) < topology.num_devices
    ]
    if hosts == 1 or not tables:
        return ()
    return (
        Message(
            "export-pod-size",
            f"the plan has {number_of(len(tables), 'row-wise table')} (such as {tables[0]!r}) on "
            f"{hosts} hosts with {number_of(topology.host_size, 'device')} each",
            limit="TorchRec does not read the pod size from the plan, and would train wrong rows without an error",
            remedy=f"Set TORCHREC_RESOLVED_POD_SIZE={hosts} (the number of hosts in a pod) in every process of the job",
        ),
    )


TARGET = Target(
    "torchrec",
    "TorchRec",
    write,
    sharding_types=frozenset(word for layout in LAYOUTS.values() for word in layout.words),
    remarks=_remarks,
    steps="torchrec",
    write_kept=write_kept,
)
