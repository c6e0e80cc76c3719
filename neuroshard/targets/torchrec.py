"""TorchRec: plans of TorchRec's own type, for DistributedModelParallel, of all of TorchRec's sharding types."""

from neuroshard.layouts import LAYOUTS
from neuroshard.plans.plan import Plan, copies_remarks
from neuroshard.targets.target import Exported, Target

_NO_MODULE = (
    "no module=...: the file doesn't say where in the model the tables are; export with module=PATH of their "
    "collection, such as sparse_arch.ebc, or read the file with load_sharding_plan(file, model)"
)


def write(plan: Plan, module: str = "") -> Exported:
    """Translate a plan with all tables in the collection at `module` in the model, such as "sparse_arch.ebc"."""
    from neuroshard.torchrec.sharding_file import file_content
    from neuroshard.torchrec.sharding_plan import to_sharding_plan  # TorchRec is optional, and slow to import

    remarks = (*_remarks(plan), *(() if module else (_NO_MODULE, *_dotted_remarks(plan))))
    return Exported(file_content(to_sharding_plan(plan, module), remarks), remarks=remarks)


def _remarks(plan: Plan) -> tuple[str, ...]:
    """Return requirements of a plan for a job: an optimizer for data-parallel tables, and the pod size for row-wise."""
    return (*copies_remarks(plan), *_pod_remarks(plan))


def _dotted_remarks(plan: Plan) -> tuple[str, ...]:
    """Return a line on names with a dot, which a file without the module's path has for tables of several modules."""
    dotted = [table.name for table in plan.task.tables if "." in table.name]
    if not dotted:
        return ()
    path, _, name = dotted[0].rpartition(".")
    return (
        f"{len(dotted)} table(s) have a dot in their names: {dotted[0]!r} is read as table {name!r} of module "
        f"{path!r}. A table of TorchRec can't have a dot in its own name: rename such tables",
    )


def _pod_remarks(plan: Plan) -> tuple[str, ...]:
    """Return the pod size that row-wise tables on several hosts need: TorchRec does not read it from the plan."""
    topology = plan.task.topology
    hosts = topology.domain_size // topology.host_size
    tables = [
        table.name
        for table, layout, placed in zip(plan.task.tables, plan.layouts, plan.by_table, strict=True)
        if layout.blocks and len({its.device for its in placed}) < topology.num_devices
    ]
    if hosts == 1 or not tables:
        return ()
    return (
        f"{len(tables)} table(s), such as {tables[0]!r}, are row-wise on {topology.domain_size} devices of {hosts} "
        f"hosts: set TORCHREC_RESOLVED_POD_SIZE={hosts} in every process of the job; without it TorchRec trains other "
        "rows, without an error",
    )


TARGET = Target(
    "torchrec",
    "TorchRec",
    write,
    sharding_types=frozenset(word for layout in LAYOUTS.values() for word in layout.words),
    remarks=_remarks,
    steps="torchrec",
)
