"""Models of kernel times: a separate model for each type of kernel call, and models of the same calls inside a training
step.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from neuroshard.cost.loads import Loads, LoadSets, calls_of
from neuroshard.layouts import LAYOUTS
from neuroshard.models.compute_models import (
    AdditiveCompute,
    ByWidestCompute,
    ComputeEnsemble,
    NeuralCompute,
    RegressionCompute,
)
from neuroshard.models.host_tiers import BehindLink, HostLink, HostTiers
from neuroshard.models.interface import ComputeModel, Coverage, ReluHead, SumModel
from neuroshard.models.stored import Described, Stored, Tensors, described, tensors_of
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.plumbing.schema import parse
from neuroshard.words.form import CALLS, COLUMN_WISE_CALL, Call, call_named
from neuroshard.words.placement import Tier

COMPUTE_KINDS: dict[str, Any] = {
    model.kind: model
    for model in (NeuralCompute, AdditiveCompute, ByWidestCompute, ComputeEnsemble, RegressionCompute, HostTiers)
}
Adds = Callable[[Loads], FloatArray]  # (n,) ms that each of n loads adds to a step of its device


@dataclass(frozen=True)
class KernelSettings:
    """Settings of `KernelModels` as stored in a bundle: the model of each type of kernel call, by name, and the link
    between device and host.
    """

    calls: Annotated[dict[str, Described], Meta(min_length=1, max_length=len(CALLS))]
    host: HostLink | None = None


@dataclass(frozen=True)
class KernelModels(Stored, SumModel):
    """Model of all kernel times: a separate model for each type of kernel call, and the additional time that calls take
    inside a training step.

    Attributes:
        by_call: the model of each known call, with pooled column-wise tables among the calls.
        host: additional cost of tables in host memory, for calls without a model of their own: such calls use the model
            of the same call in device memory (`BehindLink`). None: the costs of such calls are not known.
        factor: factor of the models' times.
        adds: functions of n loads to the ms, (n,), that each load adds to a step of its device.
    """

    kind: ClassVar[str] = "by_form"

    by_call: dict[Call, SumModel]
    host: HostLink | None = None
    factor: float = 1.0
    adds: tuple[Adds, ...] = ()

    @classmethod
    def of(cls, model: SumModel) -> "KernelModels":
        """Return `KernelModels` in which `model` predicts each type of kernel call that `model` supports."""
        return model if isinstance(model, KernelModels) else cls(dict.fromkeys(model.calls, model))

    @classmethod
    def one_by_one(cls, model: ComputeModel) -> "KernelModels":
        """Return models of column-wise kernel calls that add up a time for each shard in a call. The time of a shard is
        the time that `model` predicts for a call with only this shard.
        """
        return cls(dict.fromkeys((call for call in model.calls if LAYOUTS[call.form].free), AloneTimes(model)))

    @classmethod
    def nearest(cls, model: ComputeModel, tables: Loads, num_devices: int) -> "KernelModels":
        """Return `KernelModels` that searches can use in place of `model`: the predictions are computed from sums over
        shards (`SumModel`).
        If `model` is a `SumModel`, the returned models make the same predictions as `model`. Otherwise the returned
        models approximate the predictions of `model`.

        The approximation adds up the times of the loads alone, times a factor with which the time of `tables` (T,),
        spread evenly over the devices, is exact.
        """
        if isinstance(model, SumModel):
            return cls.of(model)
        dealt = LoadSets.grouped(tables, np.arange(len(tables)) % num_devices, num_devices)
        alone_ms = float(model.predict(LoadSets.alone(tables)).sum())
        share = float(model.device_ms(dealt).sum()) / alone_ms if alone_ms > 0 else 1.0
        return cls(dict.fromkeys(model.calls, AloneTimes(model, share)))

    @property
    def calls(self) -> frozenset[Call]:
        """The types of kernel calls whose times these models can predict."""
        return frozenset(self._models)

    @property
    def arithmetic(self) -> frozenset[Call]:
        """The types of kernel calls whose times are computed from a datasheet, at least in part. Such a type has an
        analytic model, or it has no separate model and is predicted by `BehindLink`.

        `BehindLink` predicts a call of tables in host memory if there is no separate model for this type of call. The
        prediction is the time of the same call in device memory, plus the time of the link to the host and of the
        cache.
        """
        of_models = {call for call, model in self.by_call.items() if model.arithmetic}
        return frozenset(of_models | (self._models.keys() - self.by_call.keys()))

    def coverage(self, loads: Loads) -> Coverage | None:
        """Return how well published measurements cover the shards in `loads` (`Coverage`). Each kernel model gives an
        answer for all these shards, and the worst answer is returned. If a model answers None, return None. Only models
        whose times are computed from a datasheet give another answer than None.
        """
        each = [model.coverage(loads) for model, _ in self._distinct]
        return max((known for known in each if known is not None), default=None) if None not in each else None

    @cached_property
    def _models(self) -> dict[Call, SumModel]:
        if self.host is None:
            return self.by_call
        behind: dict[Call, SumModel] = {
            call: BehindLink(self.by_call[on_device], self.host, call.tier)
            for call in CALLS
            if call not in self.by_call and (on_device := replace(call, tier=Tier.DEVICE)) in self.by_call
        }
        return behind | self.by_call

    @cached_property
    def _distinct(self) -> list[tuple[SumModel, list[int]]]:
        """The different models, as pairs (model, types): `types` has the types of kernel calls that the model predicts.
        A type is an index into `CALLS`, the tuple of all types of kernel calls.
        """
        served: dict[int, tuple[SumModel, list[int]]] = {}
        for call, model in self._models.items():
            served.setdefault(id(model), (model, []))[1].append(CALLS.index(call))
        return list(served.values())

    def of_call(self, call: Call) -> SumModel:
        """Return the model of one type of kernel call inside a training step; the prediction is a sum over tables."""
        model = self._models[call]
        return model if self.factor == 1.0 and not self.adds else StepTimes(model, self.factor, self.adds)

    def of_columns(self, tables: Loads) -> SumModel:
        """Return a model that predicts the total kernel time of a device for a set of column-wise shards. The shards
        come from the T tables in `tables`. If the device needs several kernels for the shards, the predicted time is
        the total of all kernels.
        """
        kernels = np.unique(tables.kernel)
        models = [self.of_call(CALLS[number]) for number in calls_of(kernels).tolist()]
        return models[0] if len(models) == 1 else Consecutive(tuple(zip(kernels.tolist(), models, strict=True)))

    @property
    def head(self) -> ReluHead:
        """The head that turns the summed vectors of pooled column-wise shards into the ms of their kernel call."""
        return self.of_call(COLUMN_WISE_CALL).head

    def embed(self, loads: Loads) -> Float32Array:
        """Return a vector of H numbers for each of n pooled column-wise shards (`loads`), (n, H).
        The vectors of all shards in a kernel call are added up, and `head` turns the sum into the time of the call. For
        shards in other types of kernel calls, use the models that `of_call` returns.
        """
        return self.of_call(COLUMN_WISE_CALL).embed(loads)

    def predict(self, sets: LoadSets) -> FloatArray:
        """Predict the time of each of B kernel calls, (B,) ms; each of the `sets` has the shards of one call."""
        kernels_ms = self._of_calls(sets, lambda model, calls: model.predict(calls))
        return self.factor * kernels_ms + sets.totals(_added_ms(self.adds, sets.loads))

    def spread_ms(self, sets: LoadSets) -> FloatArray:
        """Return the standard deviation of an ensemble's predictions for each of B kernel calls, (B,) ms."""
        return self.factor * self._of_calls(sets, lambda model, calls: model.spread_ms(calls))

    def _of_calls(self, sets: LoadSets, ask: Callable[[SumModel, LoadSets], FloatArray]) -> FloatArray:
        answers, call = np.zeros(len(sets)), sets.calls
        for model, served in self._distinct:
            which = np.flatnonzero(np.isin(call, served))
            if len(which):
                answers[which] = ask(model, sets if len(which) == len(sets) else sets.take(which))
        return answers

    @property
    def _named(self) -> dict[str, Any]:
        return {call.name: model for call, model in self.by_call.items()}

    def settings(self) -> dict[str, Any]:
        """Return the settings of the model, which are all fields that are not tensors, as values that
        JSON can store.
        """
        return {"calls": described(self._named)} | ({} if self.host is None else {"host": asdict(self.host)})

    def tensors(self) -> Tensors:
        """Return the tensors of all models; each name begins with the name of the type of kernel call."""
        return tensors_of(self._named)

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "KernelModels":
        """Return the models that were stored as `settings` and `tensors`. These are the results of the methods
        `settings()` and `tensors()` of the stored models.
        """
        read = parse(settings, KernelSettings, "settings")
        calls = read.calls
        if COLUMN_WISE_CALL.name not in calls:
            raise ValueError("the settings have no model of column_wise calls")
        models = {call_named(name): one.restored(COMPUTE_KINDS, name, tensors) for name, one in calls.items()}
        return cls(models, read.host)


