"""Small evaluations of plans in mirrored steps."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from neuroshard import Plan, Task, Topology
from neuroshard.measure import DeviceSpec, Hardware
from neuroshard.measure.steps.step_samples import PIPELINES, StepProtocol
from neuroshard.measure.store.plan_measurements import costs_ms, error_of
from neuroshard.measure.store.samples import LOCAL_PHASES
from neuroshard.stages.search.evaluate.mirrored_measurer import MirroredMeasurer
from neuroshard.stages.search.runs.evaluate import Evaluate
from neuroshard.testing import toy_task
from tests.kit.commands import shown
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, whole

MEASURE = MirroredMeasurer(StepProtocol(builds=1, turns=2, steps=1, dense=(8,)), exchanges="roofline:h100")

pytestmark = pytest.mark.xdist_group("measures")


@pytest.fixture
def plans(tmp_path):
    """Save a column-wise plan and a plan of mixed sharding types, for more devices than this machine has."""
    tables = tuple(replace(table, rows=table.rows + 32) for table in toy_task(4, num_devices=16).tables)
    task = Task(tables, Topology(16, 1 << 30), 64)
    whole(task).save(tmp_path / "columns.json")
    laid_out(task, range(16), DATA_PARALLEL, 0, 0).save(tmp_path / "mixed.json")
    return [str(tmp_path / name) for name in ("columns.json", "mixed.json")]


def _run(plans, out, measure=MEASURE):
    return Evaluate(plans, "roofline:h100", Hardware(DeviceSpec("cpu")), None, 0, str(out), measure=measure).run()


def test_mirrored_evaluation_measures_plans_for_16_devices_on_one_and_resumes(plans, tmp_path):
    out = tmp_path / "out"
    result = _run(plans, out)
    found = pd.read_parquet(out / "results.parquet").set_index("method")
    assert found["error"].isna().all()
    np.testing.assert_allclose(found[list(LOCAL_PHASES)].sum(axis=1), found["local_ms"], rtol=1e-6)
    assert found.loc["columns", ["reducing data-parallel gradients", "data-parallel optimizer"]].max() == 0
    assert found.loc["mixed", list(LOCAL_PHASES)].min() > 0
    assert found["exchange_ms"].min() > 0
    stretches = pd.read_parquet(out / "stretches.parquet")
    assert set(stretches["rank"]) == {rank for its in found["ranks"] for rank in its}
    total = stretches[stretches["method"] == "columns"].groupby("rank")["ms"].sum()
    assert found.loc["columns", "local_ms"] >= total.max()
    assert "16 ranks" in shown(result)
    assert f"{result.tasks[0].floor:.1%}" in shown(result)

    (kept,) = (out / "measurements/task-0000").iterdir()
    before = kept.read_bytes()
    (out / "run.json").unlink()
    _run(plans, out, replace(MEASURE, protocol=replace(MEASURE.protocol, builds=2)))
    assert len([*kept.parent.iterdir()]) == 2
    assert kept.read_bytes() == before
    with refused("out-begun-otherwise", names=["turns=2", 3]):
        _run(plans, out, MirroredMeasurer(replace(MEASURE.protocol, turns=3)))


def test_mirrored_exchange_time_includes_the_input_dist_unless_a_pipeline_hides_it(plans, tmp_path):
    """With a wide dense network, a pipeline hides the whole input dist; a training loop waits for it."""
    wide = replace(MEASURE.protocol, turns=1, dense=(1024, 1024))
    found = {}
    for pipeline in PIPELINES:
        measure = replace(MEASURE, protocol=replace(wide, pipeline=pipeline))
        result = _run(plans[:1], tmp_path / pipeline, measure)
        ((waited_ms, input_ms),) = measure.exchanges_of([Plan.load(plans[0])])
        found[pipeline] = result.frames["results"][0]["exchange_ms"] - waited_ms
        assert json.loads((tmp_path / pipeline / "run.json").read_text())["pipeline"] == pipeline
    assert found == {"none": pytest.approx(input_ms), "sparse_dist": 0.0}
    assert input_ms > 0


def test_mirrored_measurer_without_exchange_models_reports_no_exchange_time(plans, tmp_path):
    result = _run(plans[:1], tmp_path / "out", replace(MEASURE, exchanges=None))
    assert np.isnan(result.frames["results"][0]["exchange_ms"])


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_mirrored_measurer_measures_candidate_plans_for_verify(tmp_path, pipeline):
    task = toy_task(2, num_devices=2)
    candidate = whole(task)
    measure = replace(MEASURE, protocol=replace(MEASURE.protocol, pipeline=pipeline))
    with measure.opened([task], Hardware(DeviceSpec("cpu")), False, print) as measured:
        found = measured([candidate], 0, [0], (steps := []).append, tmp_path)
    assert error_of(found) is None
    assert costs_ms([found], 1).min() > 0
    assert sum(steps) == MEASURE.amount([candidate], False)
