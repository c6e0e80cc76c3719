"""Training examples as tensors, made from measurements. A batch of examples is taken from the tensors without a Python
loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from neuroshard.measure.store.sample_loads import loads_of, starts_of, traffic_of
from neuroshard.measure.store.samples import CommSample, ComputeSample, Measurement
from neuroshard.models.comm_models import comm_inputs
from neuroshard.models.features import FeatureSet
from neuroshard.models.interface import waits
from neuroshard.models.stored import Normaliser
from neuroshard.plumbing.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Examples:
    """Training examples of one network: the inputs and the targets.

    Attributes:
        all_inputs: the inputs of all n examples; here each tensor is (n, ...).
        targets: (n, K), as multiples of a scale.
    """

    all_inputs: tuple[torch.Tensor, ...]
    targets: torch.Tensor

    def inputs(self, chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the network's inputs for the examples with the indices `chosen` (B,)."""
        return tuple(tensor[chosen] for tensor in self.all_inputs)


@dataclass(frozen=True)
class ComputeExamples(Examples):
    """Training examples of n kernel calls. Each kernel call looks up a set of tables; the tables of all n sets are in
    one tensor, one set after another.

    The inputs are the features of all tables of all sets, (N, F), the index of the first table of each set, (n,), and
    the number of tables of each set, (n,).
    """

    def inputs(self, chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the inputs of the network for B chosen sets of tables, as three tensors. The first tensor has the
        features of the M tables in all chosen sets, (M, F). The second tensor has the index, 0 to B - 1, of the set
        that each table belongs to, (M,). The third tensor has the number of tables in each set, (B,).
        """
        features, first, counts = self.all_inputs
        count = counts[chosen]
        segments = torch.repeat_interleave(torch.arange(len(chosen)), count)
        ends = count.cumsum(0)
        within = torch.arange(int(ends[-1])) - (ends - count)[segments]
        return features[first[chosen][segments] + within], segments, count


@dataclass(frozen=True)
class ComputeTable:
    """Measurements of kernel calls as arrays: the features of tables and the measured times.

    Attributes:
        features: (N, F), raw features of the tables of all calls.
        counts: (n,), tables per call.
        cost_ms: (n,), measured time of each call.
    """

    features: FloatArray
    counts: IntArray
    cost_ms: FloatArray

    @classmethod
    def of(cls, measurements: Sequence[Measurement[ComputeSample]], features: FeatureSet) -> "ComputeTable":
        """Return the measurements as arrays, in the same order; every measurement must have measured times."""
        sets = loads_of([m.sample for m in measurements])
        costs = np.array([m.typical_ms for m in measurements])
        return cls(features(sets.loads), sets.counts, costs)

    def examples(self, normaliser: Normaliser, scale_ms: float) -> ComputeExamples:
        """Return the measurements as training examples: tensors with the normalised features of the tables, and the
        measured times as multiples of `scale_ms`.
        """
        counts = torch.from_numpy(self.counts)
        inputs = torch.from_numpy(normaliser(self.features)), counts.cumsum(0) - counts, counts
        return ComputeExamples(inputs, in_multiples(self.cost_ms[:, None], scale_ms))


@dataclass(frozen=True)
class CommTable:
    """Measured times of exchanges in one direction (forward or backward) as arrays, to train a communication model.
    In each exchange, the D devices are sorted by start time: the device that starts first comes first. Devices that
    start together are sorted by number of columns.

    Attributes:
        features: (n, 2 D), raw features.
        transfer_ms: (n, D), times without the wait for the last device.
    """

    features: FloatArray
    transfer_ms: FloatArray

    @classmethod
    def of(cls, measurements: Sequence[Measurement[CommSample]], direction: int) -> "CommTable":
        """Return the measured times of exchanges in one direction as arrays. Every exchange was measured in two ways.
        With `direction` FORWARD (exchanges of embeddings), the devices started at different times. With `direction`
        BACKWARD (exchanges of gradients), all devices started together.
        """
        samples, cost = [m.sample for m in measurements], np.array([m.typical_ms[direction] for m in measurements])
        wait = waits(starts_of(samples, direction))
        order, features = comm_inputs(traffic_of(samples), wait)
        return cls(features, np.take_along_axis(cost - wait, order, axis=1))

    def examples(self, normaliser: Normaliser, scale_ms: float) -> Examples:
        """Return the measurements of n exchanges between D devices as training examples.
        The inputs are the normalised numbers of columns and start times of the devices, (n, 2 D). The targets are the
        times of the devices, (n, D), as multiples of `scale_ms`.
        """
        return Examples((torch.from_numpy(normaliser(self.features)),), in_multiples(self.transfer_ms, scale_ms))


def in_multiples(ms: FloatArray, scale_ms: float) -> torch.Tensor:
    """Return the times `ms` (...,) as multiples of `scale_ms`, in a float32 tensor, which networks need."""
    return torch.from_numpy((ms / scale_ms).astype(np.float32))
