"""Improved searches: first plans of any searchers, then local search."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from neuroshard import InfeasibleError, Simulator, Task, Topology
from neuroshard.plans.moves import moved_between
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.registry import build, described
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.starts import EvenLayouts, ExistingPlan
from neuroshard.stages.search.methods.acceptance import Acceptance
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy, Random
from neuroshard.stages.search.methods.improved import ImprovedSearch
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.stages.search.published.grid import GridSettings
from neuroshard.tables.sources.criteo import criteo
from neuroshard.testing import LinearCompute, OpaqueCompute, SearcherConformance, linear_models, random_models, toy_task
from tests.kit.messages import refused
from tests.kit.searches import H100, costed_space_of, ms_of

NONE, FEW, STEPS = Improvement(perturbations=0, max_plans=1), Improvement(perturbations=5), Improvement(perturbations=0)


@dataclass(frozen=True)
class _OneDevice:
    """A user's first search: all tables on one device, or no plan."""

    device: int | None

    def first_widths(self, space) -> IntArray | None:
        if self.device is None:
            return None
        held = np.zeros(space.shards.rules.allowed.shape, dtype=np.int64)
        held[:, self.device] = space.shards.full_width
        return held


class TestImprovedSearch(SearcherConformance):
    def make(self):
        return ImprovedSearch((EvenLayouts(), BeamSearch(max_splits=1)), FEW)


@pytest.mark.parametrize("compute", [LinearCompute(), OpaqueCompute()])
def test_improved_search_lowers_the_cost_of_any_start(compute):
    task, simulator = toy_task(8), Simulator(replace(linear_models(), compute=compute))
    start = _started_from(_OneDevice(2))
    assert {p.device for p in start.placements} == {2}
    better = ImprovedSearch((_OneDevice(2),), FEW).find(task, simulator).plan
    assert ms_of(better, simulator) < 0.5 * ms_of(start, simulator)


def _started_from(*starts):
    """Return the chosen start: with no bytes to move, local search leaves it unchanged."""
    return ImprovedSearch(starts, NONE, max_moved_bytes=0).find(toy_task(8), Simulator(linear_models())).plan


def test_improved_search_starts_from_the_cheapest_start_or_the_first_of_equals():
    cheap = Random(1).find(toy_task(8), Simulator(linear_models())).plan
    for starts in ((_OneDevice(0), ExistingPlan(cheap)), (ExistingPlan(cheap), _OneDevice(None), _OneDevice(3))):
        assert _started_from(*starts) == cheap
    assert {p.device for p in _started_from(_OneDevice(3), _OneDevice(1)).placements} == {3}


@pytest.mark.parametrize("seed", range(4))
def test_improved_search_from_several_starts_costs_no_more_than_from_each_alone(seed):
    """No single one of three starts leads to a cheaper plan than all starts together."""
    task, simulator = toy_task(8, seed=seed), Simulator(random_models(seed=seed))
    starts = (_OneDevice(0), *(Greedy(score) for score in ("size", "lookup")))
    alone = [ImprovedSearch((start,), STEPS).find(task, simulator).plan for start in starts]
    together = ImprovedSearch(starts, STEPS).find(task, simulator).plan
    assert simulator.cost(task, together).total_ms <= min(simulator.cost(task, plan).total_ms for plan in alone)


def test_improved_search_skips_starts_without_a_plan_and_fails_if_none_has_one():
    assert {p.device for p in _started_from(_OneDevice(None), _OneDevice(1)).placements} == {1}
    with refused("search-no-first-plan", kind=InfeasibleError):
        _started_from(_OneDevice(None))


def test_max_moved_bytes_of_improved_search_count_from_the_start():
    task, simulator = toy_task(10), Simulator(random_models())
    start, limit = Random(1).find(task, simulator).plan, task.size_bytes // 10
    searches = (ImprovedSearch((ExistingPlan(start),), FEW, max_moved_bytes=most) for most in (limit, None))
    limited, free = (one.find(task, simulator).plan for one in searches)
    assert 0 < moved_between(start, limited).sum() <= limit < moved_between(start, free).sum()
    assert Replan(start, limit, FEW).find(task, simulator).plan == limited


def test_neuroshard_is_an_improved_search_from_the_published_plan_and_other_starts():
    """Each setting of NeuroShard is passed to its component, with the same name and default."""
    grid, improvement = GridSettings(points=3), Improvement(perturbations=7)
    acceptance = Acceptance(margin_fraction=0.3)
    ours = NeuroShard(4, 2, 5, grid, improvement, acceptance)
    assert not isinstance(ours, BeamSearch)
    heuristics = tuple(map(Greedy, SCORES))
    starts = (BeamSearch(4, 2, 5, grid), EvenLayouts(grid), *heuristics)
    assert ours.column_search == ImprovedSearch(starts, improvement, None, acceptance)
    defaults = (BeamSearch(), EvenLayouts(), *heuristics)
    assert NeuroShard().column_search == ImprovedSearch(defaults, acceptance=Acceptance())
    assert {field.name for field in fields(BeamSearch)} < {field.name for field in fields(NeuroShard)}


def test_settings_of_neuroshard_published_have_the_same_names_in_neuroshard():
    published, ours = (described("searcher", name) for name in ("neuroshard_published", "neuroshard"))
    assert {key for key in published if key != "_target_"} < set(ours)
    numbers = {"beam_width": 5, "num_candidates": 4, "max_splits": 3}
    given = {**numbers, "grid": {"points": 2}, "improvement": {"perturbations": 1}}
    built = build("searcher", "neuroshard", **given)
    grid = GridSettings(2)
    starts = (BeamSearch(4, 5, 3, grid), EvenLayouts(grid), *map(Greedy, SCORES))
    assert built.column_search == ImprovedSearch(starts, Improvement(perturbations=1), None, Acceptance())


def test_even_layouts_cost_much_less_than_the_published_packing_in_tight_memory():
    """In so little memory the published search packs by bytes alone, which costs much more."""
    tables = criteo()
    task = Task(tables, Topology(8, int(1.02 * sum(table.size_bytes for table in tables) / 8)), 65536)
    space = costed_space_of(task, H100)
    packed, even = (space.plan(start.first_widths(space)) for start in (BeamSearch(), EvenLayouts()))
    assert ms_of(even) < ms_of(packed) / 1.5
    assert not even.violations
