"""Plans, which items their devices hold, and what they are estimated to cost without a call of the models: compiled."""

from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import Float32Array, FloatArray, IntArray
from neuroshard.stages.search.jit import jit, jit_paste
from neuroshard.stages.search.published.device_room import score_with
from neuroshard.stages.search.published.shard_table import ShardTable


class Lists(NamedTuple):
    """Lists of the devices and items that hold each other.

    Attributes:
        shards: (I,) devices that hold each item.
        start, items: (D + 1,) and (n,); items[start[d] : start[d + 1]] are what device d holds, ascending.
        without: (n,) score of each one's device if it weren't there.
    """

    shards: IntArray
    start: IntArray
    items: IntArray
    without: FloatArray


@jit
def listed(widths: IntArray) -> Lists:
    """List the items of each device, from units of each item on each device (I, D); `rescore` fills the scores."""
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
    """List the items that a device holds, ascending."""
    return lists.items[lists.start[device] : lists.start[device + 1]]


@jit
def copied(lists: Lists) -> Lists:
    """Copy what `relisted` writes to."""
    return Lists(lists.shards.copy(), lists.start.copy(), lists.items, lists.without.copy())


@jit
def relisted(lists: Lists, widths: IntArray, item: int, device: int) -> Lists:
    """List again after `widths[item, device]` has changed; numbers are changed in place, scores left to `rescore`."""
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
    """The shards on D devices, and their sums.

    Attributes:
        widths: (I, D) units of each item on each device.
        lists: the same without what is 0.
        sums: (D, H) of the vectors on each device, bias included.
        size_bytes: (D,) bytes on each device.
        units: (D,) of 4 columns, that a sample gets of each device.
        score: (D,) sum(relu(sums) * weight); 0 for an empty device.
    """

    widths: IntArray
    lists: Lists
    sums: Float32Array
    size_bytes: IntArray
    units: FloatArray
    score: FloatArray


class Exchanges(NamedTuple):
    """Backward communication and the segments of forward transfers of a device, by its units and the widest device's.

    In between, tables are interpolated; beyond, their ends count.

    Attributes:
        own_step, widest_first, widest_step: units of 4 columns that a sample gets, from one row to the next, of the
            first column, and from one column to the next.
        backward: (A, B) ms.
        segments: (A, B, P) ms.
        share, lead: (P,) and (P, W), of an outline.
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
    """Clip a position to 0 ... count - 1; return the whole number below it, and the distance from that number."""
    within = min(max(position, 0.0), count - 1.0)
    low = min(int(within), max(count - 2, 0))
    return low, within - low


@jit_paste
def backward_ms(exchanges: Exchanges, own: float, widest: float) -> float:
    """Interpolate the ms of a device's backward communication, from its own units and the widest device's."""
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
    """Compute what is left of a device's forward transfer when the last one has started; waits: `device_waits`'."""
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
    """Estimate the ms of a step of D devices with so many units (D,), each ready at so many ms (D,)."""
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
    """The models' numbers that plans are estimated by.

    Attributes:
        bias, weight: (H,) of the compute model's head.
        offset, scale_ms: its, from scores to ms.
        exchanges: what communication costs.
        base_ms: (D,) compute cost of other tables on each device.
    """

    bias: Float32Array
    weight: Float32Array
    offset: float
    scale_ms: float
    exchanges: Exchanges
    base_ms: FloatArray


@jit
def fill(contents: Contents, device: int, all_shards: ShardTable, costs: Costs) -> None:
    """Add up a device's sums, bytes, units and score from what it holds."""
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
    """Compute a device's score from its sums, and what it would be without each of its shards."""
    widths, (_, start, items, without), sums, _, units, score = contents
    nothing = np.zeros(len(costs.weight), np.float32)
    score[device] = score_with(sums[device], nothing, nothing, costs.weight) if units[device] > 0 else 0.0
    for p in range(start[device], start[device + 1]):
        empty = all_shards.first[items[p]]
        shard = empty + widths[items[p], device]
        without[p] = score_with(sums[device], all_shards.vectors[empty], all_shards.vectors[shard], costs.weight)


@jit
def contents_of(widths: IntArray, all_shards: ShardTable, costs: Costs) -> Contents:
    """Add up the sums, bytes, units and score of every device from what they hold (I, D)."""
    devices = widths.shape[1]
    sums, units = np.empty((devices, len(costs.bias)), np.float32), np.empty(devices)
    contents = Contents(widths, listed(widths), sums, np.empty(devices, np.int64), units, np.empty(devices))
    for d in range(devices):
        fill(contents, d, all_shards, costs)
    return contents


@jit_paste
def ready_ms(costs: Costs, device: int, score: float, units: float, widest: float) -> float:
    """Compute when a device's backward communication and compute have ended, ms."""
    compute = max(score + costs.offset, 0.0) * costs.scale_ms if units > 0 else 0.0
    return float(compute + costs.base_ms[device] + backward_ms(costs.exchanges, units, widest))


@jit
def ready_all(contents: Contents, costs: Costs) -> FloatArray:
    """Compute (D,) ms at which each device has ended backward communication and compute."""
    score, units = contents.score, contents.units
    ready, widest = np.empty(len(units)), units.max()
    for d in range(len(ready)):
        ready[d] = ready_ms(costs, d, score[d], units[d], widest)
    return ready


@jit
def estimate_ms(contents: Contents, costs: Costs) -> float:
    """Estimate the cost of a plan, ms."""
    return step_ms(costs.exchanges, ready_all(contents, costs), contents.units)


class Others(NamedTuple):
    """All devices but two: when the last and the one before are ready, the first, all together; the most units."""

    last: float
    before: float
    first: float
    total: float
    widest: float


@jit
def others_of(ready: FloatArray, units: FloatArray, source: int, target: int) -> Others:
    """Summarise when all devices but two are ready, and their units, from both (D,) of all devices."""
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
    """Estimate a plan's cost after a step, ms.

    `ends` are the scores and units of its two `devices` then, `count` all devices, `now` the widest device's units and
    the mean before the step.
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
