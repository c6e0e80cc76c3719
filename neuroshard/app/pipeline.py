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
    """Find a plan for `task` and predict its cost, with a search method or the name of a config in `conf/searcher/`.

    `settings` override the settings of the config, such as `beam_width=5`. With a `target` ("sok", "hugectr",
    "torchrec"), `export_plan` can write the plan for the target: rules for this are added to the task's constraints.
    Costs for "torchrec" count the framework overhead of TorchRec if the models know it (`CostModels.in_torchrec`).

    One `NeuroShardWarning` names everything to know about the search, reasons why the predicted cost may be wrong
    (`Simulator.warnings`), and requirements of the plan for training in the target.

    Raises:
        UserError: the searcher, a setting or the target is unknown, or the simulator's models or the target do not
            support the task.
        InfeasibleError: the method finds no plan that fits in memory.
    """
    if not isinstance(simulator, Simulator):
        raise UserError(
            "search-without-simulator",
            f"simulator is {shown(simulator)}",
            limit="the type must be Simulator",
            remedy="Pass a Simulator, such as ns.Simulator(ns.CostModels.load('h100'))",
        )
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
