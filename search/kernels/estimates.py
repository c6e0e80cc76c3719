"""The state of a plan in the compiled local search, and estimates of the plan's cost without calls of the cost models.

A plan is the array `widths` (I, D): units of 4 columns of each item on each device. `Contents` keeps sums over the
shards of each device, so that a step of the local search changes two rows of them. The estimate of a step's time is

    max over devices d of  r(d) + t(d),    r(d) = compute(S(d)) + fixed compute(d) + backward(u(d), max u)

with the score S(d) of the compute model, the sent units u(d), and the forward transfer t(d) that is left when the last
device is ready. Backward and forward times are interpolated in tables over (u(d), max u) (`Exchanges`).
"""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import Float32Array, FloatArray, IntArray
from neuroshard.stages.search.jit import jit, jit_paste
from neuroshard.stages.search.published.device_room import score_with
from neuroshard.stages.search.published.shard_table import ShardTable


class Lists(NamedTuple):
    """For each of D devices, the list of the items (such as tables) that have a shard on the device. The D lists are
    stored one after the other in one array, with n entries for the n shards of the plan.

    Attributes:
        shards: (I,) number of devices with a shard of each item.
        start, items: (D + 1,) and (n,); items[start[d] : start[d + 1]] are the items with a shard on device d,
            ascending.
        without: (n,) score that the shard's device would have without the shard.
    """

    shards: IntArray
    start: IntArray
    items: IntArray
    without: FloatArray


@jit
def listed(widths: IntArray) -> Lists:
    """Return the shards of a plan, listed by device. The array `widths` (I, D) has the width of each of I items (such
    as tables) on each of D devices, in units of 4 columns.

    The scores `without` are not computed yet: call `rescore` for this.
    """
    num_items, num_devices = widths.shape
    shards = np.zeros(num_items, np.int64)
    start = np.zeros(num_devices + 1, np.int64)
    for i in range(num_items):
        for d in range(num_devices):
            if widths[i, d] > 0:
                shards[i] += 1
                start[d + 1] += 1
    start = start.cumsum()
    items = np.empty(start[-1], np.int64)
    filled = start[:-1].copy()
    for i in range(num_items):
        if shards[i]:
            for d in range(num_devices):
                if widths[i, d] > 0:
                    items[filled[d]] = i
                    filled[d] += 1
    return Lists(shards, start, items, np.empty(len(items)))


@jit
def on_device(lists: Lists, device: int) -> IntArray:
    """Return the indices of the items that have a shard on a device, in ascending order."""
    return lists.items[lists.start[device] : lists.start[device + 1]]


@jit
def copied(lists: Lists) -> Lists:
    """Return a copy of `lists` that `relisted` can change without an effect on the original.

    The copy shares the array `items`, because `relisted` replaces this array instead of changing the entries.
    """
    return Lists(lists.shards.copy(), lists.start.copy(), lists.items, lists.without.copy())


@jit
def relisted(lists: Lists, widths: IntArray, item: int, device: int) -> Lists:
    """Return the lists of shards by device, after the width `widths[item, device]` has changed. The item is added to
    the list of the device if the device now has a shard of the item, and removed from the list if the device has none.

    `shards` and `start` are changed in place; `rescore` must compute the scores `without` again.
    """
    shards, start, items, without = lists
    place = start[device] + np.searchsorted(on_device(lists, device), item)
    listed_there = place < start[device + 1] and items[place] == item
    if listed_there == (widths[item, device] > 0):
        return lists
    more = -1 if listed_there else 1
    shards[item] += more
    start[device + 1 :] += more
    after, scores = np.empty(len(items) + more, np.int64), np.empty(len(items) + more)
    after[:place], scores[:place] = items[:place], without[:place]
    if listed_there:
        after[place:], scores[place:] = items[place + 1 :], without[place + 1 :]
    else:
        after[place] = item
        after[place + 1 :], scores[place + 1 :] = items[place:], without[place:]
    return Lists(shards, start, after, scores)