def _added_ms(adds: tuple[Adds, ...], loads: Loads) -> FloatArray:
    return sum((added(loads) for added in adds), np.zeros(len(loads)))


@dataclass(frozen=True)
class StepTimes(SumModel):
    """Model of one type of kernel call inside a training step: the time of the same call outside a step, multiplied by
    a factor, plus additional ms for each shard.

    Attributes:
        model: model of the call outside a step.
        factor, adds: as in `KernelModels`.
    """

    model: SumModel
    factor: float
    adds: tuple[Adds, ...]

    @property
    def head(self) -> ReluHead:
        """The head that turns the summed vectors of the shards in a kernel call into the ms of the call inside a step.
        The head multiplies the time of the call outside a step by `factor`, and adds the last element of the summed
        vectors. This element is the additional ms of all shards together.
        """
        head = self.model.head
        return replace(head, scale_ms=head.scale_ms * self.factor).with_added_ms()

    def embed(self, loads: Loads) -> Float32Array:
        """Return a vector of H + 1 numbers for each of n shards (`loads`), (n, H + 1).
        The first H numbers are the vector from the model for calls outside a training step. The last number is the
        additional ms that the shard takes inside a step.
        """
        return np.column_stack([self.model.embed(loads), _added_ms(self.adds, loads)]).astype(np.float32)

    def predict(self, sets: LoadSets) -> FloatArray:
        """Predict the time of each of B kernel calls inside a training step, (B,) ms.
        The time is the time of the call outside a step, multiplied by `factor`, plus additional ms for each shard.
        """
        return self.factor * self.model.predict(sets) + sets.totals(_added_ms(self.adds, sets.loads))


