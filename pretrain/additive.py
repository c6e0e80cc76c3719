"""Fitting additive compute models, alone and as ensembles."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from neuroshard.errors import UserError
from neuroshard.features import FeatureSet
from neuroshard.models.additive import AdditiveCompute
from neuroshard.models.ensemble import ComputeEnsemble
from neuroshard.models.mlp import Normaliser
from neuroshard.perceptron import perceptron
from neuroshard.pretrain.fitting import HiddenLayers, OnEpoch, check_start, compute_tables
from neuroshard.pretrain.measured import Measured
from neuroshard.pretrain.networks import checked_widths, last_layer, load_mlp, segment_sums, to_mlp
from neuroshard.pretrain.training import fit


class AdditiveNetwork(nn.Module):
    """The trainable form of `AdditiveCompute`."""

    def __init__(self, num_features: int, hidden: tuple[int, ...], corrections: int) -> None:
        super().__init__()
        self.network = perceptron((num_features, *hidden, 1 + corrections))
        self.bias = nn.Parameter(torch.zeros(corrections))
        self.weight = nn.Parameter(torch.zeros(corrections))  # sets start as the sum of their tables
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, features: torch.Tensor, segments: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """(B, 1) costs of B = len(count) sets; features (N, F) of all their tables, the set of each, (N,)."""
        hidden, last = self.network[:-1](features), last_layer(self.network)
        own = (hidden @ last.weight[:1].T + last.bias[:1]).exp()
        vectors = segment_sums(hidden, segments, len(count)) @ last.weight[1:].T + count[:, None] * last.bias[1:]
        corrected = torch.relu(vectors + self.bias) @ self.weight
        costs: torch.Tensor = segment_sums(own, segments, len(count)) + (corrected + self.offset)[:, None]
        return costs

    def load(self, model: AdditiveCompute) -> None:
        """Take the weights of a fitted model."""
        load_mlp(self.network, model.network)
        with torch.no_grad():
            self.bias.copy_(torch.from_numpy(model.bias))
            self.weight.copy_(torch.from_numpy(model.weight))
            self.offset.fill_(model.offset)


@dataclass(frozen=True)
class Additive(HiddenLayers):
    """An own cost for every table, and a correction of the sum.

    Attributes:
        features: name of the feature set.
        corrections: width of the head's hidden layer.
    """

    hidden: tuple[int, ...] = (64, 64)
    features: str = "physical"
    corrections: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_widths("corrections", [self.corrections])
        FeatureSet(self.features)

    def fit(self, measured: Measured, start: Any, seed: int, on_epoch: OnEpoch) -> AdditiveCompute:
        """Fitted to the training samples; from `start` on, with its features, scales and widths.

        Raises:
            UserError: the start is of another form; or there are several batch sizes, which the features don't show.
        """
        check_start(start, AdditiveCompute)
        features = FeatureSet(self.features) if start is None else start.features
        train, valid = compute_tables(measured, features)
        normaliser = Normaliser.fitted(train.features) if start is None else start.normaliser
        scale_ms = float(np.median(train.cost_ms / train.counts)) if start is None else start.scale_ms
        torch.manual_seed(seed)
        network = self._network(len(features.columns), start)
        examples = [part.examples(normaliser, scale_ms) for part in (train, valid)]
        fit(network, examples[0], examples[1], self.training, seed, on_epoch)
        bias, weight = (part.detach().numpy().copy() for part in (network.bias, network.weight))
        return AdditiveCompute(
            features, normaliser, to_mlp(network.network), bias, weight, float(network.offset.detach()), scale_ms
        )

    def _network(self, num_features: int, start: AdditiveCompute | None) -> AdditiveNetwork:
        if start is None:
            return AdditiveNetwork(num_features, self.hidden, self.corrections)
        network = AdditiveNetwork(num_features, tuple(start.network.widths[1:-1]), len(start.bias))
        network.load(start)
        return network


@dataclass(frozen=True)
class Ensemble:
    """Several additive models, from different initial weights and orders of samples.

    Attributes:
        member: how each is fitted.
        members: how many.
    """

    member: Additive = field(default_factory=Additive)
    members: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.members, int) or self.members < 2:
            raise UserError(f"ensemble: members={self.members!r} must be a whole number of at least 2")

    @property
    def epochs(self) -> int:
        """Over all members."""
        return self.members * self.member.epochs

    def fit(self, measured: Measured, start: Any, seed: int, on_epoch: OnEpoch) -> ComputeEnsemble:
        """Every member fitted; from `start`'s members on, if it is given."""
        check_start(start, ComputeEnsemble)
        starts = [None] * self.members if start is None else start.members
        fitted = []
        for number, one in enumerate(starts):
            done = number * self.member.epochs

            def told(epoch: int, loss: float, done: int = done) -> None:
                on_epoch(done + epoch, loss)

            fitted.append(self.member.fit(measured, one, seed * 1000 + number, told))
        return ComputeEnsemble(tuple(fitted))
