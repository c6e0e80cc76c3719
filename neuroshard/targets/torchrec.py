"""TorchRec: plans of its own type, for DistributedModelParallel; it can express whatever it has a word for."""

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

    remarks = (*copies_remarks(plan), *(() if module else (_NO_MODULE,)))
    return Exported(file_content(to_sharding_plan(plan, module), remarks), remarks=remarks)


TARGET = Target(
    "torchrec",
    "TorchRec",
    write,
    forms=frozenset(form for form, layout in LAYOUTS.items() if layout.words),
    remarks=copies_remarks,
    steps="torchrec",
)
