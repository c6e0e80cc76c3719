"""What devices compute that hold tables of several kinds in columns: kernel calls one after the other."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray
from neuroshard.loads import Loads, LoadSets
from neuroshard.models.interface import ComputeModel, ReluHead, SumModel
from neuroshard.models.one_by_one import OneByOne
from neuroshard.plans.form import CALLS, IN_COLUMNS, Call


def columns_model(model: ComputeModel, tables: Loads) -> ComputeModel:
    """The model of what devices compute that hold columns of some of these tables (T,), in as many calls as it takes.

    A sum over tables (`SumModel`) where `model` is one; `model` itself where all tables are pooled and in device
    memory, or where every load counts as a call of its own.
    """
    calls = tuple(CALLS[number] for number in np.unique(tables.call).tolist())
    if calls == (IN_COLUMNS,) or isinstance(model, OneByOne):
        return model
    if not isinstance(model, SumModel):
        return CallsApart(model)
    if len(calls) > 1:
        return SideBySide(tuple((call, model.of_call(call)) for call in calls))
    return model.of_call(calls[0])


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
    """Several sums as one: vectors of all kinds stand side by side, and one head takes them all.

    A call that isn't made costs nothing, though its head gives something for a sum of 0, and has an offset. So each
    kind has a number more, -1 for each of its loads: relu(1 + number) is 1 where there are none, and takes out what the
    call would cost. A last number, always 0, holds the offsets: an empty device scores 0.

    Costs are those of all calls, but where a call alone would have come out below 0.

    Attributes:
        of_calls: the K calls, each with its model.
    """

    of_calls: tuple[tuple[Call, SumModel], ...]

    def embed(self, loads: Loads) -> Float32Array:
        """(n, sum of all H, and K + 1)."""
        width = [len(head.bias) for head in self._heads]
        vectors = np.zeros((len(loads), sum(width) + len(width) + 1), dtype=np.float32)
        first, numbers = 0, loads.call
        for kind, (call, model) in enumerate(self.of_calls):
            which = np.flatnonzero(numbers == CALLS.index(call))
            if len(which):
                vectors[which, first : first + width[kind]] = model.embed(loads.take(which))
            vectors[which, sum(width) + kind] = -1
            first += width[kind]
        return vectors

    @cached_property
    def _heads(self) -> tuple[ReluHead, ...]:
        return tuple(model.head for _, model in self.of_calls)

    @cached_property
    def head(self) -> ReluHead:
        """Of all calls, in ms."""
        scaled = [head.weight.astype(np.float64) * head.scale_ms for head in self._heads]
        offsets = [head.offset * head.scale_ms for head in self._heads]
        nothing = [float(np.maximum(head.bias, 0) @ own) for head, own in zip(self._heads, scaled, strict=True)]
        calls = [offset + none for offset, none in zip(offsets, nothing, strict=True)]
        bias = np.concatenate([*(head.bias for head in self._heads), np.ones(len(calls) + 1)])
        weight = np.concatenate([*scaled, -np.array(calls), [sum(offsets)]])
        return ReluHead(bias.astype(np.float32), weight.astype(np.float32), 0.0, 1.0)
