"""If a search method returns something else than plans of its task, the error names the method, for every caller."""

from dataclasses import dataclass, replace

import pytest

import neuroshard as ns
from neuroshard.searching.searcher import within_hosts
from neuroshard.stages.search.evaluate.search_task import search_task
from neuroshard.stages.search.methods.ablations import NoCommunication, WithModels
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.testing import linear_models, toy_task
from neuroshard.torchrec.finder import Finder
from tests.kit.messages import refused
from tests.kit.plans import whole

TASK, SIMULATOR = toy_task(5), ns.Simulator(linear_models())


class GivesPlan(ns.Searcher):
    """Returns a plan instead of a Found."""

    def find(self, task, simulator):
        return whole(task)


class GivesNothing(ns.Searcher):
    """Returns nothing."""

    def find(self, task, simulator):
        pass


class GivesPlanOnHosts(ns.Searcher):
    """Finds no plan without hosts, and returns a plan instead of a Found with hosts."""

    @within_hosts
    def find(self, task, simulator):
        if task is TASK:
            raise ns.InfeasibleError("nothing-fits", "nothing fits")
        return whole(task)


CALLERS = {
    "ns.search": lambda searcher: ns.search(TASK, SIMULATOR, searcher),
    "runs and verify": lambda searcher: search_task(searcher, TASK, SIMULATOR, 2),
    "the planner": lambda searcher: Finder(searcher, SIMULATOR).found(TASK),
    "re-planning": lambda searcher: Replan(whole(toy_task(3), 0), rest=searcher).find(toy_task(6), SIMULATOR),
    "ablations": lambda searcher: WithModels(searcher, NoCommunication()).find(TASK, SIMULATOR),
}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(("searcher", "what"), [(GivesPlan(), "a Plan"), (GivesNothing(), "None")])
def test_searcher_that_does_not_return_found_is_refused_by_name(caller, searcher, what):
    with refused("searcher-returned-other", names=[f"{type(searcher).__name__}.find", what]) as raised:
        CALLERS[caller](searcher)
    assert "ns.Found(plan)" in raised.value.message.remedy


def test_searcher_that_does_not_return_found_in_its_retry_with_hosts_is_refused(monkeypatch):
    monkeypatch.setattr("neuroshard.searching.searcher.assigned_to_hosts", lambda task, in_rows: toy_task(5))
    with refused("searcher-returned-other", names=["GivesPlanOnHosts.find", "a Plan"]):
        GivesPlanOnHosts().find(TASK, SIMULATOR)


OTHER_TASKS = {
    "tables": lambda task: replace(task, tables=task.tables[:2], constraints=Constraints()),
    "topology": lambda task: replace(task, topology=replace(task.topology, memory_bytes=1 << 40)),
    "batch_size": lambda task: replace(task, batch_size=2 * task.batch_size),
    "constraints": lambda task: replace(task, constraints=Constraints()),
    "memory": lambda task: replace(task, memory=replace(task.memory, optimizer="adam")),
}
RULED = replace(TASK, constraints=Constraints((TableRule("toy0", devices=(0,)),)))


@dataclass(frozen=True)
class OfOtherTask(ns.Searcher):
    """Returns a plan of another task: with another value of one field."""

    field: str

    def find(self, task, simulator):
        return ns.Found(whole(OTHER_TASKS[self.field](task)))


@pytest.mark.parametrize("caller", ["ns.search", "runs and verify", "the planner"])
@pytest.mark.parametrize("field", OTHER_TASKS)
def test_searcher_that_returns_a_plan_of_another_task_is_refused_by_name(caller, field, monkeypatch):
    monkeypatch.setitem(globals(), "TASK", RULED)
    with refused("searcher-plan-other-task", names=["OfOtherTask.find", field]):
        CALLERS[caller](OfOtherTask(field))


def test_searcher_may_return_a_plan_with_further_rules():
    class WithRule(ns.Searcher):
        """Adds a rule to the task."""

        def find(self, task, simulator):
            return ns.Found(whole(task.with_rules([TableRule("*", max_shards=1)])))

    assert len(ns.search(RULED, SIMULATOR, WithRule()).task.constraints.rules) == 2


@dataclass(frozen=True)
class WithCandidates(ns.Searcher):
    """Finds a plan of whole tables, and returns other candidate plans."""

    candidates: str

    def find(self, task, simulator):
        return ns.Found(whole(task))

    def candidate_plans(self, plan, simulator, count):
        return {
            "of another task": (plan, whole(OTHER_TASKS["tables"](plan.task))),
            "none": (),
            "too many": (plan,) * (count + 1),
        }[self.candidates]


@pytest.mark.parametrize(
    ("candidates", "code"),
    [
        ("of another task", "searcher-plan-other-task"),
        ("none", "searcher-candidate-count"),
        ("too many", "searcher-candidate-count"),
    ],
)
def test_searcher_with_wrong_candidate_plans_is_refused_before_any_measurement(candidates, code):
    with refused(code, names=["WithCandidates.candidate_plans"]):
        search_task(WithCandidates(candidates), TASK, SIMULATOR, 3)


def test_searcher_with_candidate_plans_that_break_a_limit_is_refused():
    class TooLarge(ns.Searcher):
        """Has a candidate plan with all tables on one device."""

        def find(self, task, simulator):
            return ns.Found(whole(task))

        def candidate_plans(self, plan, simulator, count):
            return plan, whole(plan.task, 0)

    per_device = max(whole(TASK).device_bytes)
    tight = replace(TASK, topology=replace(TASK.topology, memory_bytes=per_device + 1))
    with refused("searcher-candidate-breaks-limits", names=["TooLarge.candidate_plans", "device 0"]):
        search_task(TooLarge(), tight, SIMULATOR, 2)
