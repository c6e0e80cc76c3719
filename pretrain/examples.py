"""Measurements as tensors: whole sets of examples from which a batch is cut without a Python loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from neuroshard.models.features import FeatureSet
from neuroshard.models.interface import waits
from neuroshard.models.mlp import Normaliser
from neuroshard.models.neural import comm_inputs
from neuroshard.plumbing.arrays import Float32Array, FloatArray, IntArray
from neuroshard.plumbing.timing import typical_ms
from neuroshard.records.sample_loads import loads_of, traffic_of
from neuroshard.records.samples import FORWARD, CommSample, ComputeSample, Measurement


class Examples(Protocol):
    """Inputs of one network with its targets (n, K), as multiples of a scale."""

    @property
    def targets(self) -> torch.Tensor:
        """Return the targets (n, K), as multiples of the scale."""
        ...

    def inputs(self, chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the network takes for the examples `chosen` (B,)."""
        ...


@dataclass(frozen=True)
class ComputeExamples:
    """n sets of tables, packed: features (N, F) of all tables, first table of each set and how many, (n,)."""

    features: torch.Tensor
    first: torch.Tensor
    count: torch.Tensor
    targets: torch.Tensor

    def inputs(self, chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Features (M, F) of the chosen sets' tables, the set of each (M,), and counts (B,)."""
        count = self.count[chosen]
        segments = torch.repeat_interleave(torch.arange(len(chosen)), count)
        ends = count.cumsum(0)
        within = torch.arange(int(ends[-1])) - (ends - count)[segments]
        return self.features[self.first[chosen][segments] + within], segments, count


@dataclass(frozen=True)
class FlatExamples:
    """n examples of the same shape: features (n, F), targets (n, K)."""

    features: torch.Tensor
    targets: torch.Tensor

    def inputs(self, chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the features (B, F) of the chosen examples."""
        return (self.features[chosen],)

    @classmethod
    def of(cls, features: Float32Array, targets: FloatArray) -> "FlatExamples":
        """From arrays; targets may be (n,)."""
        return cls(torch.from_numpy(features), torch.from_numpy(targets.reshape(len(features), -1).astype(np.float32)))


@dataclass(frozen=True)
class ComputeTable:
    """Compute measurements as arrays: (N, F) raw features, (n,) counts, (n,) cost in ms."""

    features: FloatArray
    counts: IntArray
    cost_ms: FloatArray

    @classmethod
    def of(cls, measurements: Sequence[Measurement[ComputeSample]], features: FeatureSet) -> "ComputeTable":
        """The measurements, in order; all must have repeats."""
        sets = loads_of([m.sample for m in measurements])
        costs = np.array([typical_ms(m.repeats.times_ms) for m in measurements if m.repeats is not None])
        return cls(features(sets.loads), sets.counts, costs)

    def examples(self, normaliser: Normaliser, scale_ms: float) -> ComputeExamples:
        """Normalised, as tensors."""
        counts = torch.from_numpy(self.counts)
        targets = torch.from_numpy((self.cost_ms / scale_ms)[:, None].astype(np.float32))
        return ComputeExamples(torch.from_numpy(normaliser(self.features)), counts.cumsum(0) - counts, counts, targets)


@dataclass(frozen=True)
class CommTable:
    """Exchange measurements of one direction as arrays: (n, 2 D) raw features; transfer, wait and cost (n, D) ms.

    Transfers are in the sorted order that the network sees, waits and costs in the devices' own.
    """

    features: FloatArray
    transfer_ms: FloatArray
    start_ms: FloatArray
    cost_ms: FloatArray

    @classmethod
    def of(cls, measurements: Sequence[Measurement[CommSample]], direction: int) -> "CommTable":
        """FORWARD runs after the start delays, BACKWARD with no delays."""
        traffic = traffic_of([m.sample for m in measurements])
        starts = np.array([m.sample.start_ms for m in measurements])
        starts = starts if direction == FORWARD else np.zeros_like(starts)
        cost = np.array([typical_ms(m.repeats.times_ms)[direction] for m in measurements if m.repeats is not None])
        wait = waits(starts)
        order, features = comm_inputs(traffic, wait)
        return cls(features, np.take_along_axis(cost - wait, order, axis=1), starts, cost)

    def examples(self, normaliser: Normaliser, scale_ms: float) -> FlatExamples:
        """Normalised, as tensors: (n, 2 D) and (n, D), devices in sorted order."""
        return FlatExamples.of(normaliser(self.features), self.transfer_ms / scale_ms)
