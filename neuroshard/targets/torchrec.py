"""TorchRec: plans of its own type, for DistributedModelParallel; it can express whatever plans can."""

from dataclasses import replace
from functools import partial

from neuroshard.plans.plan import Plan
from neuroshard.targets.exported import Exported
from neuroshard.targets.target import Target


def _write(plan: Plan, module: str) -> Exported:
    from neuroshard.torchrec.export import to_sharding_plan  # TorchRec is optional, and slow to import
    from neuroshard.torchrec.planfile import file_content

    return Exported(file_content(to_sharding_plan(plan, module)))


def in_module(path: str) -> Target:
    """TorchRec, with all tables in the collection that stands there in the model, such as "sparse_arch.ebc"."""
    return replace(TORCHREC, write=partial(_write, module=path))


TORCHREC = Target("torchrec", "TorchRec", partial(_write, module=""))
