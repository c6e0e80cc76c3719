"""The choice of a plan if the time of the dense network in a training step is unknown.

The cost of a plan depends on this time. At a given time, the regret of a plan is the plan's cost minus the cost of the
cheapest of the found plans. The chosen plan has the smallest maximum regret over several times.
"""

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
_WORTH_SAYING = 0.005  # minimum gain of another plan, as a share of the chosen plan's cost, for a warning


def find_plan(searcher: Searcher, task: Task, simulator: Simulator) -> Found:
    """Return the plan that a search method finds for a task.
    If the time of the dense network per step is unknown, the plan is a compromise for all times from 0 to 15 ms.

    The dense time is the time of the dense network per step. A host launches a step while its devices do dense work. So
    a plan with few kernel calls is best with a short dense network, but may cost time with a long dense network. If the
    dense time is unknown, the method searches at several dense times from 0 to 15 ms, and the plan p with the least
    worst-case regret is returned: max over times t of (cost(p, t) - min over plans q of cost(q, t)). A warning names
    the times at which another plan is cheaper.

    Raises:
        InfeasibleError: the method finds no plan that fits in memory.
        UserError: the simulator's models do not support the task.
    """
    if not simulator.models.dense_is_unknown:
        return searcher.find(task, simulator)
    found = [searcher.find(task, simulator.with_dense_ms(dense_ms)) for dense_ms in _SEARCHED_MS]
    costs_ms = _costs_ms(task, [candidate.plan for candidate in found], simulator)
    chosen = int(np.argmin((costs_ms - costs_ms.min(axis=0)).max(axis=1)))
    return replace(found[chosen], warning=both_in_one(_described(costs_ms, chosen), found[chosen].warning))


def _costs_ms(task: Task, plans: Sequence[Plan], simulator: Simulator) -> FloatArray:
    """Return the predicted cost of each of P plans at each of J dense times, (P, J), in ms.
    A dense time is the time of the dense network in a training step. The J dense times are 0, 1, ..., 15 ms.
    """
    judges = [simulator.with_dense_ms(float(dense_ms)) for dense_ms in _JUDGED_MS]
    return np.array([[cost.total_ms for cost in judge.costs(task, plans)] for judge in judges]).T


def _described(costs_ms: FloatArray, chosen: int) -> Message | None:
    """Return a warning if another plan costs over 0.5% less than the chosen plan at some dense time; otherwise return
    None. A dense time is a possible time of the dense network in a training step. The plans are compared at J dense
    times.

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