@dataclass(frozen=True)
class AloneTimes(SumModel):
    """Model that predicts the time of a kernel call by adding up a time for each shard in the call. The time of a shard
    is the time of a kernel call with only this shard, multiplied by a factor.

    Attributes:
        model: model of the time of any kernel call.
        share: the factor.
    """

    head = ReluHead.of_cost()

    model: ComputeModel
    share: float = 1.0

    def embed(self, loads: Loads) -> Float32Array:
        """Return the time of a kernel call with only one shard, for each of n shards, (n, 1) ms. All times are
        multiplied by the attribute `share`, a constant factor.
        """
        return self.model.predict(LoadSets.alone(loads))[:, None].astype(np.float32) * np.float32(self.share)


@dataclass(frozen=True)
class Consecutive(SumModel):
    """Model of several kernels that a device runs one after the other. As in every `SumModel`, the vectors of the
    shards are added up. One head turns the sum over the shards of all kernels into the total time.

    The vector of a set is (v_1, ..., v_K, -n_1, ..., -n_K, 0): for each kernel k the sum v_k of its model's vectors,
    and the number n_k of its loads. `head` turns this vector into the time of all kernels. The time is the sum of the
    kernels' times, unless the model of some kernel alone predicts less than 0.

    Attributes:
        by_kernel: the K kernels, by `Loads.kernel`, each with its model.
    """

    by_kernel: tuple[tuple[int, SumModel], ...]

    def embed(self, loads: Loads) -> Float32Array:
        """Return a vector for each of n shards (`loads`), (n, H_1 + ... + H_K + K + 1). K counts the kernels, and H_k
        is the length of the vectors of kernel k. The vectors of a device's shards are added up, and `head` turns the
        sum into the total time of the K kernels.

        A vector has a block of H_k elements for each kernel k, then one counter for each kernel, then a 0. If kernel k
        looks up the shard, block k is the vector from the model of kernel k, and counter k is -1. All other elements
        are 0. In the sum, counter k is minus the number of shards of kernel k, so that `head` counts no time for a
        kernel without shards. At the last element, `head` adds the fixed times of the kernels.
        """
        width = [len(head.bias) for head in self._heads]
        vectors = np.zeros((len(loads), sum(width) + len(width) + 1), dtype=np.float32)
        first, numbers = 0, loads.kernel
        for k, (kernel, model) in enumerate(self.by_kernel):
            which = np.flatnonzero(numbers == kernel)
            if len(which):
                vectors[which, first : first + width[k]] = model.embed(loads.take(which))
            vectors[which, sum(width) + k] = -1
            first += width[k]
        return vectors

    @cached_property
    def _heads(self) -> tuple[ReluHead, ...]:
        return tuple(model.head for _, model in self.by_kernel)

    @cached_property
    def head(self) -> ReluHead:
        """The head that turns the summed vectors of a device's shards into the total ms of all kernels that the device
        calls.

        With b_k, w_k and o_k the bias, weight and offset of the head of kernel k, both of the latter in ms, it computes

            sum over k of relu(v_k + b_k) . w_k + o_k - idle_k relu(1 - n_k), where idle_k = relu(b_k) . w_k + o_k.

        A kernel that is called (n_k >= 1) takes the time of its own head. A kernel that is not called has v_k = 0, for
        which its own head gives idle_k: that is subtracted. The last number, 0, is there for the offsets: relu(0 + 1)
        times their sum.
        """
        biases = [head.bias for head in self._heads]
        weights = [head.weight.astype(np.float64) * head.scale_ms for head in self._heads]
        offsets = [head.offset * head.scale_ms for head in self._heads]
        own = zip(biases, weights, offsets, strict=True)
        idle = [offset + float(np.maximum(bias, 0) @ weight) for bias, weight, offset in own]
        bias = np.concatenate([*biases, np.ones(len(idle) + 1)])
        weight = np.concatenate([*weights, -np.array(idle), [sum(offsets)]])
        return ReluHead(bias.astype(np.float32), weight.astype(np.float32), 0.0, 1.0)
