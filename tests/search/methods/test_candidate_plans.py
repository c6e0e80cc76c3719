"""Candidate plans to be measured: they differ, keep the rules of the task, and include the found plan."""

from dataclasses import replace

import pytest

from neuroshard.models.simulator import Simulator
from neuroshard.plans.moves import layout_key
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.starts import EvenLayouts
from neuroshard.stages.search.methods.acceptance import Acceptance
from neuroshard.stages.search.methods.heuristics import Greedy, Random
from neuroshard.stages.search.methods.improved import in_turns
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.published.grid import GridSettings
from neuroshard.testing import constrained_task, linear_models, random_models, toy_task
from neuroshard.words.form import Form
from tests.kit.random_models import random_form_models
from tests.kit.searches import ms_of, uncertain

SMALL = NeuroShard(3, 1, 2, GridSettings(points=3), Improvement(perturbations=4), sharding_type_trials=3)


def _candidate_plans(searcher, task, models, count):
    simulator = Simulator(models)
    found = searcher.find(task, simulator).plan
    return found, searcher.candidate_plans(found, simulator, count)


@pytest.mark.parametrize("models", [random_models(), random_form_models()], ids=["column_wise", "forms"])
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow), 6])
def test_candidate_plans_differ_and_the_found_plan_is_first(models, count):
    found, plans = _candidate_plans(SMALL, toy_task(12), models, count)
    assert plans[0] is found
    assert min(count, 4) <= len(plans) == len(set(map(layout_key, plans))) <= count
    assert _candidate_plans(SMALL, toy_task(12), models, count)[1] == plans


def test_column_wise_candidates_are_first_plans_and_their_improvements():
    task, simulator = toy_task(12), Simulator(random_models())
    _, plans = _candidate_plans(SMALL, task, simulator.models, 20)
    keys = {layout_key(plan) for plan in plans}
    starts = SMALL.column_search.starts
    for start in starts:
        searcher = replace(SMALL.column_search, starts=(start,), acceptance=None)
        first = replace(searcher, improvement=Improvement(perturbations=0, max_plans=1), max_moved_bytes=0)
        assert layout_key(first.find(task, simulator).plan) in keys
        assert layout_key(searcher.find(task, simulator).plan) in keys
    assert len(keys) > 15
    assert [type(start) for start in starts] == [BeamSearch, EvenLayouts, *[Greedy] * 4]


def test_a_rejected_plan_is_a_candidate_plan():
    task, simulator = toy_task(12), uncertain(Simulator(random_models()), 1.0)
    cautious, accepting = (
        replace(SMALL, acceptance=acceptance, tolerance=0.0) for acceptance in (Acceptance(1e3, 1e3), None)
    )
    kept, better = (searcher.find(task, simulator).plan for searcher in (cautious, accepting))
    assert layout_key(kept) != layout_key(better)
    plans = cautious.candidate_plans(kept, simulator, 2)
    assert [layout_key(plan) for plan in plans] == [layout_key(kept), layout_key(better)]


def test_candidate_plans_include_other_choices_of_sharding_types():
    models = random_form_models()
    _, plans = _candidate_plans(SMALL, toy_task(12), models, 8)
    kinds = {plan.forms for plan in plans}
    assert len(kinds) > 1
    assert (Form.COLUMN_WISE,) * 12 in kinds
    _, columns = _candidate_plans(replace(SMALL, sharding_types=("column_wise",)), toy_task(12), models, 8)
    assert {plan.forms for plan in columns} == {(Form.COLUMN_WISE,) * 12}


@pytest.mark.parametrize("seed", range(6))
def test_candidate_plans_keep_memory_and_constraints(seed):
    task = constrained_task(seed)
    models = linear_models(task.topology.num_devices) if seed % 2 else random_form_models()
    _, plans = _candidate_plans(SMALL, task, models, 6)
    assert len(plans) > 1
    assert [plan.violations for plan in plans] == [()] * len(plans)


def test_candidates_more_expensive_than_both_margins_are_left_out():
    task, simulator = toy_task(12), Simulator(random_models())
    plan = replace(SMALL, acceptance=None).find(task, simulator).plan
    expensive, near = Random(1).find(task, simulator).plan, SMALL.candidate_plans(plan, simulator, 2)[1]
    assert ms_of(expensive, simulator) > 1.1 * ms_of(plan, simulator)
    assert expensive not in in_turns(plan, ([expensive], [near]), uncertain(simulator, 0.0), 5)
    for models in (uncertain(simulator, 50.0), simulator):
        assert in_turns(plan, ([expensive], [near]), models, 5) == (plan, expensive, near)


def test_searcher_without_other_plans_has_one_candidate_plan():
    found, plans = _candidate_plans(Greedy("dim"), toy_task(6), random_models(), 5)
    assert plans == (found,)
