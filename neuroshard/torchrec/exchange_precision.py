"""What sharders exchange embeddings and gradients in, beside what cost models take exchanges for."""

from collections.abc import Iterable

from torch import nn
from torchrec.distributed.types import ModuleSharder

from neuroshard.models import CostModels
from neuroshard.models.precision import Narrowed
from neuroshard.words.collective import ELEMENT_BYTES


def precision_remark(sharders: Iterable[ModuleSharder[nn.Module]], models: CostModels) -> str | None:
    """A line where sharders' codecs (`QCommsConfig`) take other bytes of an element than the models; None elsewhere."""
    codecs = [codec for sharder in sharders for codec in (sharder.qcomm_codecs_registry or {}).values()]
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
