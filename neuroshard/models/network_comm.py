"""What communication models with one network have in common."""

from dataclasses import asdict, dataclass
from typing import Any

from neuroshard.models.interface import CommModel
from neuroshard.models.mlp import Mlp, Normaliser, Tensors
from neuroshard.models.settings import Scale


@dataclass(frozen=True)
class NetworkSettings:
    """What of such a model isn't a tensor."""

    scale_ms: Scale


@dataclass(frozen=True)
class NetworkComm(CommModel):
    """A network on normalised features, in multiples of `scale_ms`; and how a bundle holds it."""

    normaliser: Normaliser
    network: Mlp
    scale_ms: float

    def settings(self) -> dict[str, Any]:
        """The scale, which is no tensor."""
        return asdict(NetworkSettings(self.scale_ms))

    def tensors(self) -> Tensors:
        """Normaliser and weights of the network."""
        return self.normaliser.tensors() | self.network.tensors("network")
