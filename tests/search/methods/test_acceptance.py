"""A gain is accepted if it is larger than the acceptance margin."""

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

from neuroshard import CostModels, Simulator, Task, Topology
from neuroshard.models.parts import imbalance
from neuroshard.models.trust import EXCHANGES, Margin, Margins
from neuroshard.plumbing.registry import build
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.starts import ExistingPlan
from neuroshard.stages.search.methods.acceptance import Acceptance, choose, rejected_remark
from neuroshard.stages.search.methods.improved import ImprovedSearch
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.testing import LinearCompute, OpaqueCompute, linear_models, toy_tables, toy_task
from tests.kit.costs import cost_of
from tests.kit.plans import laid_out, whole
from tests.kit.searches import ms_of

FEW = Improvement(perturbations=10)
ERROR = 0.15


@dataclass(frozen=True)
class Wrong(LinearCompute):
    """A wrong model: widths that halving never gives look too cheap; the published search does not use them."""

    def embed(self, loads):
        halved = np.log2(loads.dim) % 1 == 0
        return super().embed(loads) * np.where(halved, 1.0, 1 - ERROR)[:, None].astype(np.float32)


@dataclass(frozen=True)
class Disagreeing(LinearCompute):
    """A model with a constant spread, as if of members that disagree."""

    def spread_ms(self, sets):
        return np.full(len(sets), 1e-9)


def _simulator(compute, relative):
    """Return a simulator with margins of `relative` times the compute cost, and no margins of exchanges."""
    margins = Margins(Margin(relative, 1.0), Margin(0.0, 0.0), Margin(0.0, 0.0))
    return Simulator(replace(linear_models(), compute=compute, margins=margins))


def _two_plans():
    """Return a plan with all tables on one device, and a plan with tables on four devices."""
    task = toy_task(8)
    return whole(task, 0), whole(task)


def _chosen(acceptance, first, other, simulator):
    costs = simulator.costs(first.task, [first, other])
    return (first, other)[choose(acceptance.assess(costs, first.task, simulator))[0]]


@pytest.mark.parametrize(
    ("compute", "setting"), [(LinearCompute(), "single_model_margin_fraction"), (Disagreeing(), "margin_fraction")]
)
def test_a_gain_above_a_fraction_of_both_margins_is_accepted(compute, setting):
    simulator, (first, other) = _simulator(compute, 0.5), _two_plans()
    before, after = simulator.costs(first.task, [first, other])
    share = (before.expected_ms - after.expected_ms) / (before.margin_ms + after.margin_ms)  # that the gain is
    assert 0.1 < share < 3
    for factor, chosen in ((0.99, other), (1.01, first)):
        other_setting = {"margin_fraction", "single_model_margin_fraction"} - {setting}
        acceptance = Acceptance(**{setting: share * factor, other_setting.pop(): 1e6 * (factor < 1)})
        assert _chosen(acceptance, first, other, simulator) == chosen


def test_acceptance_ignores_savings_of_all_devices_together_for_models_without_members():
    """The model predicts that halving both tables is cheaper in total, but no better balanced than one per device."""

    @dataclass(frozen=True)
    class Flattering(LinearCompute):
        def embed(self, loads):
            return super().embed(loads) * np.where(loads.dim < 64, 0.1, 1.0)[:, None].astype(np.float32)

    @dataclass(frozen=True)
    class FlatteringMembers(Flattering, Disagreeing):
        pass

    tables = tuple(replace(toy_tables(1)[0], name=f"t{i}").with_dim(64) for i in range(2))
    task = Task(tables, Topology(2, 1 << 30), 256)
    first, other = laid_out(task, 0, 1), laid_out(task, *[{0: 32, 1: 32}] * 2)
    margins = _simulator(LinearCompute(), 0.1).models.margins
    for compute, chosen in ((Flattering(), first), (FlatteringMembers(), other)):
        simulator = Simulator(replace(linear_models(2), compute=compute, margins=margins))
        assert _chosen(Acceptance(1.0, 1.0), first, other, simulator) is chosen


def test_acceptance_never_chooses_a_plan_without_a_gain():
    first, other = _two_plans()
    for simulator in (Simulator(linear_models()), _simulator(LinearCompute(), 0.1)):
        assert _chosen(Acceptance(0.0, 0.0), other, first, simulator) is other
        assert _chosen(Acceptance(0.0, 0.0), first, first, simulator) is first


NO_MARGINS = replace(CostModels.load("cpu"), margins=None)  # an ensemble
OF_DATASHEET = CostModels.load("roofline:h100")


