"""Cost models that are made of others, or that leave something out on purpose."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets, Traffic, calls_of
from neuroshard.layouts import LAYOUTS
from neuroshard.models.interface import CommModel, ComputeModel, Coverage, ReluHead, SumModel
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.words.collective import IN_STEP
from neuroshard.words.form import CALLS, IN_COLUMNS, Call

Adds = Callable[[Loads], FloatArray]  # (n,) ms that each of n loads adds to its device's step


@dataclass(frozen=True)
class FreeComm(CommModel):
    """Exchanges that take no time, apart from waiting: their costs are counted elsewhere, or left out on purpose."""

    collectives = IN_STEP
    num_devices = None  # it serves any number

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Return (B, D) zeros: transfers are free."""
        return np.zeros_like(wait_ms)


@dataclass(frozen=True)
class OneByOne(SumModel):
    """A compute model in which the cost of a device is the sum of the costs of its loads, each computed alone.

    Attributes:
        fused: model of the cost of a load alone.
    """

    head = ReluHead.of_cost()

    fused: ComputeModel

    @property
    def calls(self) -> frozenset[Call]:
        """The kernel calls of table-wise and column-wise tables that `fused` knows."""
        return frozenset(call for call in self.fused.calls if LAYOUTS[call.form].free)

    def embed(self, loads: Loads) -> Float32Array:
        """Embed each load as its cost alone, (n, 1) ms."""
        return self.fused.predict(LoadSets.alone(loads))[:, None].astype(np.float32)


@dataclass(frozen=True)
class WithParts(SumModel):
    """A sum over tables, times a factor, plus the time that every load adds to other parts of its device's step.

    Attributes:
        model: model of kernels.
        adds: for every part of a step that counts, a function of loads to the ms that they add.
        factor: factor of the model's times.
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
        """The calls whose costs are arithmetic on a datasheet."""
        return self.model.arithmetic

    def coverage(self, loads: Loads) -> Coverage | None:
        """Return how near published points are to these loads."""
        return self.model.coverage(loads)

    @property
    def head(self) -> ReluHead:
        """The model's head, with one number more that stands for ms as they are."""
        head = self.model.head
        return replace(head, scale_ms=head.scale_ms * self.factor).beside_ms()

    def embed(self, loads: Loads) -> Float32Array:
        """Embed each load as the model's vector, and the ms that the load adds, (n, H + 1)."""
        return np.column_stack([self.model.embed(loads), self._added_ms(loads)]).astype(np.float32)

    def of_call(self, call: Call) -> SumModel:
        """Return the model of that kernel call, and what its loads add."""
        return replace(self, model=self.model.of_call(call))

    def predict(self, sets: LoadSets) -> FloatArray:
        """Predict the ms of each of the B sets of loads, (B,), with what these add."""
        return self.factor * self.model.predict(sets) + sets.totals(self._added_ms(sets.loads))

    def spread_ms(self, sets: LoadSets) -> FloatArray:
        """Compute what the members of the model's ensemble disagree by, (B,) ms."""
        return self.factor * self.model.spread_ms(sets)

    def _added_ms(self, loads: Loads) -> FloatArray:
        return sum((adds(loads) for adds in self.adds), np.zeros(len(loads)))


@dataclass(frozen=True)
class InProportion(OneByOne):
    """A device's cost in proportion to the sum of its loads', each computed alone.

    Attributes:
        share: of that sum, that loads take together.
    """

    share: float

    @property
    def calls(self) -> frozenset[Call]:
        """The kernel calls that `fused` knows."""
        return self.fused.calls

    def embed(self, loads: Loads) -> Float32Array:
        """Embed each load as its cost alone times the share, (n, 1) ms."""
        return super().embed(loads) * np.float32(self.share)


def as_sum(model: ComputeModel, task_loads: Loads, num_devices: int) -> SumModel:
    """Return the model if it is a sum over tables, else the nearest sum: exact if tables (T,) are spread evenly."""
    if isinstance(model, SumModel):
        return model
    dealt = LoadSets.grouped(task_loads, np.arange(len(task_loads)) % num_devices, num_devices)
    alone_ms = float(model.predict(LoadSets.alone(task_loads)).sum())
    return InProportion(model, float(model.device_ms(dealt).sum()) / alone_ms if alone_ms > 0 else 1.0)


def columns_model(model: SumModel, tables: Loads) -> SumModel:
    """Return the model of devices that hold columns of some of these tables (T,), in as many calls as it takes.

    `model` itself where all tables are pooled, of one data type and in device memory, or where every load counts as a
    call of its own.
    """
    kernels = np.unique(tables.kernel)
    calls = [CALLS[number] for number in calls_of(kernels).tolist()]
    if calls == [IN_COLUMNS] or isinstance(model, OneByOne):
        return model
    if len(calls) > 1:
        return SideBySide(tuple(zip(kernels.tolist(), map(model.of_call, calls), strict=True)))
    return model.of_call(calls[0])


@dataclass(frozen=True)
class SideBySide(SumModel):
    """Several sums as one: vectors of all calls stand side by side, and one head takes them all.

    The vector of a set is (v_1, ..., v_K, -n_1, ..., -n_K, 0): for each call k the sum v_k of its model's vectors, and
    the number n_k of its loads. `head` makes the cost of all calls of it, one after the other; only where one of them
    alone would come out below 0 it isn't their sum.

    Attributes:
        of_calls: the K calls, by `Loads.kernel`, each with its model.
    """

    of_calls: tuple[tuple[int, SumModel], ...]

    def embed(self, loads: Loads) -> Float32Array:
        """Embed n loads as (n, H_1 + ... + H_K + K + 1): the model's vector and a -1 in its call's columns."""
        width = [len(head.bias) for head in self._heads]
        vectors = np.zeros((len(loads), sum(width) + len(width) + 1), dtype=np.float32)
        first, numbers = 0, loads.kernel
        for k, (kernel, model) in enumerate(self.of_calls):
            which = np.flatnonzero(numbers == kernel)
            if len(which):
                vectors[which, first : first + width[k]] = model.embed(loads.take(which))
            vectors[which, sum(width) + k] = -1
            first += width[k]
        return vectors

    @cached_property
    def _heads(self) -> tuple[ReluHead, ...]:
        return tuple(model.head for _, model in self.of_calls)

    @cached_property
    def head(self) -> ReluHead:
        """The head that adds up the ms of the calls that are made.

        With b_k, w_k and o_k the bias, weight and offset of call k's own head, both of the latter in ms, it computes

            sum over k of relu(v_k + b_k) . w_k + o_k - idle_k relu(1 - n_k), where idle_k = relu(b_k) . w_k + o_k.

        A call that is made (n_k >= 1) costs what its own head says. One that isn't has v_k = 0, for which its own head
        would say idle_k: that is taken off. The last number, 0, is there for the offsets: relu(0 + 1) times their sum.
        """
        biases = [head.bias for head in self._heads]
        weights = [head.weight.astype(np.float64) * head.scale_ms for head in self._heads]
        offsets = [head.offset * head.scale_ms for head in self._heads]
        own = zip(biases, weights, offsets, strict=True)
        idle = [offset + float(np.maximum(bias, 0) @ weight) for bias, weight, offset in own]
        bias = np.concatenate([*biases, np.ones(len(idle) + 1)])
        weight = np.concatenate([*weights, -np.array(idle), [sum(offsets)]])
        return ReluHead(bias.astype(np.float32), weight.astype(np.float32), 0.0, 1.0)
