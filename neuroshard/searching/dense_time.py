"""The choice of a plan if the time of the dense network is unknown: the plan with the least worst-case regret."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neuroshard.models.parts import UNKNOWN_DENSE_MS
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.messages import Message, both_in_one
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.tasks.task import Task

_LONGEST_MS = 15.0
_SEARCHED_MS = (UNKNOWN_DENSE_MS, 0.0, _LONGEST_MS)
_JUDGED_MS = np.linspace(0.0, _LONGEST_MS, 16)
_WORTH_SAYING = 0.005  # of a plan's cost


def find_plan(searcher: Searcher, task: Task, simulator: Simulator) -> Found:
    """Find a plan by a search method; if models leave the time of the dense network open, a plan that is good at any.

    A host launches a step while its devices do dense work. So a plan with few kernel calls is best with a short dense
    network, but costs time with a long dense network. If the dense time is open, the method searches at several dense
    times from 0 to 15 ms, and the plan with the least worst-case regret is taken. The regret of a plan is the
    difference between its cost and the cost of the best of these plans, at the worst dense time. A warning says at
    which times another plan is cheaper.

    Raises:
        InfeasibleError: the method finds no plan that fits in memory.
        UserError: the simulator's models do not support the task.
    """
    if not simulator.models.dense_is_unknown:
        return searcher.find(task, simulator)
    found = [searcher.find(task, simulator.beside_dense(dense_ms)) for dense_ms in _SEARCHED_MS]
    costs_ms = _costs_ms(task, [one.plan for one in found], simulator)
    chosen = int(np.argmin((costs_ms - costs_ms.min(axis=0)).max(axis=1)))
    return replace(found[chosen], warning=both_in_one(_described(costs_ms, chosen), found[chosen].warning))


def _costs_ms(task: Task, plans: Sequence[Plan], simulator: Simulator) -> FloatArray:
    """Return the costs (P, J) of P plans at the J dense times that they are judged at."""
    judges = [simulator.beside_dense(float(dense_ms)) for dense_ms in _JUDGED_MS]
    return np.array([[cost.total_ms for cost in judge.costs(task, plans)] for judge in judges]).T


def _described(costs_ms: FloatArray, chosen: int) -> Message | None:
    """Return at which dense times another plan costs less than the chosen plan; None if the gain is small at all times.

    Args:
        costs_ms: (P, J) costs of each plan at each dense time, in ms.
        chosen: the index of the chosen plan.
    """
    saved_ms = costs_ms[chosen] - costs_ms.min(axis=0)
    better = np.flatnonzero(saved_ms > _WORTH_SAYING * costs_ms[chosen])
    if not len(better):
        return None
    short = better[_JUDGED_MS[better] < UNKNOWN_DENSE_MS]
    long = better[_JUDGED_MS[better] >= UNKNOWN_DENSE_MS]
    times = [f"{_JUDGED_MS[short[-1]]:.0f} ms or less"] if len(short) else []
    times += [f"{_JUDGED_MS[long[0]]:.0f} ms or more"] if len(long) else []
    return Message(
        "dense-time-unknown",
        "the time of the dense network per step is unknown, so the chosen plan is a compromise for times from 0 to "
        f"{_LONGEST_MS:.0f} ms",
        limit=f"if the time is {' or '.join(times)}, another plan costs up to {saved_ms.max():.2f} ms less",
        remedy="Set dense_ms to the time in ms, such as dense_ms=8",
    )
