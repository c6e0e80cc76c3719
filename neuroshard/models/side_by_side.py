"""What devices compute that hold both pooled and sequence tables in columns: two kernel calls, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray
from neuroshard.loads import Loads, LoadSets
from neuroshard.models.interface import ComputeModel, ReluHead, SumModel
from neuroshard.models.one_by_one import OneByOne
from neuroshard.plans.form import IN_COLUMNS, Call, Form
from neuroshard.tables import Table

_SEQUENCES = Call(Form.COLUMNS, False)


def columns_model(model: ComputeModel, tables: Sequence[Table]) -> ComputeModel:
    """The model of what devices compute that hold columns of some of these tables, in as many calls as it takes.

    A sum over tables (`SumModel`) where `model` is one; `model` itself where all tables are pooled, or where every
    load counts as a call of its own.
    """
    if all(table.pooled for table in tables) or isinstance(model, OneByOne):
        return model
    if not isinstance(model, SumModel):
        return CallsApart(model)
    if any(table.pooled for table in tables):
        return SideBySide(model.of_call(IN_COLUMNS), model.of_call(_SEQUENCES))
    return model.of_call(_SEQUENCES)


@dataclass(frozen=True)
class CallsApart(ComputeModel):
    """Devices with loads of several calls, whose costs add up.

    Attributes:
        calls_model: of each call.
    """

    calls_model: ComputeModel

    def predict(self, sets: LoadSets) -> FloatArray:
        """(B,) ms of each of the B sets of loads, of any calls."""
        return self.calls_model.device_ms(sets)


@dataclass(frozen=True)
class SideBySide(SumModel):
    """Two sums as one: vectors of both kinds stand side by side, and one head takes both.

    A call that isn't made costs nothing, though its head gives something for a sum of 0, and has an offset. So each
    kind has a number more, -1 for each of its loads: relu(1 + number) is 1 where there are none, and takes out what the
    call would cost. A last number, always 0, holds the offsets: an empty device scores 0.

    Costs are those of both calls, but where a call alone would have come out below 0.

    Attributes:
        pooled, sequences: the models of both calls.
    """

    pooled: SumModel
    sequences: SumModel

    def embed(self, loads: Loads) -> Float32Array:
        """(n, H + H' + 3)."""
        width = [len(head.bias) for head in self._heads]
        vectors = np.zeros((len(loads), sum(width) + 3), dtype=np.float32)
        first = 0
        for kind, (model, its) in enumerate(((self.pooled, loads.pooled), (self.sequences, ~loads.pooled))):
            which = np.flatnonzero(its)
            if len(which):
                vectors[which, first : first + width[kind]] = model.embed(loads.take(which))
            vectors[which, sum(width) + kind] = -1
            first += width[kind]
        return vectors

    @cached_property
    def _heads(self) -> tuple[ReluHead, ReluHead]:
        return self.pooled.head, self.sequences.head

    @cached_property
    def head(self) -> ReluHead:
        """Of both calls, in ms."""
        scaled = [head.weight.astype(np.float64) * head.scale_ms for head in self._heads]
        offsets = [head.offset * head.scale_ms for head in self._heads]
        nothing = [float(np.maximum(head.bias, 0) @ own) for head, own in zip(self._heads, scaled, strict=True)]
        calls = [offset + none for offset, none in zip(offsets, nothing, strict=True)]
        bias = np.concatenate([*(head.bias for head in self._heads), np.ones(3)])
        weight = np.concatenate([*scaled, -np.array(calls), [sum(offsets)]])
        return ReluHead(bias.astype(np.float32), weight.astype(np.float32), 0.0, 1.0)