class Contents(NamedTuple):
    """The shards of a plan on D devices, and numbers for each device, such as the bytes of all shards on the device.

    Attributes:
        widths: (I, D) units of each item on each device.
        lists: the shards by device: the entries of `widths` that are not 0.
        sums: (D, H) sum of the vectors of each device's shards, plus the bias of the compute model's head.
        size_bytes: (D,) bytes on each device.
        units: (D,) units of 4 columns that each device sends for each sample.
        score: (D,) score of each device, sum(relu(sums) * weight); 0 for an empty device.
    """

    widths: IntArray
    lists: Lists
    sums: Float32Array
    size_bytes: IntArray
    units: FloatArray
    score: FloatArray


class Exchanges(NamedTuple):
    """Tables of exchange times in ms, from which the times of one device are interpolated. Rows are for the number of
    units that the device sends, and columns are for the largest number of units that any device sends.

    A unit is 4 columns of an embedding table; units are counted for each sample. Times between entries are
    interpolated; outside of the matrix the nearest entry counts.

    Attributes:
        own_step: difference in the device's units from one row to the next; the first row is of 0 units.
        widest_first, widest_step: units of the widest device in the first column, and the difference from one column
            to the next.
        backward: (A, B) ms of the backward exchange.
        segments: (A, B, P) ms of the segments of the forward transfer, as in `Outline`.
        share, lead: (P,) and (P, W) weights of the segments and of the waits in them, as in `Outline`.
    """

    own_step: float
    widest_first: float
    widest_step: float
    backward: FloatArray
    segments: FloatArray
    share: FloatArray
    lead: FloatArray


@jit_paste
def _cell(position: float, count: int) -> tuple[int, float]:
    """Return the two numbers with which an array is interpolated at `position`. The first number is the index of the
    entry before the position. The second number, 0 to 1, is the fraction of the way from this entry to the next entry.
    For example, the position 2.25 gives 2 and 0.25. `count` is the number of entries.

    The position is clipped to 0 ... count - 1.
    """
    within = min(max(position, 0.0), count - 1.0)
    low = min(int(within), max(count - 2, 0))
    return low, within - low


@jit_paste
def backward_ms(exchanges: Exchanges, own: float, widest: float) -> float:
    """Return the time in ms of a device's backward exchange. `own` is the number of units (of 4 columns) that the
    device sends, and `widest` is the most units that any device sends.
    """
    table = exchanges.backward
    a, x = _cell(own / exchanges.own_step, table.shape[0])
    b, y = _cell((widest - exchanges.widest_first) / exchanges.widest_step, table.shape[1])
    low = table[a, b] * (1 - x) + table[a + 1, b] * x
    high = table[a, b + 1] * (1 - x) + table[a + 1, b + 1] * x
    return float(low * (1 - y) + high * y)


@jit_paste
def transfer_ms(
    exchanges: Exchanges, own: float, widest: float, wait: float, next_wait: float, mean_wait: float, most_wait: float
) -> float:
    """Return the time in ms that one device still needs for the forward exchange after the straggler has started. The
    straggler is the device that starts last. A device that starts earlier may do a part of the exchange while it waits
    for the straggler; the returned time does not include this part.

    The transfer is the sum over segments p of share_p * max(segment_p - lead_p . waits, 0): the device does some
    segments while it waits. The waits are those of `device_waits`.

    Args:
        exchanges: tables of exchange times.
        own: units of the device.
        widest: units of the widest device.
        wait: ms that the device waits for the last device.
        next_wait: ms that the last device but one waits for the last.
        mean_wait: mean wait of all devices, ms.
        most_wait: longest wait of any device, ms.
    """
    table, lead = exchanges.segments, exchanges.lead
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


