"""Local search, which improves a plan step by step. A plan is an array (I, D): the width of each of I items (such as
tables) on each of D devices, in units of 4 columns. A step moves columns of an item to another device, or swaps two
shards.

One kind of step covers three changes: a step that moves a whole shard is a move, a step that moves half of a shard is
a split, and a step onto a device that already has a shard of the table is a merge. Steps start at the devices that make
the plan expensive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from neuroshard.cost.loads import Traffic
from neuroshard.plumbing.arrays import Float32Array, FloatArray, IntArray
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.plumbing.threads import in_threads, useful_threads
from neuroshard.stages.search.kernels.estimates import Contents, Costs, Exchanges, contents_of, estimate_ms
from neuroshard.stages.search.kernels.perturbation import explore
from neuroshard.stages.search.kernels.steps import (
    ITEM_BACK,
    ITEM_OUT,
    SOURCE,
    TARGET,
    UNITS_OUT,
    Bounds,
    Steps,
    best_steps,
)
from neuroshard.stages.search.space.costed_space import CostedSpace

_COSTED_STEPS = 32  # number of steps with the lowest estimates that are costed with the communication models
_OWN_STEPS, _WIDEST_STEPS = 33, 9  # points of the tables of exchange times, up to twice the mean units
_MOST_FINER = 8  # maximum factor of points for the units of the widest device, if one item sends far more
LEAST_GAIN = 1e-6  # relative
_NO_LIMIT = 1 << 62  # far below the largest 64-bit integer: bytes that move back are added to the limit


@dataclass(frozen=True, eq=False)
class CostedPlan:
    """A plan in local search, with the predicted costs of every device.

    Attributes:
        contents: the shards on each device.
        compute_ms, total_ms: (D,) predicted compute cost and total cost of each device, ms.
        ready_ms: (D,) time at which each device may start forward communication; all devices wait for the last one.
    """

    contents: Contents
    compute_ms: FloatArray
    total_ms: FloatArray
    ready_ms: FloatArray

    @property
    def cost_ms(self) -> float:
        """The plan's predicted cost, ms."""
        return float(self.total_ms.max())

    @property
    def widths(self) -> IntArray:
        """The plan as an array (I, D)."""
        return self.contents.widths

    @property
    def units(self) -> FloatArray:
        """Number of units of 4 columns that each device sends for a sample, (D,)."""
        return self.contents.units


