"""What no plan of a task is predicted to cost less than: how far a plan may be from the best there is.

A plan's cost is R + T: R is when the last device starts forward communication, T the longest transfer that is left
then. Whatever the plan is:

R is no less than the mean, over the devices that hold anything, of backward communication and compute. Compute is no
less than prices that add up over shards (`prices.py`), and over all devices no less than those of every item's cheapest
shards. Backward communication is no less than a convex function of a device's columns, and the columns of all devices
are those of the tables. Nor is R less than what the device computes that has the widest shard of a table.

T is no less than the transfer of the device with the most columns, which has the mean number or more. Waiting shortens
it (`Outline`), but no wait is longer than D times the mean of the waits, the shortest wait of D - 1 devices no longer
than D / (D - 1) times; and the mean of the waits is R less the mean of the starts, of which we know what it is at least.

So the bound is the least of R + T, over R, over how many columns the widest device has, over how many devices hold
anything. Memory and most constraints are left out: they only make the best plan dearer.
"""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.models import CommModel, SumModel
from neuroshard.models.interface import OneDevice, Outline
from neuroshard.simulator import Simulator
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.prices import Prices, cheapest_ms, largest_ms
from neuroshard.tasks.task import Task
from neuroshard.traffic import Traffic

_STEPS = 512  # ranges of a device's columns, below the mean and above it
_ROUNDING = 1e-5  # of single precision


def lower_bound_ms(catalog: Catalog, simulator: Simulator) -> float | None:
    """What no plan that keeps the task's constraints is predicted to cost less than, ms.

    None for compute models that are no sums over tables (`SumModel`). For sums it always holds; it is close where the
    models keep to physics, as installed ones and rooflines do, and may be 0 where they don't.
    """
    model = simulator.models.compute
    if not isinstance(model, SumModel):
        return None
    task, prices = catalog.items.task, Prices.of(catalog, model.head)
    num_devices = task.topology.num_devices
    some, widest = _of_any(task), _of_the_widest(task)
    backward = _Backward.of(simulator.models.backward, some)
    forward = simulator.models.forward.least_outline(widest)
    total_ms = cheapest_ms(catalog, prices)
    alone_ms = largest_ms(catalog, prices) + float(backward.least_ms.min())
    found = []
    for filled in range(1, num_devices + 1):
        compute_ms = max(0.0, filled * prices.base_ms + total_ms)
        start_ms = compute_ms / num_devices + backward.mean_ms(num_devices)
        last_ms = max(compute_ms / filled + backward.mean_ms(filled), alone_ms, start_ms)
        found.append(_least_sum(last_ms, start_ms, forward, num_devices))
    return min(found) * (1 - _ROUNDING)


def _least_sum(last_ms: float, start_ms: float, forward: Outline, num_devices: int) -> float:
    """The least R + T, for R no less than `last_ms`, where devices start no sooner than `start_ms` on average.

    A part of the transfer that waiting makes shorter is a broken line in R, so that the least sum lies where one ends.
    """
    next_to_last = num_devices / max(num_devices - 1, 1)
    most = np.array([num_devices, next_to_last, 1, num_devices, next_to_last])  # of `device_waits`, by their mean
    parts, done = forward.parts_ms[:, 0], forward.lead @ most
    ends = np.divide(parts, done, out=np.zeros_like(parts), where=done > 0)
    wait_ms = np.maximum(last_ms - start_ms, np.concatenate([np.zeros((len(parts), 1)), ends], axis=1))
    left = np.maximum(parts[:, None] - done * wait_ms[..., None], 0) @ forward.share
    return float((start_ms + wait_ms + left).min())


@dataclass(frozen=True, eq=False)
class _Backward:
    """What backward communication takes at least.

    Attributes:
        known: the device, in X ranges of its bytes.
        least_ms: (X,) in each of them.
    """

    known: OneDevice
    least_ms: FloatArray

    @classmethod
    def of(cls, model: CommModel, known: OneDevice) -> "_Backward":
        """By a model; nobody waits."""
        outline = model.least_outline(known)
        return cls(known, outline.parts_ms[:, 0] @ outline.share)

    def mean_ms(self, count: int) -> float:
        """The least mean over `count` devices that give out all bytes together: that of a mixture of two ranges."""
        at = self.known.total_bytes / count
        sizes = np.concatenate([self.known.least_bytes, self.known.most_bytes])
        least = np.tile(self.least_ms, 2)
        below, above = sizes <= at, sizes >= at
        low, high = sizes[below][:, None], sizes[above][None]
        share = np.divide(at - low, high - low, out=np.zeros((below.sum(), above.sum())), where=high > low)
        return float((least[below][:, None] * (1 - share) + least[above][None] * share).min())


def _of_any(task: Task) -> OneDevice:
    """Any device, whatever it gives out."""
    mean = _total_bytes(task) / task.topology.num_devices
    return _ranges(task, np.concatenate([np.linspace(0, mean, _STEPS), _above_mean(task)]))


def _of_the_widest(task: Task) -> OneDevice:
    """The device that gives out most: the mean or more."""
    return _ranges(task, _above_mean(task))


def _above_mean(task: Task) -> FloatArray:
    total = _total_bytes(task)
    edges: FloatArray = np.geomspace(total / task.topology.num_devices, total, _STEPS)
    return edges


def _total_bytes(task: Task) -> float:
    columns = np.array([[sum(table.dim for table in task.tables)]])
    return float(Traffic.of_columns(columns, task.batch_size).size_bytes.sum())


def _ranges(task: Task, edges: FloatArray) -> OneDevice:
    return OneDevice(edges[:-1], edges[1:], _total_bytes(task), task.topology.num_devices, task.batch_size)
