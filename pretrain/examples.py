"""Measurements as tensors: whole sets of examples from which a batch is cut without a Python loop."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from neuroshard.models.comm_models import comm_inputs
from neuroshard.models.features import FeatureSet
from neuroshard.models.interface import waits
from neuroshard.models.stored import Normaliser
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.records.sample_loads import loads_of, starts_of, traffic_of
from neuroshard.records.samples import CommSample, ComputeSample, Measurement


@dataclass(frozen=True)
class Examples:
    """Inputs of one network with its targets.

    Attributes:
        all_inputs: what it takes, (n, ...) each.
        targets: (n, K), as multiples of a scale.
    """

    all_inputs: tuple[torch.Tensor, ...]
    targets: torch.Tensor

    def inputs(self, chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Take the network's inputs for the examples `chosen` (B,)."""
        return tuple(tensor[chosen] for tensor in self.all_inputs)


@dataclass(frozen=True)
class ComputeExamples(Examples):
    """n sets of tables, packed: features (N, F) of all tables, first table of each set and how many, (n,)."""

    def inputs(self, chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Take features (M, F) of the chosen sets' tables, the set of each (M,), and counts (B,)."""
        features, first, counts = self.all_inputs
        count = counts[chosen]
        segments = torch.repeat_interleave(torch.arange(len(chosen)), count)
        ends = count.cumsum(0)
        within = torch.arange(int(ends[-1])) - (ends - count)[segments]
        return features[first[chosen][segments] + within], segments, count


@dataclass(frozen=True)
class ComputeTable:
    """Compute measurements as arrays: (N, F) raw features, (n,) counts, (n,) cost in ms."""

    features: FloatArray
    counts: IntArray
    cost_ms: FloatArray

    @classmethod
    def of(cls, measurements: Sequence[Measurement[ComputeSample]], features: FeatureSet) -> "ComputeTable":
        """Gather the measurements as arrays, in order; all must have repeats."""
        sets = loads_of([m.sample for m in measurements])
        costs = np.array([m.typical_ms for m in measurements])
        return cls(features(sets.loads), sets.counts, costs)

    def examples(self, normaliser: Normaliser, scale_ms: float) -> ComputeExamples:
        """Make normalised examples of the measurements, as tensors."""
        counts = torch.from_numpy(self.counts)
        inputs = torch.from_numpy(normaliser(self.features)), counts.cumsum(0) - counts, counts
        return ComputeExamples(inputs, in_multiples(self.cost_ms[:, None], scale_ms))


@dataclass(frozen=True)
class CommTable:
    """Exchange measurements of one direction as arrays: (n, 2 D) raw features; transfers (n, D) ms.

    Devices are in the sorted order that the network sees.
    """

    features: FloatArray
    transfer_ms: FloatArray

    @classmethod
    def of(cls, measurements: Sequence[Measurement[CommSample]], direction: int) -> "CommTable":
        """Gather the measurements as arrays: FORWARD runs after the start delays, BACKWARD with no delays."""
        samples, cost = [m.sample for m in measurements], np.array([m.typical_ms[direction] for m in measurements])
        wait = waits(starts_of(samples, direction))
        order, features = comm_inputs(traffic_of(samples), wait)
        return cls(features, np.take_along_axis(cost - wait, order, axis=1))

    def examples(self, normaliser: Normaliser, scale_ms: float) -> Examples:
        """Make normalised examples, as tensors: (n, 2 D) and (n, D), devices in sorted order."""
        return Examples((torch.from_numpy(normaliser(self.features)),), in_multiples(self.transfer_ms, scale_ms))


def in_multiples(ms: FloatArray, scale_ms: float) -> torch.Tensor:
    """Divide times (...,) by a scale, as a network sees them."""
    return torch.from_numpy((ms / scale_ms).astype(np.float32))