class LocalSearch:
    """Finds cheaper plans for one task by small steps from a given plan."""

    def __init__(self, space: CostedSpace, start: IntArray, max_moved_bytes: int | None = None) -> None:
        """Prepare to search for plans that are cheaper than the plan `start`. At most `max_moved_bytes` bytes of
        weights and optimizer state may move between devices to get from `start` to a cheaper plan; None sets no limit.
        `start` is an array (I, D).

        Moved bytes are counted item by item. This count is never less than a count table by table.
        """
        self._space = space
        self._head = head = space.model.head
        self._memory_bytes = space.free_bytes
        self._start, self._max_moved_bytes = start, max_moved_bytes
        self._shards = space.shards
        base_ms, exchanges = space.fixed.compute_ms, self._exchanges()
        self._costs = Costs(head.bias, head.weight, head.offset, head.scale_ms, exchanges, base_ms)
        self.looked = 0  # number of plans; one costed by the communication models counts as two per device

    def costed(self, widths: IntArray) -> CostedPlan:
        """Return the plan `widths` (I, D) with the predicted costs of every device."""
        return self._costed([widths.copy()])[0]

    def others(
        self, plan: CostedPlan, perturbation_steps: int, seeds: Sequence[int], worth: float = np.inf
    ) -> list[CostedPlan]:
        """Make a new plan from `plan` for each seed: apply random steps, and improve the result by local search. Return
        the new plans with low estimated costs; all other new plans are left out.

        Local search compares plans by estimated costs, which need no calls of the cost models. The cost models then
        predict the costs of the returned plans. `perturbation_steps` is the number of random steps for each new plan.

        Each result depends on one seed alone, so several threads make the results. Results whose estimate is not below
        `worth` times the lowest estimate of all results and `plan` are left out.
        """
        bounds = self._bounds(plan)

        def explored(own: IntArray) -> tuple[int, list[IntArray], FloatArray]:
            """Make one new plan from `plan`, the argument of `others`, for each of the N seeds in `own` (N,). Return
            three values: the number of examined steps; a list with an array of changes (n, 3) for each new plan; and
            the estimated costs of the new plans in ms, (N,). A change is a row with an item, a device, and the width
            that the item has on the device in the new plan, in units of 4 columns.
            """
            estimate = np.empty(len(own))
            looked, changes = explore(
                plan.contents, self._shards, bounds, self._costs, perturbation_steps, own, estimate
            )
            return looked, [changes[changes[:, 0] == k, 1:] for k in range(len(own))], estimate

        threads = min(useful_threads(len(seeds) * plan.widths.size), len(seeds))
        chunks = np.array_split(np.array(seeds, dtype=np.int64), threads)
        looked, changes, estimates = zip(*in_threads(explored, chunks, threads), strict=True)
        self.looked += sum(looked)
        estimate, every = np.concatenate(estimates), [changed for some in changes for changed in some]
        near = np.flatnonzero(estimate < min(estimate_ms(plan.contents, self._costs), estimate.min()) * worth)
        return self._costed([_changed(plan.widths, every[k]) for k in near]) if len(near) else []

    def _bounds(self, plan: CostedPlan) -> Bounds:
        left = _NO_LIMIT
        if self._max_moved_bytes is not None:
            moved = self._space.moved_bytes(self._start, plan.widths)
            left = min(self._max_moved_bytes, _NO_LIMIT) - int(moved.sum())
        return Bounds(self._memory_bytes, self._start, left)

    def _costed(self, every: Sequence[IntArray]) -> list[CostedPlan]:
        """Return a `CostedPlan`, which has predicted costs, for each plan in `every`. A plan is an array (I, D). All
        plans are predicted in one call of the communication models.
        """
        plans = [contents_of(widths, self._shards, self._costs) for widths in every]
        units = np.stack([plan.units for plan in plans])
        compute_ms = self._head.finish(np.stack([plan.score for plan in plans])) * (units > 0)
        ready_ms, total_ms = self._space.step(compute_ms, units)
        self.looked += 2 * units.size
        return [CostedPlan(*values) for values in zip(plans, compute_ms, total_ms, ready_ms, strict=True)]

    def best_step(self, plan: CostedPlan) -> CostedPlan | None:
        """Return the cheapest plan that one promising step (see `likely_steps`) can make from `plan`. For example, the
        step moves a shard to another device. Return None if no promising step lowers the cost.

        Likely steps start at the devices that make `plan` expensive.
        """
        steps = self.likely_steps(plan)
        if not len(steps):
            return None
        total_ms, worth_ms = self.totals_ms(plan, steps), plan.cost_ms * (1 - LEAST_GAIN)
        for step in np.argsort(total_ms, kind="stable"):
            if total_ms[step] >= worth_ms:
                break
            # Sum all shards again: if a wide table leaves narrow tables, the difference of sums is rounded coarsely.
            after = self.costed(applied(plan.widths, steps[step]))
            if after.cost_ms < worth_ms:
                return after
        return None

    def likely_steps(self, plan: CostedPlan) -> IntArray:
        """Return the K allowed steps with the lowest estimated costs, one step per row, (K, 5). The five numbers of a
        step are a source device, a target device, an item (such as a table), the moved units (of 4 columns), and an
        item that moves back to the source device (-1 if no item moves back).
        """
        loads = (plan.compute_ms, plan.ready_ms, plan.total_ms, plan.units)
        sources = {int(np.argmax(values)) for values in loads}
        bounds, found = self._bounds(plan), []
        for source in sorted(sources):
            best = Steps(np.empty((_COSTED_STEPS, 5), dtype=np.int64), np.empty(_COSTED_STEPS))
            count, looked = best_steps(plan.contents, source, self._shards, bounds, self._costs, np.inf, best)
            self.looked += looked
            found.append((best.steps[:count], best.estimate[:count]))
        steps, estimate = map(np.concatenate, zip(*found, strict=True))
        if len(steps) <= _COSTED_STEPS:
            return steps
        return steps[np.sort(np.argpartition(estimate, _COSTED_STEPS - 1)[:_COSTED_STEPS])]

    def totals_ms(self, plan: CostedPlan, steps: IntArray) -> FloatArray:
        """Return the predicted costs in ms, (K,), of the K plans that K alternative steps (K, 5) make from `plan`. Each
        of the K plans differs from `plan` by one step alone.
        """
        row = np.arange(len(steps))
        self.looked += 2 * steps.shape[0] * len(plan.units)
        compute_ms = np.tile(plan.compute_ms, (len(steps), 1))
        units = np.tile(plan.units, (len(steps), 1))
        for device, sign in ((steps[:, SOURCE], -1), (steps[:, TARGET], 1)):
            sums, after = self._after(plan, steps, device, sign)
            units[row, device] = after
            compute_ms[row, device] = self._head.finish(np.maximum(sums, 0) @ self._head.weight) * (after > 0)
        total: FloatArray = self._space.step(compute_ms, units)[1].max(axis=1)
        return total

    def _after(self, plan: CostedPlan, steps: IntArray, device: IntArray, sign: int) -> tuple[Float32Array, FloatArray]:
        """Return two arrays that describe one device of each of K alternative steps (K, 5) after the step: the sums of
        the vectors of the device's shards, (K, H), and the units (of 4 columns) that the device sends for each sample,
        (K,). The device is the source device of the step if `sign` is -1, and the target device if `sign` is 1.
        `device` (K,) has the indices of these devices.

        In the compute model, each shard is a vector of H numbers. The first array, (K, H), has the sum of the vectors
        of the device's shards, plus a bias. The second array, (K,), has the units (of 4 columns) that the device sends
        for each sample.
        """
        first, widths = self._shards.first, plan.widths
        item, back = steps[:, ITEM_OUT], np.maximum(steps[:, ITEM_BACK], 0)
        moved = sign * steps[:, UNITS_OUT]
        returned = -sign * np.where(steps[:, ITEM_BACK] >= 0, widths[back, steps[:, TARGET]], 0)
        entry, entry_back = first[item] + widths[item, device], first[back] + widths[back, device]
        vectors, sent = (
            of[entry + moved] - of[entry] + of[entry_back + returned] - of[entry_back]
            for of in (self._shards.vectors, self._shards.sent_units)
        )
        return plan.contents.sums[device] + vectors, plan.units[device] + sent

    def _exchanges(self) -> Exchanges:
        """Return matrices with the exchange times of a device (`Exchanges`), from which local search interpolates. The
        row of an entry depends on the units (of 4 columns) that the device sends. The column depends on the most units
        that any device sends.

        All other devices share the remaining units evenly, none of them more than the widest device sends. The matrices
        end at twice the mean units of a device, or at the mean plus the units of the widest whole item if that is more
        (but at most at all units).
        """
        models, devices, shards = self._space.simulator.models, len(self._memory_bytes), self._shards
        total, mean = shards.total_sent_units, shards.total_sent_units / devices
        most = max(2 * mean, min(float(shards.sent_units[shards.whole].max()) + mean, total))
        own = np.linspace(0, most, _OWN_STEPS)
        widest = np.linspace(mean, most, min(ceil(most / mean) - 1, _MOST_FINER) * (_WIDEST_STEPS - 1) + 1)
        units = np.empty((len(own), len(widest), devices))
        units[...] = np.clip((total - own[:, None] - widest) / max(devices - 2, 1), 0, widest)[..., None]
        units[..., -1] = widest
        units[..., 0] = own[:, None]
        task = self._space.task
        columns = units.reshape(-1, devices) * DIM_MULTIPLE
        traffic = Traffic.of_columns(columns, task.batch_size, task.topology.fast_links)
        there, back = (traffic.in_precision(dtype) for dtype in (models.forward_precision, models.backward_precision))
        backward = models.backward.predict(back, np.zeros((len(traffic), devices)))[:, 0]
        forward = models.forward.outline(there)
        shape = units.shape[:2]
        segments = forward.segments_ms[:, 0].reshape(*shape, -1)
        steps = float(own[1]), float(widest[0]), float(widest[1] - widest[0])
        # copies in C order: numba compiles the local search again for every other memory layout
        return Exchanges(*steps, backward.reshape(shape).copy(), segments.copy(), forward.share, forward.lead)


def _changed(widths: IntArray, changes: IntArray) -> IntArray:
    """Return a copy of `widths` (I, D) after n changes. Each row of `changes` (n, 3) has an item, a device, and the new
    width of the item on the device, in units of 4 columns.
    """
    after = widths.copy()
    after[changes[:, 0], changes[:, 1]] = changes[:, 2]
    return after


def applied(widths: IntArray, step: IntArray) -> IntArray:
    """Return a copy of the plan `widths` (I, D) after one step of the local search. `step` (5,) has a source device, a
    target device, an item, the number of moved units, and an item that moves back to the source device (-1 if no item
    moves back).
    """
    source, target, out, units, back = step.tolist()
    after = widths.copy()
    after[out, source] -= units
    after[out, target] += units
    if back >= 0:
        after[back, source] += widths[back, target]
        after[back, target] = 0
    return after