def _taken(models, first, other, acceptance=None):
    """Return True if the second of two costs is accepted."""
    chosen, rejected = choose((acceptance or Acceptance()).assess([first, other], toy_task(2), Simulator(models)))
    assert rejected == (None if chosen else 1)
    return bool(chosen)


def _on_one_device(compute=1e-6, forward=0.0, backward=0.0, margin=None):
    return cost_of(*([np.array([ms]) for ms in (compute, forward, backward)]), margin and np.array([margin]))


@pytest.mark.parametrize(
    ("models", "part", "share"),
    [
        (NO_MARGINS, "compute", 0.15), (NO_MARGINS, "forward", 0.25), (NO_MARGINS, "backward", 0.25),
        (OF_DATASHEET, "compute", 0.12), (OF_DATASHEET, "forward", 0.10), (OF_DATASHEET, "backward", 0.10),
        (CostModels.load("roofline:h100", exchange_dtype="fp16"), "backward", 0.10),
    ],
)  # fmt: skip
def test_acceptance_without_margins_accepts_gains_above_the_assumed_margin_only(models, part, share):
    """With margins of share s, a gain g of 100 ms exceeds half of both margins from g = 100 s / (1 + s / 2)."""
    least = 100 * share / (1 + share / 2)
    first = _on_one_device(**{part: 100.0})
    for gain, taken in ((0.99, False), (1.01, True)):
        assert _taken(models, first, _on_one_device(**{part: 100.0 - gain * least})) == taken


def test_acceptance_uses_margins_of_models_instead_of_assumed_ones():
    models = CostModels.load("cpu")
    first = _on_one_device(100.0, margin=20.0)
    for gain, taken in ((0.2, False), (0.4, True)):
        assert _taken(models, first, _on_one_device(100.0 - gain, margin=20.0)) == taken


@pytest.mark.parametrize("models", [linear_models(), CostModels.load("cpu").with_compute(LinearCompute())])
def test_acceptance_without_margins_requires_both_assumed_margins_of_a_single_model(models):
    """Gains must exceed both margins in full, from g = 200 s / (1 + s); savings common to all devices do not count."""
    first, least = _on_one_device(backward=100.0, margin=None), 200 * 0.25 / 1.25
    for gain, taken in ((0.99, False), (1.01, True)):
        assert _taken(models, first, _on_one_device(backward=100.0 - gain * least)) == taken
    assert not _taken(models, _on_one_device(100.0), _on_one_device(1.0))


def test_acceptance_of_other_types_by_datasheets_without_steps_requires_both_margins():
    first = _on_one_device(100.0)
    for gain, taken in ((21.0, False), (22.0, True)):  # 12 ms, and 12% of what is left
        assert _taken(OF_DATASHEET, first, _on_one_device(100.0 - gain), Acceptance().of_forms(OF_DATASHEET)) == taken


@pytest.mark.parametrize(
    ("models", "assumed"), [(linear_models(), True), (_simulator(LinearCompute(), 0.5).models, False)]
)
def test_remark_on_a_rejected_plan_names_an_assumed_margin(models, assumed):
    first, other = _two_plans()
    remark = rejected_remark(first, other, Simulator(models))
    assert remark.code == "search-cheaper-plan-rejected"
    assert ("%" in remark.limit) == assumed  # an assumed margin is named


def test_acceptance_rejects_gains_below_min_gain():
    first, other = _two_plans()
    known = _simulator(Disagreeing(), 1e-6)
    of_first, of_other = known.costs(first.task, [first, other])
    gain = 1 - of_other.total_ms / of_first.total_ms
    for factor, chosen in ((0.99, other), (1.01, first)):
        acceptance = Acceptance(0.0, 0.0, min_gain=gain * factor)
        assert _chosen(acceptance, first, other, known) is chosen


def test_acceptance_rejects_imbalance_outside_the_training_range_above_the_first_plans():
    first, other = _two_plans()
    simulator, task = Simulator(linear_models()), first.task
    of_first, of_other = simulator.costs(task, [first, other])
    for before, after, chosen in ((1.0, 1.1, 0), (1.1, 1.2, 0), (1.1, 1.1, 1), (1.2, 1.0, 1)):
        costs = [replace(of_first, outside_training_range=before), replace(of_other, outside_training_range=after)]
        assert choose(Acceptance().assess(costs, task, simulator)) == (chosen, None if chosen else 1)


