"""Searches in tests: the plans that they find, the costs of these plans, and models to search with."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, product
from math import inf

from neuroshard import CostModels, Placement, Plan, Searcher, Simulator, Task
from neuroshard.models.trust import Margin, Margins
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.fixed_load import FixedLoad

H100 = Simulator(CostModels.load("roofline:h100"))  # knows every sharding type, exchange and tier


def costed_space_of(task: Task, simulator: Simulator) -> CostedSpace:
    """Return the costed search space of a task whose tables have no devices yet."""
    return CostedSpace.checked(FixedLoad.empty(task), simulator)


def found(searcher: Searcher, task: Task, simulator: Simulator = H100) -> Plan:
    """Return the plan that a searcher finds, after checking that it is a plan of this task without violations."""
    plan = searcher.find(task, simulator).plan
    assert plan.task == task
    assert plan.violations == ()
    return plan


def best_ms(task: Task, layouts: Iterable[Iterable[Sequence[Placement]]], simulator: Simulator = H100) -> float:
    """Return the least cost of all plans of these layouts of each table without violations, in ms, or infinity."""
    plans = (Plan(task, tuple(chain(*chosen))) for chosen in product(*layouts))
    costs = simulator.costs(task, [plan for plan in plans if not plan.violations])
    return min((cost.total_ms for cost in costs), default=inf)


def ms_of(plan: Plan, simulator: Simulator = H100) -> float:
    """Return the predicted ms of a step of a plan."""
    return simulator.cost(plan.task, plan).total_ms


def uncertain(simulator: Simulator, relative: float) -> Simulator:
    """Return the simulator with margins of `relative` times the cost of each part."""
    margin = Margin(relative, 1.0)
    return Simulator(replace(simulator.models, margins=Margins(margin, margin, margin)))
