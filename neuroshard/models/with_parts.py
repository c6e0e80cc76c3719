"""A compute model that knows what kernels take in a step, and what each shard adds to it besides."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.models.interface import ReluHead, SumModel
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.words.coverage import Coverage
from neuroshard.words.form import Call

Adds = Callable[[Loads], FloatArray]  # (n,) ms that each of n loads adds to its device's step


@dataclass(frozen=True)
class WithParts(SumModel):
    """A sum over tables, times a factor, and what every load adds to its device's step besides.

    Attributes:
        model: of kernels.
        adds: by every part of a step that counts.
        factor: of what the model says.
    """

    model: SumModel
    adds: tuple[Adds, ...] = ()
    factor: float = 1.0

    @property
    def calls(self) -> frozenset[Call]:
        """The kernel calls that the model knows."""
        return self.model.calls

    @property
    def arithmetic(self) -> frozenset[Call]:
        """Of these the ones whose costs are arithmetic on a datasheet."""
        return self.model.arithmetic

    def coverage(self, loads: Loads) -> Coverage | None:
        """How near published points are to these loads."""
        return self.model.coverage(loads)

    @property
    def head(self) -> ReluHead:
        """The model's, with one number more that stands for ms as they are."""
        head = replace(self.model.head, scale_ms=self.model.head.scale_ms * self.factor)
        weight = np.float32(1 / head.scale_ms)
        return replace(head, bias=np.append(head.bias, np.float32(0)), weight=np.append(head.weight, weight))

    def embed(self, loads: Loads) -> Float32Array:
        """(n, H + 1) the model's vectors, and the ms that loads add."""
        return np.column_stack([self.model.embed(loads), self._added_ms(loads)]).astype(np.float32)

    def of_call(self, call: Call) -> SumModel:
        """Return the model of that kernel call, and what its loads add."""
        return replace(self, model=self.model.of_call(call))

    def predict(self, sets: LoadSets) -> FloatArray:
        """(B,) ms of each of the B sets of loads, with what these add."""
        place = np.repeat(np.arange(len(sets)), sets.counts)
        return self.factor * self.model.predict(sets) + np.bincount(place, self._added_ms(sets.loads), len(sets))

    def spread_ms(self, sets: LoadSets) -> FloatArray:
        """(B,) what the members of the model's ensemble disagree by, ms."""
        return self.factor * self.model.spread_ms(sets)

    def _added_ms(self, loads: Loads) -> FloatArray:
        return sum((adds(loads) for adds in self.adds), np.zeros(len(loads)))
