"""Searchers with reduced models or settings, compared by the whole simulator."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from neuroshard import Simulator
from neuroshard.models import ReluHead
from neuroshard.models.bundle import Card, save_bundle
from neuroshard.stages.search.methods.ablations import NoCommunication, OtherModels, SingleTableCosts, WithModels
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.published.grid import GridSettings
from neuroshard.testing import LinearCompute, OpaqueCompute, linear_models, random_models, toy_task
from tests.kit.messages import refused
from tests.kit.searches import ms_of


def _gap(searcher, simulator):
    """Return the mean cost of a searcher over that of the published search."""
    ratios = []
    for seed in range(6):
        task = toy_task(14, seed=seed)
        its, published = (ms_of(one.find(task, simulator).plan, simulator) for one in (searcher, BeamSearch()))
        ratios.append(its / published)
    return np.mean(ratios)


@dataclass(frozen=True)
class _Crowded(LinearCompute):
    """Each further table on a device, from the third on, costs more."""

    def embed(self, loads):
        return np.concatenate([super().embed(loads), np.ones((len(loads), 1), np.float32)], axis=1)

    @property
    def head(self):
        return ReluHead(np.array([0, -2], np.float32), np.array([1, 1], np.float32), 0.0, 1.0)


def _expensive_columns():
    models = linear_models()
    expensive = replace(models.forward, per_column_ms=0.05)
    return Simulator(replace(models, forward=expensive, backward=expensive))


def test_search_with_reduced_models_finds_more_expensive_plans():
    assert _gap(WithModels(BeamSearch(), NoCommunication()), _expensive_columns()) > 1.02
    crowded = Simulator(replace(linear_models(), compute=_Crowded()))
    assert _gap(WithModels(BeamSearch(), SingleTableCosts()), crowded) > 1.02


def test_search_with_single_table_costs_loses_nothing_under_linear_models():
    simulator = Simulator(linear_models())
    assert _gap(WithModels(BeamSearch(), SingleTableCosts()), simulator) == pytest.approx(1, abs=1e-3)


def test_single_table_costs_work_for_models_of_any_sharding_type():
    task, models = toy_task(6), replace(linear_models(), compute=OpaqueCompute())
    found = WithModels(BeamSearch(), SingleTableCosts()).find(task, Simulator(models)).plan
    twice = replace(models, compute=LinearCompute(0.1, 0.02))  # alone, a table costs twice what the linear model says
    assert found == BeamSearch().find(task, Simulator(twice)).plan


def test_search_with_other_models_finds_the_plan_of_these_models(tmp_path):
    save_bundle(tmp_path / "other", random_models(seed=9), Card())
    task, simulator = toy_task(14), Simulator(linear_models())
    found = WithModels(BeamSearch(), OtherModels(str(tmp_path / "other"))).find(task, simulator).plan
    assert found == BeamSearch().find(task, Simulator(random_models(seed=9))).plan
    with refused("unknown-name", names=["'nowhere'"]):
        WithModels(BeamSearch(), OtherModels("nowhere")).find(task, simulator)


def test_beam_search_without_caps_finds_more_expensive_plans():
    """Placement by compute cost alone."""
    uncapped = BeamSearch(grid=GridSettings(points=0))
    assert uncapped.find(toy_task(14), Simulator(linear_models())).plan.fits
    assert _gap(uncapped, _expensive_columns()) > 1.01
