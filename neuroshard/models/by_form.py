"""Costs of plans of every sharding type, from a model for each kernel call and a model for each collective."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from neuroshard.cost.loads import Loads, LoadSets, Traffic
from neuroshard.models.comm_models import NeuralComm, SetComm
from neuroshard.models.compute_models import (
    AdditiveCompute,
    ByWidestCompute,
    ComputeEnsemble,
    NeuralCompute,
    RegressionCompute,
)
from neuroshard.models.host_tiers import BehindLink, HostLink, HostTiers
from neuroshard.models.interface import NUM_WAITS, Chain, CommModel, Coverage, Outline, ReluHead, SumModel, waits
from neuroshard.models.stored import Stored, Tensors, tensors_of, within
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.plumbing.errors import check_name
from neuroshard.plumbing.schema import parse
from neuroshard.words.collective import Collective, collective_named, name_of
from neuroshard.words.form import CALLS, IN_COLUMNS, Call, Form, Forms, call_named
from neuroshard.words.placement import Tier

COMPUTE_KINDS: dict[str, Any] = {
    model.kind: model
    for model in (NeuralCompute, AdditiveCompute, ByWidestCompute, ComputeEnsemble, RegressionCompute, HostTiers)
}
COMM_KINDS: dict[str, Any] = {model.kind: model for model in (NeuralComm, SetComm)}


@dataclass(frozen=True)
class Described:
    """A model in `bundle.json`; its class knows what the settings are."""

    kind: str
    settings: dict[str, Any]

    @classmethod
    def of(cls, model: Stored) -> "Described":
        """Describe the model by its kind and settings."""
        return cls(model.kind, model.settings())

    def restored(self, kinds: dict[str, Any], name: str, tensors: Tensors) -> Any:
        """Restore the model called `name`, of one of the kinds, from the tensors that `name` and a dot precede.

        Raises:
            UserError: it is of no such kind.
            ValueError: settings or tensors can't be such a model's.
        """
        check_name(f"kind of {name} model", self.kind, kinds)
        return kinds[self.kind].restored(self.settings, within(tensors, name))


def described(models: dict[str, Stored]) -> dict[str, Any]:
    """Describe several models by their kinds and settings, by name."""
    return {name: asdict(Described.of(model)) for name, model in models.items()}


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


@dataclass(frozen=True)
class ByCollectiveSettings:
    """Settings of each collective's model, and the families of sharding types that they serve together."""

    exchanges: Annotated[dict[str, Described], Meta(min_length=1, max_length=len(Collective))]
    serves: tuple[Form, ...]


@dataclass(frozen=True)
class CommByCollective(Stored, CommModel):
    """A model for each collective in one direction; exchanges follow one another, in the order of `Collective`.

    A device begins an exchange when it has ended the previous exchange, so devices do not wait twice for the same
    delay. The promise of every model about starts holds for the chain: if a device starts later, no device ends
    earlier, and no device ends later by more than the delay. Each model sees its collective as `Traffic.alone` returns
    it.

    Attributes:
        exchanges: the model of each known collective, with all-to-alls among them.
        serves: families of sharding types whose exchanges in this direction are all known.
    """

    kind: ClassVar[str] = "by_collective"

    exchanges: dict[Collective, CommModel]
    serves: Forms

    @property
    def forms(self) -> Forms:
        """The families of sharding types whose exchanges in this direction are all known."""
        return self.serves

    @property
    def collectives(self) -> frozenset[Collective]:
        """The collectives that there are models of."""
        return frozenset(self.exchanges)

    @property
    def num_devices(self) -> int | None:
        """D, which the model of all-to-alls was fitted for; None if it serves any."""
        return self.exchanges[Collective.ALL_TO_ALL].num_devices

    def coverage(self, traffic: Traffic) -> Coverage | None:
        """Return how near published points are to the traffic, for the farthest collective; None if all are fitted."""
        each = (model.coverage(traffic.alone(collective)) for collective, model in self.exchanges.items())
        return max((known for known in each if known is not None), default=None)

    @property
    def _all_to_all(self) -> CommModel:
        return self.exchanges[Collective.ALL_TO_ALL]

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Predict the ms that are left of all exchanges when the straggler has started the first, (B, D)."""
        if _of_columns(traffic):
            return self._all_to_all.transfer_ms(traffic, wait_ms)
        return self.predict(traffic, -wait_ms) - wait_ms

    def chain(self, traffic: Traffic, start_ms: FloatArray) -> Chain:
        """Predict the exchanges that anything is put into, one after the other; all take the wait for the straggler."""
        if _of_columns(traffic):
            return self._all_to_all.chain(traffic, start_ms)
        each_ms: dict[Collective, FloatArray] = {}
        taken = np.zeros_like(start_ms)
        for collective, model in self.exchanges.items():
            if traffic.given(collective).any():
                each_ms[collective] = _one_ms(model, traffic, collective, start_ms + taken)
                taken = taken + each_ms[collective]
        return Chain(np.maximum(taken, waits(start_ms)), each_ms)

    def outline(self, traffic: Traffic) -> Outline:
        """Outline the all-to-all, and the exchanges behind it as they are where nobody waits."""
        first = self._all_to_all.outline(traffic)
        if _of_columns(traffic):
            return first
        together = np.zeros(traffic.size_bytes.shape[:2])
        rest = self.transfer_ms(traffic, together) - self._all_to_all.transfer_ms(traffic, together)
        segments = np.concatenate([first.segments_ms, np.maximum(rest, 0)[..., None]], axis=-1)
        lead = np.concatenate([first.lead, np.zeros((1, NUM_WAITS))])
        return Outline(segments, np.concatenate([first.share, np.ones(1)]), lead)

    @property
    def _named(self) -> dict[str, Any]:
        return {name_of(collective): model for collective, model in self.exchanges.items()}

    def settings(self) -> dict[str, Any]:
        """Return the fields that aren't tensors, for JSON."""
        return {"exchanges": described(self._named), "serves": sorted(self.serves)}

    def tensors(self) -> Tensors:
        """Return the models' tensors, under the names of their collectives."""
        return tensors_of(self._named)

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "CommByCollective":
        """Restore the model from the settings and tensors that it gave."""
        plain = parse(settings, ByCollectiveSettings, "settings")
        models = {
            collective_named(name): one.restored(COMM_KINDS, name, tensors) for name, one in plain.exchanges.items()
        }
        if Collective.ALL_TO_ALL not in models:
            raise ValueError("the settings have no model of all-to-alls")
        return cls({collective: models[collective] for collective in sorted(models)}, frozenset(plain.serves))


def _of_columns(traffic: Traffic) -> bool:
    """Tell whether traffic is all-to-alls alone, as searches of columns make it: nothing else is to be asked then."""
    return traffic.held == (Collective.ALL_TO_ALL,)


def _one_ms(model: CommModel, traffic: Traffic, collective: Collective, start_ms: FloatArray) -> FloatArray:
    """Predict the ms of one collective, (B, D); 0, with no waiting either, among devices that put nothing in."""
    groups = traffic.groups(collective)
    taken = model.alone_ms(traffic.alone(collective), start_ms[:, groups].reshape(-1, groups.shape[1]))
    cost = np.empty_like(start_ms)
    cost[:, groups] = taken.reshape(len(traffic), *groups.shape)
    return cost
