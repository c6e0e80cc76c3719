"""Fitting one compute model to several machines: the network is common, each machine has a few numbers of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from neuroshard.models import SumModel
from neuroshard.models.additive import AdditiveCompute
from neuroshard.models.features import FeatureSet
from neuroshard.models.mlp import Mlp, Normaliser
from neuroshard.models.shared import SharedCompute, SharedMember
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import shown
from neuroshard.stages.pretrain.examples import ComputeExamples, ComputeTable
from neuroshard.stages.pretrain.fit_additive import Additive, AdditiveNetwork, Ensemble
from neuroshard.stages.pretrain.fitting import OnEpoch
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.stages.pretrain.training import fit

_MOST_AXES = 64
_LEAST_DEVIATION = 1e-6  # of machines along an axis; less is none


class SharedNetwork(nn.Module):
    """An additive network that sees a machine's places beside a table's features, and multiplies by its speed.

    Which way costs go with places isn't given; which way with features is, at whatever places.

    Attributes:
        places: (M, A) of M machines on A axes.
        speed: (M,) logarithms.
        call: (A,) what a place adds to the cost of a call.
    """

    def __init__(
        self, signs: Sequence[int], hidden: tuple[int, ...], corrections: int, axes: int, speed: torch.Tensor
    ) -> None:
        super().__init__()
        self.network = AdditiveNetwork((*signs, *[0] * axes), hidden, corrections)
        self.places = nn.Parameter(torch.zeros(len(speed), axes))
        self.speed = nn.Parameter(speed.clone())
        self.call = nn.Parameter(torch.zeros(axes))

    def forward(
        self, features: torch.Tensor, segments: torch.Tensor, count: torch.Tensor, machine: torch.Tensor
    ) -> torch.Tensor:
        """(B, 1) costs of B sets, as `AdditiveNetwork`; `machine` (B,) says which of the M each was measured on."""
        places = self.places[machine]
        costs: torch.Tensor = self.network(torch.cat([features, places[segments]], dim=1), segments, count)
        return (costs + (places @ self.call)[:, None]) * self.speed[machine].exp()[:, None]

    @classmethod
    def of(cls, member: SharedMember) -> "SharedNetwork":
        """The fitted member, with one machine: the typical one."""
        typical = member.typical
        signs, widths = typical.features.signs, typical.network.widths
        network = cls(signs, tuple(widths[1:-1]), len(typical.bias), len(member.call), torch.zeros(1))
        first, *rest = typical.network.weights
        wider = Mlp((np.concatenate([first, member.inner]), *rest), typical.network.biases)
        network.network.load(replace(typical, network=wider))
        with torch.no_grad():
            network.call.copy_(torch.from_numpy(member.call))
        return network

    def member(self, features: FeatureSet, normaliser: Normaliser, scale_ms: float) -> SharedMember:
        """What was fitted, for inference; the typical machine is the mean of all, and axes are the principal ones."""
        fitted = self.network.model(features, normaliser, scale_ms)
        places, speed, call = (p.detach().numpy().astype(np.float64) for p in (self.places, self.speed, self.call))
        first, inner = np.split(fitted.network.weights[0], [len(features.columns)])
        mean, axes, along = _principal(places)
        numbers = np.concatenate([(speed - speed.mean())[:, None], along], axis=1)
        typical = _moved(fitted, first, mean @ inner, float(mean @ call), float(np.exp(speed.mean())))
        return SharedMember(typical, (axes @ inner).astype(np.float32), (axes @ call).astype(np.float32), numbers)


def _principal(places: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The mean (A,) of places (M, A), their principal axes (K, A) in standard deviations, and places on these (M, K).

    There are M - 1 axes at most: so many hold all differences.
    """
    mean = places.mean(axis=0)
    _, sizes, axes = np.linalg.svd(places - mean, full_matrices=False)
    kept = min(len(places) - 1, places.shape[1])
    deviations = np.maximum(sizes[:kept] / np.sqrt(len(places) - 1), _LEAST_DEVIATION)
    return mean, axes[:kept] * deviations[:, None], (places - mean) @ axes[:kept].T / deviations


