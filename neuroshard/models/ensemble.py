"""Several compute models as one: their mean, and how far they disagree."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.models.additive import AdditiveCompute
from neuroshard.models.interface import ReluHead, SumModel
from neuroshard.models.mlp import Tensors
from neuroshard.models.stored import Stored
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.plumbing.schema import parse

_MOST_MEMBERS = 1000


@dataclass(frozen=True)
class EnsembleSettings:
    """The settings of each member of an ensemble, as in `bundle.json`."""

    members: Annotated[tuple[dict[str, Any], ...], Meta(min_length=1, max_length=_MOST_MEMBERS)]


@dataclass(frozen=True)
class ComputeEnsemble(Stored, SumModel):
    """The mean of models that were fitted from different starts: a sum over tables as they are.

    The members' vectors stand side by side, and the head takes a share of each.
    """

    kind: ClassVar[str] = "ensemble"

    members: tuple[AdditiveCompute, ...]

    def embed(self, loads: Loads) -> Float32Array:
        """(n, H) with H the sum of the members'."""
        return np.concatenate([member.embed(loads) for member in self.members], axis=1)

    @cached_property
    def head(self) -> ReluHead:
        """The members' heads, each weighted by its share."""
        heads = [member.head for member in self.members]
        share = 1 / len(heads)
        return ReluHead(
            np.concatenate([head.bias for head in heads]),
            np.concatenate([head.weight * np.float32(head.scale_ms * share) for head in heads]),
            sum(head.offset * head.scale_ms for head in heads) * share,
            1.0,
        )

    def spread_ms(self, sets: LoadSets) -> FloatArray:
        """(B,) standard deviation of the members' costs, ms."""
        spread: FloatArray = np.std([member.predict(sets) for member in self.members], axis=0)
        return spread

    def settings(self) -> dict[str, Any]:
        """Return the fields that aren't tensors, for JSON."""
        return {"members": [member.settings() for member in self.members]}

    def tensors(self) -> Tensors:
        """The members', numbered."""
        return {f"{i}.{name}": t for i, member in enumerate(self.members) for name, t in member.tensors().items()}

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "ComputeEnsemble":
        """The model that gave the settings and tensors."""
        members = []
        for number, member in enumerate(parse(settings, EnsembleSettings, "settings").members):
            prefix = f"{number}."
            own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            members.append(AdditiveCompute.restored(member, own))
        return cls(tuple(members))