@jit
def step_ms(exchanges: Exchanges, ready: FloatArray, units: FloatArray) -> float:
    """Return the estimated time in ms of a training step. `ready` (D,) has the times in ms at which the D devices can
    start the forward exchange, and `units` (D,) the units (of 4 columns) that they send.
    """
    last, before = -np.inf, -np.inf
    for one in ready:
        last, before = max(last, one), max(before, min(last, one))
    next_wait = last - before if len(ready) > 1 else 0.0
    mean_wait, most_wait = last - ready.mean(), last - ready.min()
    longest, widest = 0.0, units.max()
    for d in range(len(ready)):
        left = transfer_ms(exchanges, units[d], widest, last - ready[d], next_wait, mean_wait, most_wait)
        longest = max(longest, left)
    return float(last + longest)


class Costs(NamedTuple):
    """The numbers, taken from the cost models, with which the local search estimates the costs of plans.

    Attributes:
        bias, weight: (H,) bias and weight of the compute model's head.
        offset, scale_ms: offset and scale of the head, which turn a score into ms (`ReluHead`).
        exchanges: tables of exchange times.
        base_ms: (D,) compute cost of the tables on each device that the local search does not move.
    """

    bias: Float32Array
    weight: Float32Array
    offset: float
    scale_ms: float
    exchanges: Exchanges
    base_ms: FloatArray


@jit
def fill(contents: Contents, device: int, all_shards: ShardTable, costs: Costs) -> None:
    """Compute the numbers of one device in `contents` again, in place, from the shards on the device. The numbers are
    the entries of the device in `sums`, `size_bytes`, `units` and `score`, and the scores in `lists.without` for the
    shards on the device.

    This removes the rounding errors of sums in single precision that were changed step by step.
    """
    widths, lists, sums, size, units, _ = contents
    sums[device], size[device], units[device] = costs.bias, 0, 0.0
    for item in on_device(lists, device):
        shard = all_shards.first[item] + widths[item, device]
        sums[device] += all_shards.vectors[shard]
        size[device] += all_shards.size_bytes[shard]
        units[device] += all_shards.sent_units[shard]
    rescore(contents, device, all_shards, costs)


@jit
def rescore(contents: Contents, device: int, all_shards: ShardTable, costs: Costs) -> None:
    """Compute the scores of one device in `contents`, in place. `ready_ms` computes the kernel time of a device from a
    score. `score[device]` becomes the score of the device with all shards. In `lists.without`, the entry of each shard
    on the device becomes the score that the device would have without this shard.
    """
    widths, (_, start, items, without), sums, _, units, score = contents
    nothing = np.zeros(len(costs.weight), np.float32)
    score[device] = score_with(sums[device], nothing, nothing, costs.weight) if units[device] > 0 else 0.0
    for p in range(start[device], start[device + 1]):
        empty = all_shards.first[items[p]]
        shard = empty + widths[items[p], device]
        without[p] = score_with(sums[device], all_shards.vectors[empty], all_shards.vectors[shard], costs.weight)


@jit
def contents_of(widths: IntArray, all_shards: ShardTable, costs: Costs) -> Contents:
    """Return the shards on each device of a plan, and numbers for each device, such as the bytes of these shards. The
    plan is given as `widths` (I, D): the width of each of I items (such as tables) on each of D devices, in units of 4
    columns.
    """
    devices = widths.shape[1]
    sums, units = np.empty((devices, len(costs.bias)), np.float32), np.empty(devices)
    contents = Contents(widths, listed(widths), sums, np.empty(devices, np.int64), units, np.empty(devices))
    for d in range(devices):
        fill(contents, d, all_shards, costs)
    return contents


