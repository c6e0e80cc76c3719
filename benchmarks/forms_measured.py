"""What rows and copies are worth on hardware: plans of columns alone, of all forms, and of TorchRec's planner.

usage: forms_measured.py MODEL [TASKS_OF_EACH_KIND] [NUM_DEVICES]    (MODEL: a bundle's name or path that knows forms)

Tables are none that the installed models were fitted to. Plans of one task are measured by turns, equal plans once;
ratios are to columns alone, task by task, over the tasks that both solve, with their standard error.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.cost import Cost
from neuroshard.errors import InfeasibleError
from neuroshard.hardware import Hardware
from neuroshard.hardware.plan_costs import measure_plans
from neuroshard.models import CostModels
from neuroshard.plans.form import FORMS, Form
from neuroshard.plans.plan import Plan
from neuroshard.registry import compose_config, instantiate_config
from neuroshard.searcher import Searcher
from neuroshard.simulator import Simulator
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.torchrec import TorchRecSearch
from neuroshard.tables import Table
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.tables.reuse import zipf_reuse
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Task, Topology
from neuroshard.units import to_bytes

_BATCH_SIZE, _UNSEEN, _ZIPF = 4096, 2, 1.05
_ALONE, _ALL = "columns alone", "all forms"
_METHODS: dict[str, Searcher] = {
    _ALONE: NeuroShard(forms=("columns",)),
    _ALL: NeuroShard(),
    "all forms, every gain believed": NeuroShard(choice=None),
    "without rows": NeuroShard(forms=("columns", "copies"), choice=None),
    "without copies": NeuroShard(forms=("columns", "rows"), choice=None),
    "TorchRec, columns": TorchRecSearch(),
    "TorchRec, all types": TorchRecSearch(forms=FORMS),
}


@dataclass(frozen=True)
class _Answer:
    """A method's plan of a task, with what it was predicted to cost and what it costs."""

    plan: Plan
    predicted_ms: float
    measured_ms: float


def main() -> None:
    model = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    devices = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    simulator = Simulator(CostModels.load(model))
    hardware = instantiate_config(compose_config("evaluate", ["plans=none"]).hardware)
    print(f"{model}, {count} tasks of each kind, {devices} devices, batch size {_BATCH_SIZE}")
    print("| tasks | plans by | solved | columns, rows, copies | predicted, ms | measured, ms | over columns alone |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kind, make in _KINDS.items():
        tasks = [make(np.random.default_rng(seed), devices) for seed in range(count)]
        _print_kind(kind, _answers(tasks, simulator, hardware))


def _answers(tasks: list[Task], simulator: Simulator, hardware: Hardware) -> dict[str, list[_Answer | None]]:
    """Of every method to every task."""
    found = {name: [_plan(searcher, task, simulator) for task in tasks] for name, searcher in _METHODS.items()}
    plans = [plan for its in zip(*found.values(), strict=True) for plan in dict.fromkeys(its) if plan is not None]
    costs = dict(zip(plans, measure_plans(plans, hardware, 0, print, _silent), strict=True))
    return {name: [_answer(plan, costs, simulator) for plan in its] for name, its in found.items()}


def _silent(_steps: int) -> None:
    pass


def _plan(searcher: Searcher, task: Task, simulator: Simulator) -> Plan | None:
    try:
        return searcher.search(task, simulator)
    except InfeasibleError:
        return None


def _answer(plan: Plan | None, costs: dict[Plan, Cost | str], simulator: Simulator) -> _Answer | None:
    cost = None if plan is None else costs[plan]
    if plan is None or not isinstance(cost, Cost):
        return None
    return _Answer(plan, simulator.cost(plan.task, plan).total_ms, cost.total_ms)


def _print_kind(kind: str, answers: dict[str, list[_Answer | None]]) -> None:
    for name, its in answers.items():
        solved = [answer for answer in its if answer is not None]
        if not solved:
            print(f"| {kind} | {name} | 0 of {len(its)} | | | | |")
            continue
        forms = [sum(answer.plan.forms.count(form) for answer in solved) for form in Form]
        predicted, measured = np.mean([(a.predicted_ms, a.measured_ms) for a in solved], axis=0)
        print(
            f"| {kind} | {name} | {len(solved)} of {len(its)} | {', '.join(map(str, forms))} | {predicted:.2f} "
            f"| {measured:.2f} | {_ratio(its, answers[_ALONE])} |",
            flush=True,
        )


def _ratio(its: list[_Answer | None], alone: list[_Answer | None]) -> str:
    pairs = [(a.measured_ms, b.measured_ms) for a, b in zip(its, alone, strict=True) if a is not None and b is not None]
    if its is alone or not pairs:
        return ""
    gain = np.array([a / b - 1 for a, b in pairs])
    return f"{gain.mean():+.1%} ± {gain.std(ddof=1) / len(gain) ** 0.5:.1%}" if len(gain) > 1 else f"{gain[0]:+.1%}"


def _papers(rng: np.random.Generator, devices: int) -> Task:
    tables, draw = dlrm_like(batch_size=_BATCH_SIZE, seed=_UNSEEN), TaskDraw(count=1, seed=int(rng.integers(1 << 30)))
    return drawn(tables, Topology(devices, "4GiB"), _BATCH_SIZE, draw)[0]


def _many_small(rng: np.random.Generator, devices: int) -> Task:
    """60 tables of 10 to 5,000 rows that are looked up 1 to 5 times."""
    tables = [_table(f"small{i}", 10 ** rng.uniform(1, 3.7), 16, rng.uniform(1, 5)) for i in range(60)]
    return Task(tuple(tables), Topology(devices, "4GiB"), _BATCH_SIZE)


def _one_hot(rng: np.random.Generator, devices: int) -> Task:
    """A narrow table that is looked up more than all others together."""
    others = _some(rng, 12)
    return Task((_table("hot", 1_000_000, 8, 150.0), *others), Topology(devices, "4GiB"), _BATCH_SIZE)


def _too_large(rng: np.random.Generator, devices: int) -> Task:
    """A table of 8 columns whose halves fit on no device."""
    others = [table for table in _some(rng, 40) if table.size_bytes < 2 << 20][:15]
    huge = _table("huge", 4_000_000 * devices, 8, 2.0)
    memory = huge.size_bytes // devices + to_bytes("24MiB", "memory")
    return Task((huge, *others), Topology(devices, memory), _BATCH_SIZE)


def _some(rng: np.random.Generator, count: int) -> list[Table]:
    tables = dlrm_like(batch_size=_BATCH_SIZE, seed=_UNSEEN)
    return [tables[i] for i in rng.choice(len(tables), size=count, replace=False)]


def _table(name: str, rows: float, dim: int, lookups: float) -> Table:
    reuse = zipf_reuse(int(rows), _BATCH_SIZE * lookups, _ZIPF)
    return replace(Table(name, int(rows), dim, lookups, reuse), reuse_batch_size=_BATCH_SIZE)


_KINDS: dict[str, Callable[[np.random.Generator, int], Task]] = {
    "the papers'": _papers,
    "60 small tables": _many_small,
    "one hot table": _one_hot,
    "one too large for columns": _too_large,
}


if __name__ == "__main__":
    main()
