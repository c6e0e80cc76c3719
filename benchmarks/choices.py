"""Which of the plans at hand to believe: a table of `results.py`. The truth of made-up devices judges rules of choice.

Models are fitted as `true_gains.py` fits them, on two made-up devices and for 2, 4 and 8 devices each; tasks are of
kinds that nothing was tuned to (`tests/kit/kinds.py`). Of each the plans of the published search, of even layouts, of
heuristics, and of local search are costed by the models and in truth; a rule chooses by what the models say of all.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from shared import Made

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from true_gains import Setting

from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy
from neuroshard.stages.search.methods.improved import ImprovedSearch
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.methods.starts import EvenLayouts
from neuroshard.tables.reuse import ZIPF_EXPONENT, zipf_reuse
from neuroshard.tasks.task import Task, Topology
from tests.kit.kinds import task_of

_EVEN = ImprovedSearch((EvenLayouts(),), Improvement(shakes=0), max_moved_bytes=0)
_AT_HAND: tuple[Searcher, ...] = (BeamSearch(), NeuroShard(choice=None), _EVEN, *map(Greedy, SCORES))
# Of (K, 2) predicted and expected costs, the published search's first: the plan that is taken.
RULES: dict[str, Callable[[FloatArray], int]] = {
    "the published search's": lambda _: 0,
    "least predicted": lambda costs: int(costs[:, 0].argmin()),
    "least expected": lambda costs: int(costs[:, 1].argmin()),
    "least expected of those predicted no dearer than the published": (
        lambda costs: int(np.where(costs[:, 0] <= costs[0, 0], costs[:, 1], np.inf).argmin())
    ),
}


def judged_rules(_work: Path, small: bool) -> Made:
    """Every rule's true costs on tasks of all kinds."""
    devices, counts, tasks = (("cpu",), (2,), 2) if small else (("gpu", "cpu"), (2, 4, 8), 56)
    judged = [
        of_task
        for device in devices
        for num_devices in counts
        for of_task in _judged(Setting(device, "default", 0.05, 400, num_devices), tasks)
    ]
    every: dict[str, Callable[[FloatArray], int] | None] = {**RULES, "least true cost": None}
    rows = []
    for name, rule in every.items():
        taken = [int(true.argmin()) if rule is None else rule(costs) for costs, true in judged]
        over = np.array([true[plan] / true[0] - 1 for plan, (_, true) in zip(taken, judged, strict=True)])
        rows.append(
            {
                "taken": name,
                "true cost over the published search's": f"{over.mean():+.2%} ± {over.std() / len(over) ** 0.5:.2%}",
                "worse by > 1%": f"{(over > 0.01).mean():.1%}",
                "better by > 1%": f"{(over < -0.01).mean():.1%}",
            }
        )
    noise = f"Standard errors are over {len(judged)} tasks; models are fitted to 400 samples with 5% noise."
    return Made(pd.DataFrame(rows), noise)


def _judged(setting: Setting, count: int) -> list[tuple[FloatArray, FloatArray]]:
    """(K, 2) predicted and expected and (K,) true ms of the plans at hand, of each task that has one."""
    models, truth = setting.fitted(), Simulator(setting.made_up.truth)
    simulator, found = Simulator(models), []
    for number in range(count):
        task = _on(setting, task_of(number))
        plans = []
        for searcher in _AT_HAND:
            try:
                plans.append(searcher.find(task, simulator).plan)
            except InfeasibleError:
                plans += plans[:1]
        if len(plans) == len(_AT_HAND):
            costs = np.array([[cost.total_ms, cost.expected_ms] for cost in simulator.costs(task, plans)])
            found.append((costs, np.array([cost.total_ms for cost in truth.costs(task, plans)])))
    return found


def _on(setting: Setting, task: Task) -> Task:
    """The task's tables on the setting's devices, at its batch size, with memory to spare."""
    batch = setting.made_up.batch_size
    reuse = (zipf_reuse(table.rows, batch * table.pooling_factor, ZIPF_EXPONENT) for table in task.tables)
    tables = tuple(replace(table, reuse=its) for table, its in zip(task.tables, reuse, strict=True))
    memory = max(2 * sum(table.size_bytes for table in tables) // setting.num_devices, 64 << 20)
    return Task(tables, Topology(setting.num_devices, memory), batch)