@jit_paste
def ready_ms(costs: Costs, device: int, score: float, units: float, widest: float) -> float:
    """Return the time in ms from the start of a step until a device can start the forward exchange. The time is the sum
    of the backward exchange and the kernels, which come before the forward exchange in a step.

    Args:
        costs: numbers from the cost models.
        device: index of the device.
        score: score of the device's shards.
        units: units that the device sends; 0 if the device is empty.
        widest: units of the widest device.
    """
    compute = max(score + costs.offset, 0.0) * costs.scale_ms if units > 0 else 0.0
    return float(compute + costs.base_ms[device] + backward_ms(costs.exchanges, units, widest))


@jit
def ready_all(contents: Contents, costs: Costs) -> FloatArray:
    """Return the time in ms until each of D devices can start the forward exchange, (D,)."""
    score, units = contents.score, contents.units
    ready, widest = np.empty(len(units)), units.max()
    for d in range(len(ready)):
        ready[d] = ready_ms(costs, d, score[d], units[d], widest)
    return ready


@jit
def estimate_ms(contents: Contents, costs: Costs) -> float:
    """Return the estimated cost in ms of the plan that `contents` describes."""
    return step_ms(costs.exchanges, ready_all(contents, costs), contents.units)


class Others(NamedTuple):
    """A summary of all devices except the two devices that a step of the local search changes. It covers the times at
    which the devices can start the forward exchange, and the units (of 4 columns) that they send.

    Attributes:
        last, before, first: ms at which the latest, the second latest and the earliest of them is ready.
        total: sum of the ms at which they are ready.
        widest: most units of any of them.
    """

    last: float
    before: float
    first: float
    total: float
    widest: float


@jit
def others_of(ready: FloatArray, units: FloatArray, source: int, target: int) -> Others:
    """Return a summary of all devices except `source` and `target`. `ready` (D,) has the times in ms at which the
    devices can start the forward exchange, and `units` (D,) the units (of 4 columns) that the devices send.
    """
    last, before, first, total, widest = -np.inf, -np.inf, np.inf, 0.0, 0.0
    for d in range(len(ready)):
        if d not in (source, target):
            total += ready[d]
            first = min(first, ready[d])
            widest = max(widest, units[d])
            if ready[d] > last:
                last, before = ready[d], last
            elif ready[d] > before:
                before = ready[d]
    return Others(last, before, first, total, widest)


@jit_paste
def after_ms(
    costs: Costs,
    others: Others,
    count: int,
    devices: tuple[int, int],
    ends: tuple[tuple[float, float], tuple[float, float]],
    now: tuple[float, float],
) -> float:
    """Return the estimated cost in ms of a plan after a step of the local search, which changes the shards on two
    devices. `ends` describes these two devices after the step, and `others` describes all other devices before the
    step. A unit is 4 columns.

    The step may change the units of the widest device, and so the backward exchange of every device. All other devices
    are ready later (or earlier) by the change in the backward exchange of a device with mean units.

    Args:
        costs: numbers from the cost models.
        others: summary of all devices except the two.
        count: number of all devices.
        devices: the two devices that the step changes.
        ends: score and units of each of the two devices after the step.
        now: units of the widest device, and mean units of all devices, before the step.
    """
    (score, units), (other_score, other_units) = ends
    widest = max(others.widest, units, other_units)
    shift = backward_ms(costs.exchanges, now[1], widest) - backward_ms(costs.exchanges, now[1], now[0])
    one = ready_ms(costs, devices[0], score, units, widest)
    other = ready_ms(costs, devices[1], other_score, other_units, widest)
    high, low = max(one, other), min(one, other)
    last = max(others.last + shift, high)
    before = max(min(others.last + shift, high), others.before + shift, low)
    if count == 2:
        last, before = high, low
    first = min(others.first + shift, low)
    mean = (others.total + shift * (count - 2) + one + other) / count
    longest = 0.0
    for ready, own in (
        (last, others.widest),
        (high, units if one >= other else other_units),
    ):
        if own > 0:
            left = transfer_ms(costs.exchanges, own, widest, last - ready, last - before, last - mean, last - first)
            longest = max(longest, left)
    return last + longest
