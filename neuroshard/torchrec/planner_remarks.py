"""What the planner says beside its plan: it came late, exchanges are counted in other bytes, weights won't load."""

from torch import nn
from torchrec.distributed.types import ModuleSharder

from neuroshard.models import CostModels
from neuroshard.models.precision import Narrowed
from neuroshard.plans.plan import Plan
from neuroshard.torchrec.modules import listed
from neuroshard.words.collective import ELEMENT_BYTES

Sharders = list[ModuleSharder[nn.Module]]


def late_remark(took_s: float, limit_s: int | None) -> str | None:
    """A line where planning took longer than it should."""
    if limit_s is None or took_s <= limit_s:
        return None
    return (
        f"planning took {took_s:.1f} s, and timeout_seconds is {limit_s}: our search isn't cut off, so that plans "
        "repeat; searcher='size_lookup_greedy' or fewer num_candidates take less, and keep=FILE nothing at a restart"
    )


def precision_remark(sharders: Sharders, models: CostModels) -> str | None:
    """A line where sharders' codecs (`QCommsConfig`) take other bytes of an element than the models; None elsewhere."""
    codecs = [
        codec for sharder in sharders for codec in (getattr(sharder, "qcomm_codecs_registry", None) or {}).values()
    ]
    for way in ("forward", "backward"):
        model = getattr(models, way)
        counted = round(ELEMENT_BYTES * model.share) if isinstance(model, Narrowed) else ELEMENT_BYTES
        used = {getattr(codec, way).quantized_dtype.itemsize for codec in codecs} or {ELEMENT_BYTES}
        if used != {counted}:
            told = " or ".join(map(str, sorted(used)))
            return (
                f"the sharders exchange {told} byte(s) of an element {way}, and costs count {counted}; give "
                "models=NAME+fp16, or the precisions of both ways, such as NAME+fp16/bf16"
            )
    return None


def loading_remarks(plan: Plan) -> tuple[str, ...]:
    """A line where TorchRec can't load weights into a plan: it reads all shards of columns as wide as the first one."""
    pairs = zip(plan.task.tables, plan.by_table, strict=True)
    cut = [table.name for table, its in pairs if len({placed.shard.dim for placed in its}) > 1]
    if not cut:
        return ()
    return (
        f"load_state_dict of TorchRec 1.8 fails with sharded weights of {len(cut)} table(s) in shards of unequal width "
        f"({listed(cut)}); rules=Constraints(rules=(TableRule('*', equal_widths=True),)) has none",
    )
