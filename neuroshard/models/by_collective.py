"""Communication costs of plans in every form, from a model for each collective."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from neuroshard.cost.traffic import Traffic
from neuroshard.models.interface import NUM_WAITS, Chain, CommModel, OneDevice, Outline, waits
from neuroshard.models.kinds import COMM_KINDS, Described, described
from neuroshard.models.mlp import Tensors
from neuroshard.models.stored import Stored, tensors_of
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.schema import parse
from neuroshard.words.collective import Collective, collective_named, name_of
from neuroshard.words.coverage import Coverage
from neuroshard.words.form import Form, Forms


@dataclass(frozen=True)
class ByCollectiveSettings:
    """The models', by collective, and the forms that they serve together."""

    exchanges: Annotated[dict[str, Described], Meta(min_length=1, max_length=len(Collective))]
    serves: tuple[Form, ...]


@dataclass(frozen=True)
class CommByCollective(Stored, CommModel):
    """A model for each collective in one direction; exchanges follow one another, in the order of `Collective`.

    A device begins an exchange when its own part in the one before has ended, so what devices wait for in the first
    they don't wait for again. What every model promises of starts holds for the chain: nobody who starts later makes
    anybody end earlier, nor later by more than that. Each model sees its collective as `Traffic.alone` gives it.

    Attributes:
        exchanges: of each collective that is known, all-to-alls among them.
        serves: the forms whose exchanges in this direction are all known.
    """

    kind: ClassVar[str] = "by_collective"

    exchanges: dict[Collective, CommModel]
    serves: Forms

    @property
    def forms(self) -> Forms:
        """Return the forms whose exchanges in this direction are all known."""
        return self.serves

    @property
    def collectives(self) -> frozenset[Collective]:
        """Those that there are models of."""
        return frozenset(self.exchanges)

    @property
    def num_devices(self) -> int | None:
        """Return D, which the model of all-to-alls was fitted for; None if it serves any."""
        return self.exchanges[Collective.ALL_TO_ALL].num_devices

    def coverage(self, traffic: Traffic) -> Coverage | None:
        """How near published points are where they are farthest, of what its models are asked; None if all measured."""
        each = (model.coverage(traffic.alone(collective)) for collective, model in self.exchanges.items())
        return max((known for known in each if known is not None), default=None)

    @property
    def _all_to_all(self) -> CommModel:
        return self.exchanges[Collective.ALL_TO_ALL]

    def predict(self, traffic: Traffic, start_ms: FloatArray) -> FloatArray:
        """(B, D) ms of all exchanges, one after the other; at least the wait for the last device."""
        return self.chain(traffic, start_ms).total_ms

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """(B, D) ms that are left of all of them when the last device has started the first."""
        if _of_columns(traffic):
            return self._all_to_all.transfer_ms(traffic, wait_ms)
        return self.predict(traffic, -wait_ms) - wait_ms

    def chain(self, traffic: Traffic, start_ms: FloatArray) -> Chain:
        """Of the exchanges that there are anything of."""
        if _of_columns(traffic):
            return self._all_to_all.chain(traffic, start_ms)
        found: dict[Collective, FloatArray] = {}
        taken = np.zeros_like(start_ms)
        for collective, model in self.exchanges.items():
            if traffic.given(collective).any():
                found[collective] = _one_ms(model, traffic, collective, start_ms + taken)
                taken = taken + found[collective]
        return Chain(np.maximum(taken, waits(start_ms)), found)

    def outline(self, traffic: Traffic) -> Outline:
        """The all-to-all's, and the exchanges behind it as they are where nobody waits."""
        first = self._all_to_all.outline(traffic)
        if _of_columns(traffic):
            return first
        together = np.zeros(traffic.size_bytes.shape[:2])
        rest = self.transfer_ms(traffic, together) - self._all_to_all.transfer_ms(traffic, together)
        parts = np.concatenate([first.parts_ms, np.maximum(rest, 0)[..., None]], axis=-1)
        lead = np.concatenate([first.lead, np.zeros((1, NUM_WAITS))])
        return Outline(parts, np.concatenate([first.share, np.ones(1)]), lead)

    def least_outline(self, known: OneDevice) -> Outline:
        """Return the least that the all-to-all takes of a device, for any waits; what follows it counts as 0."""
        return self._all_to_all.least_outline(known)

    @property
    def _named(self) -> dict[str, Any]:
        return {name_of(collective): model for collective, model in self.exchanges.items()}

    def settings(self) -> dict[str, Any]:
        """Return the fields that aren't tensors, for JSON."""
        return {"exchanges": described(self._named), "serves": sorted(self.serves)}

    def tensors(self) -> Tensors:
        """The models', under the names of their collectives."""
        return tensors_of(self._named)

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "CommByCollective":
        """The model that gave the settings and tensors."""
        plain = parse(settings, ByCollectiveSettings, "settings")
        found = {
            collective_named(name): one.restored(COMM_KINDS, name, tensors) for name, one in plain.exchanges.items()
        }
        if Collective.ALL_TO_ALL not in found:
            raise ValueError("it doesn't know all-to-alls")
        return cls({collective: found[collective] for collective in sorted(found)}, frozenset(plain.serves))


def _of_columns(traffic: Traffic) -> bool:
    """Whether it is made of all-to-alls alone, as searches of columns make it: then nothing else is to be asked."""
    return traffic.held == (Collective.ALL_TO_ALL,)


def _one_ms(model: CommModel, traffic: Traffic, collective: Collective, start_ms: FloatArray) -> FloatArray:
    """(B, D) ms of one collective; nothing, waiting neither, among devices that put nothing in."""
    groups = traffic.groups(collective)
    taken = model.alone_ms(traffic.alone(collective), start_ms[:, groups].reshape(-1, groups.shape[1]))
    cost = np.empty_like(start_ms)
    cost[:, groups] = taken.reshape(len(traffic), *groups.shape)
    return cost
