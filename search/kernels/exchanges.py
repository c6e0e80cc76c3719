"""What a step costs, estimated from tables of its exchanges: compiled."""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import FloatArray
from neuroshard.stages.search.space.compiled import kernel, leaf


class Exchanges(NamedTuple):
    """Backward communication and the parts of forward transfers of a device, by its units and the widest device's.

    In between, tables are interpolated; beyond, their ends count.

    Attributes:
        own_step, widest_first, widest_step: units of 4 columns that a sample gets, from one row to the next, of the
            first column, and from one column to the next.
        backward: (A, B) ms.
        parts: (A, B, P) ms.
        share, lead: (P,) and (P, W), of an outline.
    """

    own_step: float
    widest_first: float
    widest_step: float
    backward: FloatArray
    parts: FloatArray
    share: FloatArray
    lead: FloatArray


@leaf
def _cell(position: float, count: int) -> tuple[int, float]:
    """Return the whole number below a position, clipped to 0 ... count - 1, and how far beyond it that lies."""
    within = min(max(position, 0.0), count - 1.0)
    low = min(int(within), max(count - 2, 0))
    return low, within - low


@leaf
def backward_ms(exchanges: Exchanges, own: float, widest: float) -> float:
    """Interpolate the ms of a device's backward communication, from its own units and the widest device's."""
    table = exchanges.backward
    a, x = _cell(own / exchanges.own_step, table.shape[0])
    b, y = _cell((widest - exchanges.widest_first) / exchanges.widest_step, table.shape[1])
    low = table[a, b] * (1 - x) + table[a + 1, b] * x
    high = table[a, b + 1] * (1 - x) + table[a + 1, b + 1] * x
    return float(low * (1 - y) + high * y)


@leaf
def transfer_ms(
    exchanges: Exchanges, own: float, widest: float, wait: float, next_wait: float, mean_wait: float, most_wait: float
) -> float:
    """What is left of a device's forward transfer when the last device has started; waits are `device_waits`'."""
    table, lead = exchanges.parts, exchanges.lead
    a, x = _cell(own / exchanges.own_step, table.shape[0])
    b, y = _cell((widest - exchanges.widest_first) / exchanges.widest_step, table.shape[1])
    others = next_wait if wait <= 0 else 0.0
    total = 0.0
    for p in range(table.shape[2]):
        low = table[a, b, p] * (1 - x) + table[a + 1, b, p] * x
        high = table[a, b + 1, p] * (1 - x) + table[a + 1, b + 1, p] * x
        done = (
            lead[p, 0] * wait + lead[p, 1] * next_wait + lead[p, 2] * mean_wait
            + lead[p, 3] * most_wait + lead[p, 4] * others
        )  # fmt: skip
        total += exchanges.share[p] * max(low * (1 - y) + high * y - done, 0.0)
    return total


@kernel
def step_ms(exchanges: Exchanges, ready: FloatArray, units: FloatArray) -> float:
    """Estimate the ms of a step of D devices with so many units (D,), each ready at so many ms (D,)."""
    order = np.argsort(ready)
    last = ready[order[-1]]
    next_wait = last - ready[order[-2]] if len(ready) > 1 else 0.0
    mean_wait, most_wait = last - ready.mean(), last - ready.min()
    longest, widest = 0.0, units.max()
    for d in range(len(ready)):
        left = transfer_ms(exchanges, units[d], widest, last - ready[d], next_wait, mean_wait, most_wait)
        longest = max(longest, left)
    return float(last + longest)