def test_rejection_for_unbalanced_exchanges_is_reported():
    """A hot table alone on a device is predicted to be cheaper, with an exchange of 32 and 128 columns."""
    table = replace(toy_tables(1)[0].with_dim(32), pooling_factor=1.0)
    tables = replace(table, pooling_factor=20.0), *(replace(table, name=f"t{i}") for i in range(4))
    task = Task(tables, Topology(2, 1 << 40), 256)
    even, alone = (laid_out(task, 0, beside, 1, 1, 1) for beside in (0, 1))
    known = replace(CostModels.load("cpu").ranges, others={})
    for most, margins in ((1.5, []), (1.6, ["14%"])):  # the exchanges are outside the training range, or inside
        name, unbalanced = imbalance(np.array([[most, 2 - most]]) * 1000)
        ranges = known.with_part(EXCHANGES, {name: unbalanced})
        remark = rejected_remark(even, alone, Simulator(replace(linear_models(2), ranges=ranges)))
        assert re.findall(r"\d+%", remark.limit) == margins
        assert "searcher.acceptance=null" in remark.remedy


def test_the_first_start_stays_if_the_gain_is_not_accepted():
    first, other = _two_plans()
    starts, simulator = (ExistingPlan(first), ExistingPlan(other)), _simulator(LinearCompute(), 0.5)
    opaque = simulator.models.with_compute(OpaqueCompute(), margins=simulator.models.margins.compute)
    for one in (simulator, Simulator(opaque)):
        cautious, accepting = (ImprovedSearch(starts, FEW, acceptance=c) for c in (Acceptance(1e3, 1e3), None))
        assert {placement.device for placement in cautious.find(first.task, one).plan.placements} == {0}
        assert {placement.device for placement in accepting.find(first.task, one).plan.placements} == {0, 1, 2, 3}


def test_acceptance_avoids_truly_worse_plans_if_models_are_wrong():
    """By known true costs: without an acceptance margin some plans are worse, with it none by more than 1%."""
    truth, wrong = Simulator(linear_models()), _simulator(Wrong(), ERROR)
    gains = []
    for seed in range(10):
        task = toy_task(24, seed=seed)
        searchers = (BeamSearch(), NeuroShard(improvement=FEW, acceptance=None), NeuroShard(improvement=FEW))
        published, bold, ours = (ms_of(searcher.find(task, wrong).plan, truth) for searcher in searchers)
        gains.append((1 - bold / published, 1 - ours / published))
    bold, ours = np.array(gains).T
    assert (bold < -0.01).mean() >= 0.2
    assert ours.min() > -0.01
    assert ours.mean() >= 0


def test_acceptance_setting_of_the_searcher_comes_from_the_config():
    assert build("searcher", "neuroshard") == NeuroShard()
    half, none = (build("searcher", "neuroshard", acceptance=one) for one in ({"margin_fraction": 0.5}, None))
    assert half.column_search.acceptance == Acceptance(margin_fraction=0.5)
    assert none.column_search.acceptance is None


def test_rejected_gain_is_reported():
    first, other = _two_plans()
    starts, simulator = (ExistingPlan(first), ExistingPlan(other)), _simulator(Disagreeing(), 0.5)
    cautious, accepting, bold = (
        ImprovedSearch(starts, FEW, acceptance=c).find(first.task, simulator)
        for c in (Acceptance(1e3, 1e3), Acceptance(0.0, 0.0), None)
    )
    before, after = (ms_of(found.plan, simulator) for found in (cautious, bold))
    remark = rejected_remark(cautious.plan, cautious.rejected, simulator)
    assert re.findall(r"\d+\.\d+", remark.what) == [
        f"{100 * (1 - after / before):.1f}",
        f"{after:.2f}",
        f"{before:.2f}",
    ]
    assert "searcher.acceptance=null" in remark.remedy
    assert (accepting.rejected, bold.rejected) == (None, None)
    best = ImprovedSearch((ExistingPlan(bold.plan),), replace(FEW, perturbations=0), acceptance=Acceptance(1e3, 1e3))
    assert best.find(first.task, simulator).rejected is None  # there was nothing to gain


def test_negligible_rejected_gains_are_not_reported():
    """Gains below 1%, and plans that don't fit."""
    first, other = _two_plans()
    simulator = _simulator(LinearCompute(), 0.5)
    assert rejected_remark(first, other, simulator) is not None
    assert rejected_remark(other, replace(other), simulator) is None
    assert rejected_remark(other, first, simulator) is None
    tight = replace(first.task, topology=replace(first.task.topology, memory_bytes=max(other.device_bytes) - 1))
    assert rejected_remark(replace(first, task=tight), replace(other, task=tight), simulator) is None
