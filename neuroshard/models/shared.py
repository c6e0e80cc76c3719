"""A compute model of several machines: what they have in common, and the few numbers in which each differs."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.models.additive import AdditiveCompute
from neuroshard.models.ensemble import ComputeEnsemble
from neuroshard.models.interface import ReluHead, SumModel
from neuroshard.models.mlp import Mlp, Tensors, checked_tensor
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.plumbing.schema import parse

_MOST_MEMBERS = 1000
_MOST_MACHINES = 10_000
_LARGEST = 1e9
_LARGEST_NUMBER = 100.0


@dataclass(frozen=True)
class SharedMember:
    """An additive model of a typical machine, and what makes another machine's of it.

    A machine's numbers are (1 + A,): the logarithm of how many times the typical one's costs its own are, then its
    places on A axes along which machines differ. The machines that it was fitted to have a standard deviation of about
    1 on each. The typical machine's numbers are 0.

    Attributes:
        inner: (A, H) what 1 on each axis adds to the biases of the network's first layer.
        call: (A,) what it adds to the cost of a call, in multiples of the scale.
        machines: (M, 1 + A) numbers of the machines that it was fitted to.
    """

    typical: AdditiveCompute
    inner: Float32Array
    call: Float32Array
    machines: FloatArray

    def at(self, numbers: FloatArray) -> AdditiveCompute:
        """The model of the machine with the numbers (1 + A,): an additive one like any other."""
        speed, places = numbers[0], numbers[1:].astype(np.float32)
        first, *rest = self.typical.network.biases
        network = Mlp(self.typical.network.weights, (first + places @ self.inner, *rest))
        offset = self.typical.offset + float(places @ self.call)
        scale_ms = self.typical.scale_ms * float(np.exp(speed))
        return replace(self.typical, network=network, offset=offset, scale_ms=scale_ms)

    def tensors(self) -> Tensors:
        """All but the typical machine's settings."""
        typical = {f"typical.{name}": tensor for name, tensor in self.typical.tensors().items()}
        return typical | {"inner": self.inner, "call": self.call, "machines": self.machines}

    @classmethod
    def restored(cls, settings: object, tensors: Tensors, machines: int) -> "SharedMember":
        """The member, of so many machines, whose typical model has the settings."""
        typical = AdditiveCompute.restored(settings, _within("typical.", tensors))
        inner = checked_tensor(tensors, "inner", np.float32, 2)
        call = checked_tensor(tensors, "call", np.float32, 1)
        numbers = checked_tensor(tensors, "machines", np.float64, 2)
        axes, hidden = len(call), typical.network.widths[1]
        if inner.shape != (axes, hidden) or numbers.shape != (machines, 1 + axes):
            raise ValueError(f"axes of shape {inner.shape} and numbers of shape {numbers.shape} don't fit together")
        if max(np.abs(inner).max(), np.abs(call).max()) > _LARGEST or np.abs(numbers).max() > _LARGEST_NUMBER:
            raise ValueError(f"axes must not be beyond {_LARGEST:g}, machines' numbers not beyond {_LARGEST_NUMBER:g}")
        return cls(typical, inner, call, numbers)


@dataclass(frozen=True)
class SharedSettings:
    """The machines' names, and the settings of each member's typical machine."""

    machines: Annotated[tuple[str, ...], Meta(min_length=1, max_length=_MOST_MACHINES)]
    members: Annotated[tuple[dict[str, Any], ...], Meta(min_length=1, max_length=_MOST_MEMBERS)]


@dataclass(frozen=True)
class SharedCompute(SumModel):
    """Several such members as one. As it is it costs what it would on a typical machine.

    Attributes:
        names: of the machines that it was fitted to.
    """

    kind: ClassVar[str] = "shared"

    members: tuple[SharedMember, ...]
    names: tuple[str, ...]

    @cached_property
    def typical(self) -> ComputeEnsemble:
        """The model of the machine whose numbers are 0."""
        return ComputeEnsemble(tuple(member.typical for member in self.members))

    def machine(self, index: int) -> ComputeEnsemble:
        """The model of one of the machines that it was fitted to."""
        return ComputeEnsemble(tuple(member.at(member.machines[index]) for member in self.members))

    def embed(self, loads: Loads) -> Float32Array:
        """(n, H) the typical machine's."""
        return self.typical.embed(loads)

    @property
    def head(self) -> ReluHead:
        """The typical machine's."""
        return self.typical.head

    def spread_ms(self, sets: LoadSets) -> FloatArray:
        """(B,) what the members disagree by on the typical machine, ms."""
        return self.typical.spread_ms(sets)

    def settings(self) -> dict[str, Any]:
        """Return the fields that aren't tensors, for JSON."""
        return {"machines": self.names, "members": [member.typical.settings() for member in self.members]}

    def tensors(self) -> Tensors:
        """The members', numbered."""
        return {f"{i}.{name}": t for i, member in enumerate(self.members) for name, t in member.tensors().items()}

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "SharedCompute":
        """The model that gave the settings and tensors."""
        plain = parse(settings, SharedSettings, "settings")
        members = [
            SharedMember.restored(member, _within(f"{number}.", tensors), len(plain.machines))
            for number, member in enumerate(plain.members)
        ]
        return cls(tuple(members), plain.machines)


def _within(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
