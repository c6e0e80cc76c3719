"""Frees memory on the fullest device of a plan: moves whole shards to other devices, if that costs hardly more."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.stages.search.local.local_search import CostedPlan, LocalSearch, applied
from neuroshard.stages.search.options.settings import SETTINGS
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.fixed_load import device_memory

_NOTHING = -1  # in a step: no item moves back


def spread_memory(space: CostedSpace, local: LocalSearch, plan: CostedPlan, most_ms: float) -> list[CostedPlan]:
    """Free memory on the fullest device of `plan`: move shards to other devices, one after the other. Return the plans
    after 0, 1, 2, 4, 8, ... moves, and after all moves. Each move takes a shard away from the device that is the
    fullest before the move. No move raises the cost above `most_ms`.

    A step moves one whole shard away from the fullest device, or swaps it for a smaller one, so that both devices are
    less full than the fullest device was. Steps that do not raise the cost come first. Then come steps that raise it,
    if the share of the fullest device that becomes free is large enough: `ChoiceSettings.memory_worth` times the share
    of the cost that all steps add. The search ends if devices are about equally full, or if no step is allowed.
    """
    steps, plans, taken, work = _MemorySteps.of(space), [plan], 0, 0
    free, first_ms, first_full = True, plan.cost_ms, steps.fullest(plan.widths)
    while taken < SETTINGS.memory_steps and work < SETTINGS.memory_work:
        possible, full_after = steps.from_fullest(plan.widths)
        work += len(possible) + plan.widths.size
        worth_ms = first_ms * (1 + (1 - full_after / first_full) / SETTINGS.memory_worth)
        limits_ms = np.full(len(possible), plan.cost_ms) if free else np.minimum(worth_ms, most_ms)
        after = _best_step(local, plan, possible, limits_ms)
        if after is None and not free:
            break
        free = free and after is not None
        if after is not None:
            plan, taken = after, taken + 1
            if taken & (taken - 1) == 0:
                plans.append(plan)
    return plans if plans[-1] is plan else [*plans, plan]


def _best_step(local: LocalSearch, plan: CostedPlan, steps: IntArray, limits_ms: FloatArray) -> CostedPlan | None:
    """Try K moves one by one, and return the plan after the first move that is cheap enough. Return None if no move is
    cheap enough. Move k is cheap enough if the plan after the move costs at most `limits_ms[k]`, in ms. Each move is a
    row of `steps` (K, 5), as `_MemorySteps.from_fullest` returns it.

    The function tries at most as many moves as the numbers in `SETTINGS.memory_steps_costed` add up to.
    """
    ends = np.minimum(np.cumsum(SETTINGS.memory_steps_costed), len(steps)).tolist()
    for first, end in pairwise(np.unique([0, *ends]).tolist()):
        within = np.flatnonzero(local.totals_ms(plan, steps[first:end]) <= limits_ms[first:end])
        for step in within:
            after = local.costed(applied(plan.widths, steps[first + step]))
            if after.cost_ms <= limits_ms[first + step]:
                return after
    return None


@dataclass(frozen=True, eq=False)
class _MemorySteps:
    """Finds the moves of shards that make the fullest device of a plan less full.

    Attributes:
        space: all shards of the column-wise tables.
        memory_bytes: (D,) memory of each device.
        may: (I, D) True if the item may be on the device. Items that exclude other items stay where they are.
    """

    space: CostedSpace
    memory_bytes: IntArray
    may: BoolArray

    @classmethod
    def of(cls, space: CostedSpace) -> "_MemorySteps":
        """Return a `_MemorySteps` object for a search space, with the memory of each device and with the devices to
        which each item (such as a table) may move.
        """
        rules = space.shards.rules
        alone = np.diff(rules.rival_first) == 0
        return cls(space, np.maximum(device_memory(space.task), 1), rules.allowed & alone[:, None])

    def fullest(self, widths: IntArray) -> float:
        """Return the share of memory in use on the fullest device of a plan. The plan is given as `widths` (I, D): the
        width of each of I items (such as tables) on each of D devices, in units of 4 columns.
        """
        used = self.space.fixed.size_bytes + self.space.shards.device_bytes(widths)
        return float((used / self.memory_bytes).max())

    def from_fullest(self, widths: IntArray) -> tuple[IntArray, FloatArray]:
        """Return the K possible steps that move a shard away from the fullest device of a plan: the device with the
        highest share of memory in use. `widths` (I, D) has the width of each of I items on each of D devices, in units
        of 4 columns. The result has two arrays: the steps, (K, 5), and the share of memory in use on the fullest device
        after each step, (K,).

        A step has five numbers: the source device, the target device, the item, the width of the moved shard in units
        of 4 columns, and the item of a shard that moves back from the target to the source in exchange. The last number
        is -1 if no shard moves back. Each of the K steps is an alternative, which starts from the given plan.

        After a step, both devices of the step are less full than the fullest device was before. The steps are sorted by
        the share of memory in use on the fuller of these two devices after the step, the lowest share first. There are
        no steps if devices are about equally full.
        """
        size_bytes = self.space.shards.size_bytes[self.space.shards.first[:, None] + widths]  # (I, D)
        used = self.space.fixed.size_bytes + size_bytes.sum(axis=0)
        full = used / self.memory_bytes
        source = int(full.argmax())
        if full[source] <= SETTINGS.even_memory * used.sum() / self.memory_bytes.sum():
            return np.empty((0, 5), dtype=np.int64), np.empty(0)
        out = np.flatnonzero((widths[:, source] > 0) & self.may[:, source])
        back, target = self._partners(widths, source)
        gains = size_bytes[out, source][:, None] - np.where(back == _NOTHING, 0, size_bytes[back, target])  # (o, p)
        after = np.maximum(
            full[source] - gains / self.memory_bytes[source], full[target] + gains / self.memory_bytes[target]
        )
        possible = (self.may & (widths == 0))[np.ix_(out, target)] & (after < full[source])
        which, partner = possible.nonzero()
        order = np.argsort(after[which, partner], kind="stable")
        which, partner = which[order], partner[order]
        item, others = out[which], np.delete(full, source).max(initial=0.0)
        steps = np.full(len(item), source), target[partner], item, widths[item, source], back[partner]
        return np.stack(steps, axis=1), np.maximum(after[which, partner], others)

    def _partners(self, widths: IntArray, source: int) -> tuple[IntArray, IntArray]:
        """Return p pairs of an item and a device, as two arrays (p,), for steps that move a shard from `source` to the
        device of the pair. In exchange, the shard of the item in the pair moves from this device to `source`. The item
        is -1 if the step moves no shard to `source`.
        """
        devices = np.arange(widths.shape[1])
        may = self.may & self.may[:, [source]] & (widths[:, [source]] == 0)
        item, device = ((widths > 0) & may).nonzero()
        return np.concatenate([np.full(len(devices), _NOTHING), item]), np.concatenate([devices, device])
