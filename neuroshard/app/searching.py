"""From a task to a plan in one call: `ns.search`."""

from typing import Any

from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError, warn_of
from neuroshard.plumbing.schema import shown
from neuroshard.plumbing.threads import blas_threads
from neuroshard.searching.dense_time import find_plan
from neuroshard.searching.searcher import Searcher, searcher_of
from neuroshard.targets.target import target_named
from neuroshard.tasks.task import Task


def search(
    task: Task,
    simulator: Simulator,
    searcher: Searcher | str = "neuroshard",
    *,
    target: str | None = None,
    **settings: Any,
) -> Plan:
    """Find a plan for `task` and predict its cost, by a method or the one of `conf/searcher/<searcher>.yaml`.

    `settings` override the config's, such as `beam_width=5`. With a `target` ("sok", "hugectr", "torchrec") the plan is
    one that `export_plan` can write for it; its task has rules for that among its constraints. Costs for "torchrec"
    count what TorchRec adds to a step, where the models know it (`CostModels.in_torchrec`).

    What should be known of how the plan was found, what makes its predicted cost doubtful (`Simulator.warnings`), and
    what the plan asks of whoever trains with it in the target, is one `NeuroShardWarning`.

    Raises:
        UserError: no such searcher, setting or target, or the simulator's models or the target can't serve the task.
        InfeasibleError: the method finds no plan that fits in memory.
    """
    if not isinstance(simulator, Simulator):
        raise UserError(f"search takes ns.Simulator(ns.CostModels.load(NAME)), not {shown(simulator)}")
    its = target_named(target)
    simulator = Simulator(its.costed(simulator.models), simulator.count_input)
    method = searcher_of(searcher, **settings)
    task = its.constrained(task)
    with blas_threads(1):
        found = find_plan(method, task, simulator)
        plan = simulator.predicted(found.plan)
    due = [found.warning] if found.warning else []
    doubts = *simulator.warnings(plan), *its.cost_warnings(simulator.models), *its.memory_warnings(task)
    warn_of("neuroshard.search", (*due, *doubts, *its.remarks(plan)))
    return plan
