"""A search method that does not return a Found is refused by name, whatever function calls it."""

import pytest

import neuroshard as ns
from neuroshard.searching.searcher import within_hosts
from neuroshard.stages.search.evaluate.search_task import search_task
from neuroshard.stages.search.methods.ablations import NoCommunication, WithModels
from neuroshard.stages.search.methods.replan import Replan
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
