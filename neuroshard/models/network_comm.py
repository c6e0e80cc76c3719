"""What communication models with one network have in common."""

from dataclasses import dataclass
from typing import Any

from neuroshard.models.interface import CommModel
from neuroshard.models.mlp import Mlp, Normaliser, Tensors


@dataclass(frozen=True)
class NetworkComm(CommModel):
    """A network on normalised features, in multiples of `scale_ms`; and how a bundle holds it."""

    normaliser: Normaliser
    network: Mlp
    scale_ms: float

    def settings(self) -> dict[str, Any]:
        """What isn't a tensor."""
        return {"scale_ms": self.scale_ms}

    def tensors(self) -> Tensors:
        """Everything else."""
        return self.normaliser.tensors() | self.network.tensors("network")
