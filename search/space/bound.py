"""What no plan of a task is predicted to cost less than: how far a plan may be from the best there is.

A plan's cost is R + T: R is when the last device starts forward communication, T the longest transfer that is left
then. Whatever the plan is, let its widest device, the one with the most columns, give out w bytes. Then

- R is no less than the mean, over the devices that hold anything, of backward communication and compute. Compute is no
  less than prices that add up over shards (`prices.py`), and over all devices no less than the prices of every item's
  cheapest shards; of those alone that a device can compute before R. Backward communication is no less than a function
  of a device's bytes, and the bytes of all devices are those of the tables.
- T is no less than the widest device's transfer. Waiting shortens it (`Outline`), but the mean of the waits is R less
  the mean of the starts, of which we know what it is at least.

The bound is the least of R + T over all R and w, in small steps: of each step, R at its beginning, T at its end.
Memory and most constraints are left out: they only make the best plan dearer.
"""

from dataclasses import dataclass

import numpy as np

from neuroshard.models import SumModel
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.exchange_bound import Widest, least_left_ms, longest_waits
from neuroshard.stages.search.space.prices import Prices

_STEPS = 1000
_HALVINGS = 40
_LEAST_MS = 1e-6
_ROUNDING = 1e-5  # of single precision


def lower_bound_ms(catalog: Catalog, steps: int = _STEPS) -> float | None:
    """What no plan that keeps the task's constraints is predicted to cost less than, ms.

    None for compute models that are no sums over tables (`SumModel`). For sums it always holds; it is close where the
    models keep to physics, as installed ones and rooflines do, and may be 0 where they don't. With fewer steps it is
    lower, by about one step, and takes less time.
    """
    models, model, num_devices = catalog.simulator.models, catalog.model, catalog.items.task.topology.num_devices
    if not isinstance(model, SumModel):
        return None
    widest = Widest.of(catalog.items.task)
    forward, waits = models.forward.least_outline(widest.itself), longest_waits(num_devices)
    mean_ms, any_ms = widest.least_backward_ms(models.backward)
    compute = _Compute(Prices.of(catalog, model.head), num_devices, float(any_ms.min()))
    widest_ms = any_ms + compute.of_columns_ms(widest.columns)
    first_ms = max(compute.first_ms(float(mean_ms.min())), float(widest_ms.min()))
    step_ms = max(first_ms + float((forward.parts_ms[:, 0] @ forward.share).max()), _LEAST_MS) / steps
    least_ms, begin_ms = np.inf, first_ms
    while begin_ms < least_ms:
        end_ms = begin_ms + step_ms
        total_ms = compute.least_total_ms(end_ms)
        possible = np.maximum(compute.busy_ms(total_ms) + mean_ms, widest_ms) <= end_ms
        wait_ms = end_ms - (compute.mean_ms(total_ms) + mean_ms)
        left_ms = least_left_ms(forward, np.maximum(wait_ms, 0), waits)
        least_ms = min(least_ms, begin_ms + float(np.where(possible, left_ms, np.inf).min()))
        begin_ms = end_ms
    return least_ms * (1 - _ROUNDING)


@dataclass(frozen=True, eq=False)
class _Compute:
    """Compute of D devices, by R.

    Attributes:
        backward_ms: of any device, at least.
    """

    prices: Prices
    num_devices: int
    backward_ms: float

    def least_total_ms(self, last_ms: float) -> float:
        """The prices of all shards together, at least, where R is `last_ms`; infinity if that is too soon."""
        most_ms = last_ms - self.backward_ms - self.prices.base_ms + self.prices.discount_ms
        return self.prices.least_total_ms(most_ms)

    def busy_ms(self, total_ms: float) -> float:
        """Mean compute, at least, of the devices that hold anything, where prices add up to `total_ms`."""
        return max(0.0, self.prices.base_ms + total_ms / self.num_devices)

    def mean_ms(self, total_ms: float) -> float:
        """Mean compute, at least, of all devices: of which some may hold nothing, but not all."""
        base_ms = min(self.num_devices * self.prices.base_ms, self.prices.base_ms)
        return max(0.0, (base_ms + total_ms) / self.num_devices)

    def of_columns_ms(self, columns: FloatArray) -> FloatArray:
        """(J,) what a device with so many columns (J,) or more computes at least."""
        return np.maximum(0, self.prices.base_ms + self.prices.of_columns_ms(columns))

    def first_ms(self, backward_ms: float) -> float:
        """The least R, where backward communication takes `backward_ms` on average."""

        def possible(last_ms: float) -> bool:
            return self.busy_ms(self.least_total_ms(last_ms)) + backward_ms <= last_ms

        low = high = self.busy_ms(self.least_total_ms(np.inf)) + backward_ms
        while not possible(high):
            high = 2 * high + _LEAST_MS
        for _ in range(_HALVINGS if high > low else 0):
            middle = (low + high) / 2
            low, high = (low, middle) if possible(middle) else (middle, high)
        return low
