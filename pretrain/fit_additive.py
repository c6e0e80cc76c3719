"""Fit compute models, which predict kernel times: additive models, ensembles of additive models, and linear
regressions.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from msgspec import Meta
from sklearn.linear_model import LinearRegression
from torch import nn

from neuroshard.models.compute_models import AdditiveCompute, ByWidestCompute, ComputeEnsemble, RegressionCompute
from neuroshard.models.features import DIM, FeatureSet
from neuroshard.models.perceptron import Width, Widths
from neuroshard.models.stored import Normaliser
from neuroshard.plumbing.arrays import FloatArray, sums_of
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import SEEDS, Dim
from neuroshard.stages.pretrain.examples import ComputeTable
from neuroshard.stages.pretrain.fitting import ComputeFitter, HiddenLayers, OnEpoch, compute_tables
from neuroshard.stages.pretrain.measurements import SplitMeasurements
from neuroshard.stages.pretrain.networks import MonotoneNetwork, alternating, linear_layers, segment_sums
from neuroshard.stages.pretrain.result import accuracy_of
from neuroshard.stages.pretrain.training import FURTHER, RELATIVE, TrainingSettings, fit

_FIRST_SAVED = -1.5  # the initial logit of a saved share
_FIRST_WEIGHT = 0.01  # of corrections: at first, a set costs about the sum of its tables
_MOST_TABLES = 12
_FIRST_SHARE = 0.9  # initial share of a cost that comes from the regression; the network adds the rest
_LEAST_SHARE = 1e-4  # initial share of an amount that the regression sets to 0, so that training can change it
_NOTHING = 1e-12
_LEAST_MS = 1e-6  # in relative errors, so that a call that takes no time does not dominate the fit


class AdditiveNetwork(nn.Module):
    """A PyTorch network that learns the weights of an `AdditiveCompute` model. The fitted model then predicts kernel
    times without PyTorch.

    Bytes and lookups that a kernel moves are expressed in multiples of a typical table's, which the normaliser of the
    features knows.
    """

    def __init__(
        self,
        features: FeatureSet,
        normaliser: Normaliser,
        hidden: tuple[int, ...],
        corrections: int,
        kernel_widths: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self._kernel_widths, self._dim = kernel_widths, features.columns.index(DIM) if kernel_widths else 0
        # Widths are whole numbers, so a limit halfway between a width and the next whole number separates wider tables.
        limits = (np.log2(np.array(kernel_widths) + 0.5) - normaliser.shift[self._dim]) / normaliser.scale[self._dim]
        self._limits = torch.from_numpy(limits.astype(np.float32))
        self.saved = nn.Parameter(torch.full((len(kernel_widths),), _FIRST_SAVED))  # logits of saved shares
        self.network = MonotoneNetwork(features.signs, hidden, 1 + corrections)
        self._signs = alternating(corrections)
        self._moved = np.flatnonzero(features.adds_up)
        self._steps = torch.from_numpy(normaliser.scale[self._moved].astype(np.float32))
        self._typical = np.exp2(normaliser.shift[self._moved])
        self._num_features = len(features.columns)
        self.log_moved = nn.Parameter(torch.full((len(self._moved), 1 + corrections), math.log(_LEAST_SHARE)))
        # A table's amounts start at about 1, so these limits are spread over sets of few and of many tables.
        self.bias = nn.Parameter(-self._signs * torch.linspace(1, _MOST_TABLES, corrections))
        self.weight = nn.Parameter(_FIRST_WEIGHT * self._signs)
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, features: torch.Tensor, segments: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """Return the predicted times of B kernel calls, (B, 1), in units of `scale_ms`, which is chosen before
        training. Each kernel call looks up one set of tables.

        Args:
            features: (N, F), features of the tables of all sets.
            segments: (N,), the set of each table.
            count: (B,), tables per set.
        """
        moved = torch.exp2(features[:, self._moved] * self._steps) @ self.log_moved.exp()
        amounts = moved + self.network(features).exp()
        sums, own = segment_sums(amounts, segments, len(count)), amounts[:, 0]
        corrected = torch.relu(sums[:, 1:] * self._signs + self.bias) @ self._weight()
        costs: torch.Tensor = sums[:, :1] + (corrected + self.offset)[:, None]
        if not self._kernel_widths:
            return costs
        return costs - self._saved(own, features[:, self._dim], segments, len(count))[:, None]

    def _saved(self, own: torch.Tensor, dims: torch.Tensor, segments: torch.Tensor, sets: int) -> torch.Tensor:
        """Return the time that each kernel call saves because all tables in the call are narrow, (sets,). Each kernel
        call looks up one set of tables. For each limit in `kernel_widths`, a call saves a learned part of the costs of
        the tables if no table of the set is wider than the limit.

        `forward` subtracts the saved time from the predicted kernel time.

        Args:
            own: (N,), own costs of the tables.
            dims: (N,), normalised logarithms of the tables' widths.
            segments: (N,), the set of each table.
            sets: number of sets.
        """
        widest = torch.full((sets,), -torch.inf).scatter_reduce(0, segments, dims, "amax")
        saved, left = torch.zeros(sets), own
        for limit, share in zip(self._limits.flip(0), self.saved.sigmoid().flip(0), strict=True):
            part = left * share
            saved = saved + segment_sums(part[:, None], segments, sets)[:, 0] * (widest <= limit)
            left = left - part
        return saved

    def begin(self, train: ComputeTable, scale_ms: float) -> None:
        """Set the initial weights of the network, so that training begins near a linear regression. The regression
        predicts kernel times from moved bytes and lookups. In the beginning, most of a predicted cost comes from the
        regression, and a small rest comes from the layers of the network.
        """
        weight, offset_ms = solved(np.exp2(train.features[:, self._moved]), train)
        share = np.maximum(weight * self._typical / scale_ms, _LEAST_SHARE) * _FIRST_SHARE
        with torch.no_grad():
            self.log_moved.copy_(torch.from_numpy(np.log(share).astype(np.float32))[:, None])
            self.offset.fill_(offset_ms / scale_ms)
            linear_layers(self.network)[-1].bias[0] = math.log(1 - _FIRST_SHARE)

    def _weight(self) -> torch.Tensor:
        return self.weight.abs() * self._signs

    def load(self, model: AdditiveCompute) -> None:
        """Copy the weights of a fitted `AdditiveCompute` model into this network.

        Raises:
            UserError: the corrections' weights do not have the signs that this network needs.
        """
        self.network.load(model.network)
        if (model.weight * self._signs.numpy() < 0).any():
            raise UserError(
                "init-correction-signs",
                "the corrections in the compute model of init have other signs than the corrections in this "
                "compute_model",
                limit="fine-tuning needs the same signs",
                remedy="Remove init, or start from other models, such as init=cpu",
            )
        moved = model.moved[self._moved] * self._typical[:, None]
        with torch.no_grad():
            self.log_moved.copy_(torch.from_numpy(np.log(np.maximum(moved, _NOTHING))))
            self.bias.copy_(torch.from_numpy(model.bias))
            self.weight.copy_(torch.from_numpy(model.weight))
            self.offset.fill_(model.offset)
            if isinstance(model, ByWidestCompute):
                self.saved.copy_(torch.logit(torch.from_numpy(model.saved)))

    def model(self, features: FeatureSet, normaliser: Normaliser, scale_ms: float) -> AdditiveCompute:
        """Return the trained weights as an `AdditiveCompute` model for inference."""
        bias, weight = (parameter.detach().numpy().copy() for parameter in (self.bias, self._weight()))
        moved = np.zeros((self._num_features, 1 + len(bias)), np.float32)
        moved[self._moved] = self.log_moved.detach().exp().numpy() / self._typical[:, None]
        offset = float(self.offset.detach())
        fitted = features, normaliser, self.network.to_mlp(), moved, bias, weight, offset, scale_ms
        if not self._kernel_widths:
            return AdditiveCompute(*fitted)
        return ByWidestCompute(*fitted, self._kernel_widths, self.saved.detach().sigmoid().numpy().copy())


@dataclass(frozen=True)
@checked
class Additive(HiddenLayers, ComputeFitter):
    """Fits an additive model of kernel times. The time of a kernel call is the sum of one cost for each table in the
    call, plus learned corrections, because the tables in a call affect each other.

    Attributes:
        features: paper | paper_batch | log | physical | physical_reuse | physical_bags: table features: paper (as
            published), paper_batch (also batch size), log (logarithms of paper), physical (lookups and bytes per
            batch), physical_reuse (also row reuse), physical_bags (also number of outputs); keep the default unless you
            compare feature sets.
        corrections: number of learned terms added to the sum of single-table costs, because tables in one kernel call
            affect each other; larger values can fit finer effects, and predictions take longer. The width of the head's
            hidden layer.
        kernel_widths: list of table widths in columns, in increasing order, such as [32,64,128]; for each width the
            model learns how much cheaper a kernel call is if no table is wider, as on GPUs; [] learns no such effect.
        training_further: settings for fine-tuning a model of another machine.
    """

    goes_on_from: ClassVar[Any] = AdditiveCompute

    hidden: Widths = (128, 64)
    training: TrainingSettings = RELATIVE
    features: str = "physical_reuse"
    corrections: Width = 16
    kernel_widths: tuple[Dim, ...] = ()
    training_further: TrainingSettings = FURTHER

    def __post_init__(self) -> None:
        columns = FeatureSet(self.features).columns
        widths = [*self.kernel_widths]
        if widths and (DIM not in columns or sorted({*widths}) != widths):
            if DIM in columns:
                limit = "the widths must increase"
                remedy = f"Set kernel_widths=[{','.join(map(str, sorted({*widths})))}]"
            else:
                limit = f"kernel_widths needs features that include {DIM}"
                remedy = "Set features=physical_reuse, or set kernel_widths=[]"
            raise UserError(
                "kernel-widths-invalid",
                f"kernel_widths={widths} is not allowed with features={self.features}",
                limit=limit,
                remedy=remedy,
            )

    @property
    def further(self) -> "Additive":
        """A copy of this fitter with the settings for fine-tuning a model that was fitted on another machine."""
        return replace(self, training=self.training_further)

    def fit(self, measured: SplitMeasurements, start: Any, seed: int, on_epoch: OnEpoch) -> AdditiveCompute:
        """Fit a model to the training samples. If `start` is a model, fine-tune this model: the table features, the
        scales of features and times, and the layer widths stay the same.

        Raises:
            UserError: the samples have several batch sizes, which the features do not include.
        """
        features = FeatureSet(self.features) if start is None else start.features
        train, valid = compute_tables(measured, features)
        normaliser = Normaliser.fitted(train.features) if start is None else start.normaliser
        scale_ms = float(np.median(train.cost_ms / train.counts)) if start is None else start.scale_ms
        torch.manual_seed(seed)
        network = self._network(features, normaliser, start)
        if start is None:
            network.begin(train, scale_ms)
        fit(network, [table.examples(normaliser, scale_ms) for table in (train, valid)], self.training, seed, on_epoch)
        return network.model(features, normaliser, scale_ms)

    def _network(self, features: FeatureSet, normaliser: Normaliser, start: AdditiveCompute | None) -> AdditiveNetwork:
        """Return the network to train. If `start`, a fitted model, is given, the network gets the layer widths and the
        weights of `start`. If `start` is None, the network gets the layer widths of this fitter and initial weights.
        """
        if start is None:
            return AdditiveNetwork(features, normaliser, self.hidden, self.corrections, self.kernel_widths)
        widths = start.kernel_widths if isinstance(start, ByWidestCompute) else ()
        network = AdditiveNetwork(features, normaliser, tuple(start.network.widths[1:-1]), len(start.bias), widths)
        network.load(start)
        return network


@dataclass(frozen=True)
@checked
class Ensemble(ComputeFitter):
    """Fits an ensemble: several additive models with different initial weights and different orders of the samples.

    Attributes:
        member: settings of each model.
        members: number of networks in the ensemble, from 2 to 64, trained from different random weights; the spread of
            the predictions is the uncertainty of a cost, and training time grows in proportion.
    """

    goes_on_from: ClassVar[Any] = ComputeEnsemble

    member: Additive = field(default_factory=Additive)
    members: Annotated[int, Meta(ge=2, le=64)] = 4

    @property
    def epochs(self) -> int:
        """The maximum number of training epochs, summed over all members of the ensemble."""
        return self.members * self.member.epochs

    @property
    def further(self) -> "Ensemble":
        """A copy of this fitter with the settings for fine-tuning an ensemble that was fitted on another machine."""
        return replace(self, member=self.member.further)

    def fit(self, measured: SplitMeasurements, start: Any, seed: int, on_epoch: OnEpoch) -> ComputeEnsemble:
        """Fit every member of the ensemble: from scratch if `start` is None, and otherwise by fine-tuning the members
        of the ensemble `start`.
        """

        def fitted(number: int, start: Any) -> AdditiveCompute:
            before = number * self.member.epochs  # epochs of the members before this one
            member_seed = (seed * 1000 + number) % SEEDS
            return self.member.fit(measured, start, member_seed, lambda epoch, loss: on_epoch(before + epoch, loss))

        starts = [None] * self.members if start is None else start.members
        return ComputeEnsemble(tuple(map(fitted, range(len(starts)), starts)))


@dataclass(frozen=True)
class Regression(ComputeFitter):
    """Fits a linear regression of kernel times on table features: one non-negative weight for each feature. The weights
    minimise the squared relative error of the kernel times.

    Attributes:
        features: paper | paper_batch | log | physical | physical_reuse | physical_bags: table features: paper (as
            published), paper_batch (also batch size), log (logarithms of paper), physical (lookups and bytes per
            batch), physical_reuse (also row reuse), physical_bags (also number of outputs); keep the default unless you
            compare feature sets.
    """

    features: str = "physical"

    def __post_init__(self) -> None:
        FeatureSet(self.features)

    def fit(self, measured: SplitMeasurements, start: Any, seed: int, on_epoch: OnEpoch) -> RegressionCompute:
        """Fit a model from scratch; the result does not depend on `seed`.

        Raises:
            UserError: the samples have several batch sizes, which the features do not include.
        """
        features = FeatureSet(self.features)
        train, valid = compute_tables(measured, features)
        weight, offset_ms = solved(features.amounts(train.features), train)
        model = RegressionCompute(features, weight, np.array([offset_ms]))
        costs = sums_of(features.amounts(valid.features) @ model.weight[:, None], valid.counts)
        predicted = model.head(costs.astype(np.float32))
        on_epoch(0, accuracy_of(predicted, valid.cost_ms).mape)
        return model


def solved(amounts: FloatArray, train: ComputeTable) -> tuple[FloatArray, float]:
    """Fit a linear regression that predicts kernel times from F amounts of work, such as moved bytes. Return the
    non-negative coefficients, (F,), in ms per unit of each amount, and the fixed time of a kernel call in ms.

    Args:
        amounts: (N, F), amounts of all tables.
        train: the measured kernel calls.
    """
    sums = sums_of(amounts, train.counts)
    unit = np.maximum(sums.max(axis=0), 1.0)  # amounts are of very different sizes
    fitted = LinearRegression(positive=True).fit(sums / unit, train.cost_ms, np.maximum(train.cost_ms, _LEAST_MS) ** -2)
    return fitted.coef_ / unit, float(fitted.intercept_)