def _moved(model: AdditiveCompute, first: Any, inner: FloatArray, call: float, factor: float) -> AdditiveCompute:
    """The model without what it sees of machines: at the places that add so much to biases and calls."""
    network = model.network
    biases = ((network.biases[0] + inner).astype(np.float32), *network.biases[1:])
    folded = Mlp((np.ascontiguousarray(first), *network.weights[1:]), biases)
    return replace(model, network=folded, offset=model.offset + call, scale_ms=model.scale_ms * factor)


@dataclass(frozen=True)
class SharedExamples:
    """n sets of tables, and the machine (n,) that each was measured on."""

    sets: ComputeExamples
    machine: torch.Tensor

    @property
    def targets(self) -> torch.Tensor:
        """Return the targets (n, 1), as multiples of the scale."""
        return self.sets.targets

    def inputs(self, chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """As `ComputeExamples`, and the machines (B,)."""
        return (*self.sets.inputs(chosen), self.machine[chosen])

    @classmethod
    def of(cls, tables: Sequence[ComputeTable], normaliser: Normaliser, scale_ms: float) -> "SharedExamples":
        """Of all machines' samples, one machine after the other."""
        machine = np.repeat(np.arange(len(tables)), [len(table.counts) for table in tables])
        return cls(_joined(tables).examples(normaliser, scale_ms), torch.from_numpy(machine))


def _joined(tables: Sequence[ComputeTable]) -> ComputeTable:
    parts = ((table.features, table.counts, table.cost_ms) for table in tables)
    return ComputeTable(*(np.concatenate(part) for part in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Across:
    """Several members, each a network that all machines share.

    Attributes:
        member: what each is without machines, and how it is fitted.
        members: models that are fitted from different starts; their spread tells how sure they are.
        axes: along which machines may differ, besides their speed.
    """

    goes_on_from: ClassVar[Any] = None

    member: Additive = field(default_factory=Additive)
    members: int = 4
    axes: int = 4

    def __post_init__(self) -> None:
        Ensemble(self.member, self.members)
        if type(self.axes) is not int or not 1 <= self.axes <= _MOST_AXES:
            raise UserError(f"across: axes={shown(self.axes)} must be a whole number from 1 to {_MOST_AXES}")

    @property
    def epochs(self) -> int:
        """At most so many are trained, over all members."""
        return self.members * self.member.epochs

    def fit(self, measured: SplitMeasurements, start: Any, seed: int, on_epoch: OnEpoch) -> SumModel:
        """Raise UserError: one machine has nothing to share."""
        raise UserError(
            "compute_model=across is fitted to several machines: neuroshard pretrain experiment=pretrain_across "
            "data=[data/one,data/other]"
        )

    def fit_machines(
        self, measured: Sequence[SplitMeasurements], names: Sequence[str], seed: int, on_epoch: OnEpoch
    ) -> SharedCompute:
        """Fitted to the training samples of at least two machines with these names, from nothing.

        Raises:
            UserError: the features don't show the batch size.
        """
        features = FeatureSet(self.member.features)
        if not features.sees_batch_size:
            raise UserError(f"features={features.name} don't show the batch size; choose features=physical_reuse")
        data = [[ComputeTable.of(part, features) for part in (one.train, one.valid)] for one in measured]
        train, valid = (list(parts) for parts in zip(*data, strict=True))
        members = []
        for number in range(self.members):
            done = number * self.member.epochs

            def told(epoch: int, loss: float, done: int = done) -> None:
                on_epoch(done + epoch, loss)

            members.append(self._member(train, valid, features, seed * 1000 + number, told))
        return SharedCompute(tuple(members), tuple(names))

    def _member(
        self,
        train: Sequence[ComputeTable],
        valid: Sequence[ComputeTable],
        features: FeatureSet,
        seed: int,
        on_epoch: OnEpoch,
    ) -> SharedMember:
        normaliser = Normaliser.fitted(_joined(train).features)
        typical_ms = np.array([np.median(table.cost_ms / table.counts) for table in train])
        scale_ms = float(np.median(typical_ms))
        speed = torch.from_numpy(np.log(typical_ms / scale_ms).astype(np.float32))
        torch.manual_seed(seed)
        network = SharedNetwork(features.signs, self.member.hidden, self.member.corrections, self.axes, speed)
        examples = [SharedExamples.of(part, normaliser, scale_ms) for part in (train, valid)]
        fit(network, examples[0], examples[1], self.member.training, seed, on_epoch)
        return network.member(features, normaliser, scale_ms)
