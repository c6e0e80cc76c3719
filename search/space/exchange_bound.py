"""What exchanges take at least, by how many bytes the widest device gives out."""

from dataclasses import dataclass

import numpy as np

from neuroshard.cost.traffic import Traffic
from neuroshard.models import CommModel
from neuroshard.models.interface import OneDevice, Outline
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.tasks.task import Task

_WIDEST, _BELOW = 96, 64  # ranges of bytes that are told apart: above the mean device's, and below
_LONGEST = 16  # ranges of the longest wait


@dataclass(frozen=True, eq=False)
class Widest:
    """The device that gives out the most bytes, in J ranges of them, and any device beside it.

    Attributes:
        itself: (J,) ranges, from the mean device's bytes to all there are.
        beside: (J K,) of any device, for each of those, in K ranges: from nothing to the mean, and to all.
    """

    itself: OneDevice
    beside: OneDevice

    @property
    def columns(self) -> FloatArray:
        """(J,) columns that a sample gets of the widest device, at least."""
        size_bytes = self.itself.least_bytes[:, None, None]
        return Traffic(size_bytes, np.full(len(size_bytes), self.itself.batch_size)).columns[:, 0]

    @classmethod
    def of(cls, task: Task) -> "Widest":
        """Cover the bytes that the widest device may give out, in ranges, for any plan of a task."""
        columns = np.array([[task.output_columns]])
        total = float(Traffic.of_columns(columns, task.batch_size).size_bytes.sum())
        exchange = (total, task.topology.num_devices, task.batch_size, task.topology.fast_links)
        above = np.geomspace(total / task.topology.num_devices, total, _WIDEST + 1)
        least, most = above[:-1], above[1:]
        itself = OneDevice(least, most, least, most, *exchange)
        edges = np.concatenate([np.linspace(0, above[0], _BELOW + 1), above[1:]])
        own_least, own_most = (np.tile(ends, _WIDEST) for ends in (edges[:-1], edges[1:]))
        least, most = (np.repeat(ends, len(edges) - 1) for ends in (least, most))
        return cls(itself, OneDevice(own_least, own_most, least, most, *exchange))

    def least_backward_ms(self, model: CommModel) -> tuple[FloatArray, FloatArray]:
        """(J,) backward communication at least: mean over the devices, or over those that hold anything; of any device.

        What a device takes is no less than a function of its bytes that never falls; the mean, no less than a mixture
        of two of its values that gives out the mean device's bytes.
        """
        outline = model.least_outline(self.beside)
        given = (outline.parts_ms[:, 0] @ outline.share).reshape(_WIDEST, -1)
        ends = self.beside.most_bytes[: given.shape[1]]
        given = np.where(ends <= self.itself.most_bytes[:, None], given, np.inf)
        rising = np.minimum.accumulate(given[:, ::-1], axis=1)[:, ::-1]
        low, high = np.concatenate([[0], ends[:_BELOW]]), ends[_BELOW - 1 :]  # both to and from the mean
        low_ms = np.concatenate([rising[:, :1], rising[:, :_BELOW]], axis=1)[:, :, None]
        high_ms = rising[:, None, _BELOW - 1 :]
        share = _share(low[:, None], high, self.itself.least_bytes[0])
        mixed = low_ms * (1 - share) + np.where(share > 0, high_ms, 0) * share
        return mixed.min(axis=(1, 2)), given.min(axis=1)


def _share(low: FloatArray, high: FloatArray, at: float) -> FloatArray:
    """(L, H) of `high` (H,) in mixtures with `low` (L, 1) that give `at`; 0 where both are the same."""
    share: FloatArray = np.divide(at - low, high - low, out=np.zeros((len(low), len(high))), where=high > low)
    return np.clip(share, 0, 1)


def longest_waits(num_devices: int) -> FloatArray:
    """(2 M, W) what the `device_waits` of a device are at most where the mean of the waits is 1.

    In M ranges of the longest wait, m times the mean: as the last device to start has none, the shortest wait of the
    others is at most (D - m) / (D - 2). In each for the last device, and for another one.
    """
    edges = np.linspace(num_devices / max(num_devices - 1, 1), num_devices, _LONGEST + 1)
    longest, ones, none = edges[1:], np.ones(_LONGEST), np.zeros(_LONGEST)
    next_to_last = np.minimum(longest, (num_devices - edges[:-1]) / (num_devices - 2)) if num_devices > 2 else longest
    last = np.stack([none, next_to_last, ones, longest, next_to_last], axis=1)
    other = np.stack([longest, next_to_last, ones, longest, none], axis=1)
    return np.concatenate([last, other])


def least_left_ms(forward: Outline, mean_wait_ms: FloatArray, longest: FloatArray) -> FloatArray:
    """(J,) the least transfer of an outline of J devices, where waits are `mean_wait_ms` (J,) on average at most."""
    done = mean_wait_ms[:, None, None] * (longest @ forward.lead.T)
    left: FloatArray = np.maximum(forward.parts_ms - done, 0) @ forward.share
    least: FloatArray = left.min(axis=1)
    return least
