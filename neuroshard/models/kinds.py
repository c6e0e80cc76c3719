"""Kinds of models that bundles hold, and models that are made of others of these kinds."""

from dataclasses import asdict, dataclass
from typing import Any

from neuroshard.models.additive import AdditiveCompute, ComputeEnsemble
from neuroshard.models.host_tiers import HostTiers
from neuroshard.models.mlp import Tensors, within
from neuroshard.models.neural import NeuralComm, NeuralCompute
from neuroshard.models.regression import RegressionCompute
from neuroshard.models.set_comm import SetComm
from neuroshard.models.stored import Stored
from neuroshard.plumbing.errors import unknown_name


@dataclass(frozen=True)
class Described:
    """A model in `bundle.json`; its class knows what the settings are."""

    kind: str
    settings: dict[str, Any]

    @classmethod
    def of(cls, model: Stored) -> "Described":
        """What describes the model."""
        return cls(model.kind, model.settings())

    def restored(self, kinds: dict[str, Any], name: str, tensors: Tensors) -> Any:
        """The model called `name`, of one of the kinds, whose tensors are the given ones that `name` and a dot precede.

        Raises:
            UserError: it is of no such kind.
            ValueError: settings or tensors can't be such a model's.
        """
        if self.kind not in kinds:
            raise unknown_name(f"kind of {name} model", self.kind, kinds)
        return kinds[self.kind].restored(self.settings, within(tensors, name))


COMPUTE_KINDS: dict[str, Any] = {
    kind.kind: kind for kind in (NeuralCompute, AdditiveCompute, ComputeEnsemble, RegressionCompute, HostTiers)
}
COMM_KINDS: dict[str, Any] = {kind.kind: kind for kind in (NeuralComm, SetComm)}


def described(models: dict[str, Stored]) -> dict[str, Any]:
    """The settings of several models, by name."""
    return {name: asdict(Described.of(model)) for name, model in models.items()}
