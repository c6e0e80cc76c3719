"""Compute costs of tables in every form, pooled or not, from a model for each kernel call."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.models.host_tiers import BehindLink, HostLink
from neuroshard.models.interface import ReluHead, SumModel
from neuroshard.models.kinds import COMPUTE_KINDS, Described, described
from neuroshard.models.mlp import Tensors
from neuroshard.models.stored import Stored, tensors_of
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.plumbing.schema import parse
from neuroshard.words.form import CALLS, IN_COLUMNS, Call, call_named
from neuroshard.words.home import Tier


@dataclass(frozen=True)
class ByFormSettings:
    """The models', by the names of their calls; and the link to the host."""

    calls: Annotated[dict[str, Described], Meta(min_length=1, max_length=len(CALLS))]
    host: HostLink | None = None


@dataclass(frozen=True)
class ComputeByForm(Stored, SumModel):
    """A model for each kernel call. Of pooled columns it is the model of these, vectors and head included.

    Attributes:
        by_call: of each call that is known, pooled columns among them.
        host: what tables in host memory cost besides, where calls have no model of their own: they then have those of
            the same calls in device memory (`BehindLink`). None: they aren't known.
    """

    kind: ClassVar[str] = "by_form"

    by_call: dict[Call, SumModel]
    host: HostLink | None = None

    @property
    def calls(self) -> frozenset[Call]:
        """Those that there are models of."""
        return frozenset(self._models)

    @property
    def arithmetic(self) -> frozenset[Call]:
        """Calls whose models are, and those that have a datasheet's link for want of a model."""
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
        """Of sums of pooled column shards' vectors."""
        return self.by_call[IN_COLUMNS].head

    def embed(self, loads: Loads) -> Float32Array:
        """(n, H) a vector for each of n pooled column shards; the vectors of other calls are those of `of_call`."""
        return self.by_call[IN_COLUMNS].embed(loads)

    def of_call(self, call: Call) -> SumModel:
        """Return the model of that kernel call."""
        return self._models[call]

    def predict(self, sets: LoadSets) -> FloatArray:
        """(B,) ms of each of the B sets of loads; those of a set are of one call."""
        return self._of_calls(sets, lambda model, calls: model.predict(calls))

    def spread_ms(self, sets: LoadSets) -> FloatArray:
        """(B,) what the members of each call's ensemble disagree by, ms."""
        return self._of_calls(sets, lambda model, calls: model.spread_ms(calls))

    def _of_calls(self, sets: LoadSets, ask: Callable[[SumModel, LoadSets], FloatArray]) -> FloatArray:
        found, call = np.zeros(len(sets)), sets.calls
        for known, model in self._models.items():
            which = np.flatnonzero(call == CALLS.index(known))
            if len(which):
                found[which] = ask(model, sets.take(which))
        return found

    @property
    def _named(self) -> dict[str, Any]:
        return {call.name: model for call, model in self.by_call.items()}

    def settings(self) -> dict[str, Any]:
        """Return the fields that aren't tensors, for JSON."""
        return {"calls": described(self._named)} | ({} if self.host is None else {"host": asdict(self.host)})

    def tensors(self) -> Tensors:
        """The models', under the names of their calls."""
        return tensors_of(self._named)

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "ComputeByForm":
        """The model that gave the settings and tensors."""
        read = parse(settings, ByFormSettings, "settings")
        calls = read.calls
        if IN_COLUMNS.name not in calls:
            raise ValueError("it doesn't know columns")
        models = {call_named(name): one.restored(COMPUTE_KINDS, name, tensors) for name, one in calls.items()}
        return cls(models, read.host)
