"""The choice of a plan if nobody says how long the dense network computes: the least worst-case regret."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neuroshard.models.parts import UNKNOWN_DENSE_MS
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
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
    warnings = filter(None, (found[chosen].warning, _described(costs_ms, chosen)))
    return replace(found[chosen], warning="; ".join(warnings) or None)


def _costs_ms(task: Task, plans: Sequence[Plan], simulator: Simulator) -> FloatArray:
    """Return the costs (P, J) of P plans at the J dense times that they are judged at."""
    judges = [simulator.beside_dense(float(dense_ms)) for dense_ms in _JUDGED_MS]
    return np.array([[cost.total_ms for cost in judge.costs(task, plans)] for judge in judges]).T


def _described(costs_ms: FloatArray, chosen: int) -> str | None:
    """Say at which dense times another plan costs less than the chosen one; None if at none, or hardly less.

    Args:
        costs_ms: (P, J) of each plan at each dense time.
        chosen: the number of the plan.
    """
    saved_ms = costs_ms[chosen] - costs_ms.min(axis=0)
    better = np.flatnonzero(saved_ms > _WORTH_SAYING * costs_ms[chosen])
    if not len(better):
        return None
    short = better[_JUDGED_MS[better] < UNKNOWN_DENSE_MS]
    long = better[_JUDGED_MS[better] >= UNKNOWN_DENSE_MS]
    where = [f"{_JUDGED_MS[short[-1]]:.0f} ms or less"] if len(short) else []
    where += [f"{_JUDGED_MS[long[0]]:.0f} ms or more"] if len(long) else []
    return (
        f"dense network: its time per step is unknown. The plan suits all times from 0 to {_LONGEST_MS:.0f} ms, but "
        f"at {', and at '.join(where)}, another plan costs up to {saved_ms.max():.2f} ms less: give the time, such as "
        "dense_ms=8"
    )
