"""Fitting additive compute models, alone and as ensembles."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from neuroshard.models.additive import AdditiveCompute, ComputeEnsemble
from neuroshard.models.features import FeatureSet
from neuroshard.models.mlp import Normaliser
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import shown
from neuroshard.stages.pretrain.fitting import ComputeFitter, HiddenLayers, OnEpoch, compute_tables
from neuroshard.stages.pretrain.measurements import SplitMeasurements
from neuroshard.stages.pretrain.networks import MonotoneNetwork, alternating, checked_widths, segment_sums
from neuroshard.stages.pretrain.training import FURTHER, RELATIVE, TrainingSettings, fit

_FIRST_WEIGHT = 0.01  # of corrections: sets start as about the sum of their tables
_MOST_TABLES = 12
_MOST_MEMBERS = 64


class AdditiveNetwork(nn.Module):
    """Trains what `AdditiveCompute` holds."""

    def __init__(self, signs: Sequence[int], hidden: tuple[int, ...], corrections: int) -> None:
        super().__init__()
        self.network = MonotoneNetwork(signs, hidden, 1 + corrections)
        self._signs = alternating(corrections)
        # A table's amounts begin at about 1: limits are spread over sets of few tables and of many.
        self.bias = nn.Parameter(-self._signs * torch.linspace(1, _MOST_TABLES, corrections))
        self.weight = nn.Parameter(_FIRST_WEIGHT * self._signs)
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, features: torch.Tensor, segments: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """(B, 1) costs of B = len(count) sets; features (N, F) of all their tables, the set of each, (N,)."""
        sums = segment_sums(self.network(features).exp(), segments, len(count))
        corrected = torch.relu(sums[:, 1:] * self._signs + self.bias) @ self._weight()
        costs: torch.Tensor = sums[:, :1] + (corrected + self.offset)[:, None]
        return costs

    def _weight(self) -> torch.Tensor:
        return self.weight.abs() * self._signs

    def load(self, model: AdditiveCompute) -> None:
        """Take the weights of a fitted model.

        Raises:
            UserError: they don't have the signs of this kind.
        """
        self.network.load(model.network)
        if (model.weight * self._signs.numpy() < 0).any():
            raise UserError("init is a model whose corrections have other signs; leave init out")
        with torch.no_grad():
            self.bias.copy_(torch.from_numpy(model.bias))
            self.weight.copy_(torch.from_numpy(model.weight))
            self.offset.fill_(model.offset)

    def model(self, features: FeatureSet, normaliser: Normaliser, scale_ms: float) -> AdditiveCompute:
        """What was fitted, for inference."""
        bias, weight = (part.detach().numpy().copy() for part in (self.bias, self._weight()))
        offset = float(self.offset.detach())
        return AdditiveCompute(features, normaliser, self.network.to_mlp(), bias, weight, offset, scale_ms)


@dataclass(frozen=True)
class Additive(HiddenLayers, ComputeFitter):
    """An own cost for every table, and a correction of the sum.

    Attributes:
        hidden: widths of the network's layers.
        features: paper | paper_batch | log | physical | physical_reuse.
        corrections: numbers that say what tables do to each other. The width of the head's hidden layer.
        training_further: how a model of another machine is fitted further.
    """

    goes_on_from: ClassVar[Any] = AdditiveCompute

    hidden: tuple[int, ...] = (128, 64)
    training: TrainingSettings = RELATIVE
    features: str = "physical_reuse"
    corrections: int = 16
    training_further: TrainingSettings = FURTHER

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_widths("corrections", [self.corrections])
        FeatureSet(self.features)

    @property
    def further(self) -> "Additive":
        """Return what goes on from another machine's model."""
        return replace(self, training=self.training_further)

    def fit(self, measured: SplitMeasurements, start: Any, seed: int, on_epoch: OnEpoch) -> AdditiveCompute:
        """Fitted to the training samples; from `start` on, with its features, scales and widths.

        Raises:
            UserError: there are several batch sizes, which the features don't show.
        """
        features = FeatureSet(self.features) if start is None else start.features
        train, valid = compute_tables(measured, features)
        normaliser = Normaliser.fitted(train.features) if start is None else start.normaliser
        scale_ms = float(np.median(train.cost_ms / train.counts)) if start is None else start.scale_ms
        torch.manual_seed(seed)
        network = self._network(features, start)
        examples = [part.examples(normaliser, scale_ms) for part in (train, valid)]
        fit(network, examples[0], examples[1], self.training, seed, on_epoch)
        return network.model(features, normaliser, scale_ms)

    def _network(self, features: FeatureSet, start: AdditiveCompute | None) -> AdditiveNetwork:
        if start is None:
            return AdditiveNetwork(features.signs, self.hidden, self.corrections)
        network = AdditiveNetwork(features.signs, tuple(start.network.widths[1:-1]), len(start.bias))
        network.load(start)
        return network


@dataclass(frozen=True)
class Ensemble(ComputeFitter):
    """Several additive models, from different initial weights and orders of samples.

    Attributes:
        member: how each is fitted.
        members: models that are fitted from different starts; their spread tells how sure they are.
    """

    goes_on_from: ClassVar[Any] = ComputeEnsemble

    member: Additive = field(default_factory=Additive)
    members: int = 4

    def __post_init__(self) -> None:
        if type(self.members) is not int or not 2 <= self.members <= _MOST_MEMBERS:
            raise UserError(f"ensemble: members={shown(self.members)} must be a whole number from 2 to {_MOST_MEMBERS}")

    @property
    def epochs(self) -> int:
        """At most so many are trained, over all members."""
        return self.members * self.member.epochs

    @property
    def further(self) -> "Ensemble":
        """Return what goes on from another machine's ensemble."""
        return replace(self, member=self.member.further)

    def fit(self, measured: SplitMeasurements, start: Any, seed: int, on_epoch: OnEpoch) -> ComputeEnsemble:
        """Every member fitted; from `start`'s members on, if it is given."""
        starts = [None] * self.members if start is None else start.members
        fitted = []
        for number, one in enumerate(starts):
            done = number * self.member.epochs

            def told(epoch: int, loss: float, done: int = done) -> None:
                on_epoch(done + epoch, loss)

            fitted.append(self.member.fit(measured, one, seed * 1000 + number, told))
        return ComputeEnsemble(tuple(fitted))
