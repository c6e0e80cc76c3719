"""The limits of the local search are counts, not times."""

import time
from itertools import count

import pytest

from neuroshard import Simulator
from neuroshard.plumbing.registry import build
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.local_search import LocalSearch
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.stages.search.space.fixed_load import device_memory
from neuroshard.stages.search.space.packing import pack
from neuroshard.testing import random_models, toy_task
from tests.kit.messages import refused
from tests.kit.searches import costed_space_of

CLOCKS = ("time", "monotonic", "perf_counter", "process_time")


def _local(task, simulator):
    space = costed_space_of(task, simulator)
    start = pack(space, device_memory(task))
    local = LocalSearch(space, start)
    return local, local.costed(start)


def _improved(improvement):
    return improvement.improve(*_local(toy_task(15), Simulator(random_models())))


def test_max_plans_limits_how_long_improvement_searches():
    few, more, all_of_them = (_improved(Improvement(perturbations=50, max_plans=most)) for most in (1, 20_000, None))
    assert few.cost_ms >= more.cost_ms >= all_of_them.cost_ms
    assert few.cost_ms > all_of_them.cost_ms
    local, state = _local(toy_task(15), Simulator(random_models()))
    Improvement(perturbations=10**6, max_plans=20_000).improve(local, state)
    assert 20_000 <= local.looked < 40_000


@pytest.mark.parametrize(
    ("whole", "count", "part"), [((200, 1000), 7, (28, 142)), ((3, 2), 4, (0, 1)), ((10, None), 2, (5, None))]
)
def test_shared_improvement_divides_perturbations_and_max_plans(whole, count, part):
    before, after = (Improvement(perturbations=times, max_plans=most) for times, most in (whole, part))
    assert before.shared(count) == after


def test_max_plans_is_shared_by_local_searches_from_several_plans(monkeypatch):
    """Each local search makes some steps first, even if nothing of its share is left."""
    looked, improve = [], Improvement.improve

    def counted(self, local, plan):
        found = improve(self, local, plan)
        looked.append((self.max_plans, local.looked))
        return found

    monkeypatch.setattr(Improvement, "improve", counted)
    most = 400_000
    improvement = Improvement(perturbations=10_000, max_plans=most)
    search = NeuroShard(improvement=improvement, sharding_types=("column_wise",), acceptance=None)
    search.find(toy_task(40), Simulator(random_models()))
    assert len(looked) > 2
    assert sum(limit for limit, _ in looked) <= most
    assert most / 2 < sum(seen for _, seen in looked) < 1.5 * most


def test_improvement_of_a_small_task_uses_all_its_perturbations(monkeypatch):
    task = toy_task(50)
    local, state = _local(task, Simulator(random_models()))
    seeds, others = [], local.others
    monkeypatch.setattr(local, "others", lambda *given: seeds.extend(given[2]) or others(*given))
    Improvement().improve(local, state)
    assert set(seeds) == set(range(200))


@pytest.mark.parametrize("name", ["neuroshard", "neuroshard_published", "replan", "random"])
def test_searchers_find_the_same_plan_whatever_the_clock_shows(name, monkeypatch):
    """All clocks of the time module jump by hours between readings."""
    task, simulator = toy_task(20), Simulator(random_models())
    searcher = Replan(Random(1).find(task, simulator).plan) if name == "replan" else build("searcher", name)
    expected = searcher.find(task, simulator).plan
    ticks = count(step=10_000)
    for clock in CLOCKS:
        monkeypatch.setattr(time, clock, lambda: float(next(ticks)))
    assert searcher.find(task, simulator).plan == expected


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("perturbations", -1), ("perturbations", 1.5), ("perturbation_steps", None), ("max_plans", 0),
        ("max_plans", float("inf")), ("seed", -1),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused_at_once(setting, value):
    with refused("value-outside-limits", names=[setting, value]):
        Improvement(**{setting: value})
