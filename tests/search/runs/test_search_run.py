"""What a search run prints and saves of its plans, except their predicted costs."""

from dataclasses import replace

import pytest

from neuroshard import Simulator
from neuroshard.models.bundle import Card, save_bundle
from neuroshard.models.trust import DATASHEET, Margin, Margins
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.acceptance import Acceptance
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.report.explained import sections
from neuroshard.stages.search.report.explanation import explain
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.stages.search.runs.search import Search
from neuroshard.testing import random_models, toy_task
from tests.kit.commands import shown
from tests.kit.messages import refused
from tests.kit.random_models import random_form_models
from tests.kit.searches import H100

MARGINS = Margins(Margin(0.1, 1.0), Margin(0.0, 0.0), Margin(0.0, 0.0))


def test_predicted_costs_count_the_input_dist_if_requested(tmp_path):
    save_bundle(tmp_path / "models", random_form_models(), Card())
    save_bundle(tmp_path / "columns", random_models(), Card())
    tasks, searched = (toy_task(6), toy_task(8)), (Greedy("dim"), "dim_greedy")
    runs = [
        Search(str(tmp_path / "models"), tasks, *searched, str(tmp_path / f"out{count}"), count).run().saved
        for count in (False, True)
    ]
    for without, counted in zip(*(run.records for run in runs), strict=True):
        plan = runs[0].plan_of(without)
        assert plan.placements == runs[1].plan_of(counted).placements
        cost = Simulator(random_form_models(), count_input=True).cost(plan.task, plan)
        assert counted.predicted_ms == pytest.approx(cost.total_ms)
        assert without.predicted_ms < counted.predicted_ms
    with refused("models-lack-input-dist", names=["count_input"]):
        Search(str(tmp_path / "columns"), tasks, *searched, str(tmp_path / "none"), count_input=True).run()


@pytest.mark.parametrize("count", [1, 2])
def test_search_run_prints_the_same_for_found_and_loaded_plans(tmp_path, monkeypatch, count):
    search = Search("roofline:h100", (toy_task(6),) * count, Greedy("dim"), "dim_greedy", str(tmp_path / "out"))
    first = search.run()
    with monkeypatch.context() as patched:
        patched.setattr("neuroshard.plans.plan.Plan.load", None)  # a plan that was just written is not read again
        lines = shown(first)
    assert shown(search.run()) == lines


def test_unmeasured_costs_carry_a_caveat_once_and_in_every_file(tmp_path):
    run = Search("roofline:h100", (toy_task(6),), Greedy("dim"), "dim_greedy", str(tmp_path / "out")).run()
    lines = shown(run).splitlines()
    assert sum(DATASHEET in line for line in lines) == 1
    several = Search("roofline:h100", (toy_task(6),) * 2, Greedy("dim"), "dim_greedy", str(tmp_path / "two")).run()
    lines = shown(several).splitlines()
    assert sum(DATASHEET in line for line in lines) == 1
    plan = SearchRun.load(tmp_path / "out").plans()[0]
    assert DATASHEET in plan.prediction.caveat
    assert sum(plan.prediction.caveat in line for line in lines) == 1
    assert any(line.endswith(plan.prediction.scope) for line in lines)
    assert DATASHEET in str(plan)
    found = explain(plan, H100)
    assert DATASHEET in dict(sections(found)[0].table.itertuples(index=False))["predicted cost"]
    assert "costs-have-caveat" in [warning.code for warning in found.warnings]


def test_warnings_that_differ_only_in_numbers_are_shown_once_with_the_number_of_tasks(tmp_path):
    search = Search("roofline:h100", (toy_task(6),) * 3, Greedy("dim"), "dim_greedy", str(tmp_path / "out"))
    result = search.run()
    warnings = (
        "rows: 18 million is too many\nsamples: 65,536 is too many",
        "rows: 9 is too many",
        "rows: 9 is too many",
    )
    records = tuple(replace(record, warnings=text) for record, text in zip(result.saved.records, warnings, strict=True))
    lines = shown(replace(result, saved=replace(result.saved, records=records))).splitlines()
    assert [line for line in lines if line.startswith("warning: ")] == [
        "warning: task 0: rows: 18 million is too many (and in 2 more tasks)",
        "warning: task 0: samples: 65,536 is too many",
    ]


@pytest.mark.parametrize("margins", [MARGINS, None])
def test_search_run_shows_and_stores_expected_costs_if_margins_are_known(tmp_path, margins):
    save_bundle(tmp_path / "models", replace(random_models(), margins=margins), Card())
    tasks = (toy_task(6), toy_task(8))
    result = Search(str(tmp_path / "models"), tasks, Greedy("dim"), "dim_greedy", str(tmp_path / "out")).run()
    records = SearchRun.load(tmp_path / "out").records
    text = shown(result)
    for record, plan in zip(records, SearchRun.load(tmp_path / "out").plans().values(), strict=True):
        assert (record.expected_ms is None) == (margins is None)
        if margins is not None:
            assert record.expected_ms >= record.predicted_ms
            assert plan.prediction.expected_ms == pytest.approx(record.expected_ms)
            assert f"{record.expected_ms:.2f}" in text
    assert ("expected ms" in text) == (margins is not None)


def test_rejected_gain_is_printed_and_kept(tmp_path):
    save_bundle(tmp_path / "models", replace(random_models(), margins=MARGINS), Card())
    cautious = NeuroShard(max_splits=0, improvement=Improvement(perturbations=5), acceptance=Acceptance(1e3, 1e3))
    for searcher, said in ((cautious, True), (replace(cautious, acceptance=None), False)):
        out = str(tmp_path / str(said))
        result = Search(str(tmp_path / "models"), (toy_task(12),), searcher, "neuroshard", out).run()
        assert ("searcher.acceptance=null" in shown(result)) == said
        assert (SearchRun.load(tmp_path / str(said)).records[0].remark is not None) == said
