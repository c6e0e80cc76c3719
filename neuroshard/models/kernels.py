"""Kernel times from a model for each kernel call."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.models.compute_models import (
    AdditiveCompute,
    ByWidestCompute,
    ComputeEnsemble,
    NeuralCompute,
    RegressionCompute,
)
from neuroshard.models.host_tiers import BehindLink, HostLink, HostTiers
from neuroshard.models.interface import ReluHead, SumModel
from neuroshard.models.stored import Described, Stored, Tensors, described, tensors_of
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.plumbing.schema import parse
from neuroshard.words.form import CALLS, IN_COLUMNS, Call, call_named
from neuroshard.words.placement import Tier

COMPUTE_KINDS: dict[str, Any] = {
    model.kind: model
    for model in (NeuralCompute, AdditiveCompute, ByWidestCompute, ComputeEnsemble, RegressionCompute, HostTiers)
}


@dataclass(frozen=True)
class ByFormSettings:
    """Settings of each call's model, by the names of the calls; and the link to the host."""

    calls: Annotated[dict[str, Described], Meta(min_length=1, max_length=len(CALLS))]
    host: HostLink | None = None


@dataclass(frozen=True)
class ComputeByForm(Stored, SumModel):
    """A model for each kernel call. For pooled column-wise tables this is the call's own model, with its head.

    Attributes:
        by_call: the model of each known call, with pooled column-wise tables among the calls.
        host: additional cost of tables in host memory, for calls without a model of their own: such calls use the model
            of the same call in device memory (`BehindLink`). None: the costs of such calls are not known.
    """

    kind: ClassVar[str] = "by_form"

    by_call: dict[Call, SumModel]
    host: HostLink | None = None

    @property
    def calls(self) -> frozenset[Call]:
        """The kernel calls that there are models of."""
        return frozenset(self._models)

    @property
    def arithmetic(self) -> frozenset[Call]:
        """The calls whose models are arithmetic, and those that have a datasheet's link for want of a model."""
        of_models = {call for call, model in self.by_call.items() if call in model.arithmetic}
        return frozenset(of_models | (self._models.keys() - self.by_call.keys()))

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

    @property
    def head(self) -> ReluHead:
        """The head for sums of pooled column shards' vectors."""
        return self.by_call[IN_COLUMNS].head

    def embed(self, loads: Loads) -> Float32Array:
        """Embed each of n pooled column shards as a vector, (n, H); other calls' vectors are those of `of_call`."""
        return self.by_call[IN_COLUMNS].embed(loads)

    def of_call(self, call: Call) -> SumModel:
        """Return the model of that kernel call."""
        return self._models[call]

    def predict(self, sets: LoadSets) -> FloatArray:
        """Predict the ms of each of the B sets of loads, (B,); those of a set are of one call."""
        return self._of_calls(sets, lambda model, calls: model.predict(calls))

    def spread_ms(self, sets: LoadSets) -> FloatArray:
        """Compute what the members of each call's ensemble disagree by, (B,) ms."""
        return self._of_calls(sets, lambda model, calls: model.spread_ms(calls))

    def _of_calls(self, sets: LoadSets, ask: Callable[[SumModel, LoadSets], FloatArray]) -> FloatArray:
        answers, call = np.zeros(len(sets)), sets.calls
        for known, model in self._models.items():
            which = np.flatnonzero(call == CALLS.index(known))
            if len(which):
                answers[which] = ask(model, sets.take(which))
        return answers

    @property
    def _named(self) -> dict[str, Any]:
        return {call.name: model for call, model in self.by_call.items()}

    def settings(self) -> dict[str, Any]:
        """Return the fields that aren't tensors, for JSON."""
        return {"calls": described(self._named)} | ({} if self.host is None else {"host": asdict(self.host)})

    def tensors(self) -> Tensors:
        """Return the models' tensors, under the names of their calls."""
        return tensors_of(self._named)

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "ComputeByForm":
        """Restore the model from the settings and tensors that it gave."""
        read = parse(settings, ByFormSettings, "settings")
        calls = read.calls
        if IN_COLUMNS.name not in calls:
            raise ValueError("the settings have no model of column_wise calls")
        models = {call_named(name): one.restored(COMPUTE_KINDS, name, tensors) for name, one in calls.items()}
        return cls(models, read.host)
