"""Small evaluations of plans in TorchRec's training steps on two real processes: comparisons and files."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from neuroshard import Plan, Task, Topology
from neuroshard.measure import DeviceSpec, Hardware
from neuroshard.measure.steps.step_samples import LOOKUPS_ALONE, PHASES, STEP, StepProtocol
from neuroshard.measure.store.plan_measurements import COST, PlanMeasurement, by_plan, passes_in, times_ms
from neuroshard.stages.search.evaluate.comparison import Evaluated
from neuroshard.stages.search.evaluate.step_measurer import StepMeasurer
from neuroshard.stages.search.runs.evaluate import Evaluate
from neuroshard.testing import toy_task
from tests.kit.commands import shown
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, whole

STEPS = StepMeasurer(StepProtocol(builds=1, turns=2, steps=2, dense=(8,)))

pytestmark = pytest.mark.xdist_group("measures")


@pytest.fixture
def plans(tmp_path):
    """Save a column-wise plan and a plan of mixed sharding types, of pooled, shared and sequence tables."""
    tables = list(toy_task(5, num_devices=2).tables)
    tables[3], tables[4] = replace(tables[3], features=2), replace(tables[4], pooled=False)
    task = Task(tuple(tables), Topology(2, 1 << 30), 64)
    whole(task, 0, 1).save(tmp_path / "columns.json")
    laid_out(task, range(2), DATA_PARALLEL, 0, DATA_PARALLEL, 1).save(tmp_path / "mixed.json")
    return [str(tmp_path / name) for name in ("columns.json", "mixed.json")]


def _run(plans, out, measure=STEPS):
    return Evaluate(plans, "roofline:h100", Hardware(DeviceSpec("cpu")), None, 0, str(out), measure=measure).run()


def test_step_evaluation_times_phases_and_resumes(plans, tmp_path):
    out = tmp_path / "out"
    result = _run(plans, out)
    (task,) = result.tasks
    assert task.errors == (None, None)
    found = pd.read_parquet(out / "results.parquet")
    assert found["method"].tolist() == ["columns", "mixed"]
    assert (found["step_ms"] > 0).all()
    assert found["beside_first"][0] == 1
    phases = pd.read_parquet(out / "phases.parquet").set_index("method")
    assert phases.loc["columns", list(PHASES[:6])].min() > 0
    assert phases.loc["columns", list(PHASES[6:])].max() == 0  # there are no data-parallel tables
    assert phases.loc["mixed"].drop("task").min() > 0
    assert (out / "steps.png").read_bytes().startswith(b"\x89PNG")
    assert f"{task.floor:.1%}" in shown(result)

    first = (out / "measurements/task-0000/pass-0000.parquet").read_bytes()
    (out / "run.json").unlink()
    assert _run(plans, out, StepMeasurer(replace(STEPS.protocol, builds=2))).tasks[0].ratios.shape == (2, 2)
    builds = passes_in(out, 0, [Plan.load(path) for path in (*plans, plans[0])]).leading()
    assert [len(times_ms(rows, STEP)) for build in builds for rows in by_plan(build, 3)] == [2] * 6
    assert (out / "measurements/task-0000/pass-0000.parquet").read_bytes() == first
    with refused("out-begun-otherwise", names=["turns=2", 3]):
        _run(plans, out, StepMeasurer(replace(STEPS.protocol, turns=3)))


def test_steps_are_timed_in_a_pipeline(plans, tmp_path):
    piped = StepMeasurer(replace(STEPS.protocol, pipeline="sparse_dist"))
    (task,) = _run(plans, tmp_path / "out", piped).tasks
    assert task.errors == (None, None)
    phases = pd.read_parquet(tmp_path / "out" / "phases.parquet").set_index("method")
    assert phases.loc["mixed"].drop("task").min() > 0
    with refused("out-begun-otherwise", names=["pipeline='sparse_dist'", "'none'"]):
        _run(plans, tmp_path / "out")


def test_step_measurer_refuses_an_unknown_pipeline():
    with refused("unknown-name", names=["'prefetch'", "none, sparse_dist"]):
        StepProtocol(pipeline="prefetch")


def test_plans_of_different_tasks_are_refused_before_any_work(plans, tmp_path):
    task = toy_task(2, num_devices=2)
    whole(task, 0).save(tmp_path / "other.json")
    with refused("evaluate-tasks-differ", names=[plans[0], tmp_path / "other.json"]):
        _run([*plans, str(tmp_path / "other.json")], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _built(plan, number, *step_ms):
    mean_ms = sum(step_ms) / len(step_ms)
    phases = dict.fromkeys(PHASES, 0.0) | {PHASES[0]: mean_ms, LOOKUPS_ALONE: step_ms[0] / 2, COST: mean_ms}
    named = [*((STEP, ms) for ms in step_ms), *phases.items()]
    return [PlanMeasurement(plan, number, phase=phase, ms=ms) for phase, ms in named]


def _build(number, *steps_ms):
    return tuple(row for plan, step_ms in enumerate(steps_ms) for row in _built(plan, number, *step_ms))


BUILDS = (
    _build(0, (10.0, 20.0, 10.0), (5.0, 30.0, 5.0), (11.0, 20.0, 10.0)),
    _build(1, (10.0, 10.0, 10.0), (8.0, 8.0, 9.0), (9.0, 9.0, 9.0)),
)
ENTRIES = tuple(Evaluated(name, 3, None, None, 1.0, None) for name in ("a", "b"))


def test_step_measurer_compares_plans_turn_by_turn_within_each_build():
    times = STEPS.compared(3, ENTRIES, BUILDS)
    assert times.ratios == pytest.approx(np.array([[1.0, 1.0], [0.5, 0.8]]))
    assert times.step_ms == pytest.approx([10.0, 8.0])
    assert times.floor == pytest.approx(((0.0**2 + 0.1**2) / 2 / 2) ** 0.5)
    row = STEPS.details(times, BUILDS)[1]
    assert (row["method"], row["task"], row[PHASES[0]], row[PHASES[1]]) == ("b", 3, pytest.approx(65 / 6), 0.0)
    assert row[LOOKUPS_ALONE] == pytest.approx((2.5 + 4.0) / 2)


def test_step_measurer_compares_other_plans_after_a_failed_build():
    others = [row for row in BUILDS[0] if row.plan != 1]
    broken = ((*others, PlanMeasurement(1, 0, error="out of memory")), BUILDS[1])
    times = STEPS.compared(3, ENTRIES, broken)
    assert times.errors == (None, "out of memory")
    assert np.isnan(times.step_ms).tolist() == [False, True]
    assert np.isfinite(times.floor)


def test_step_measurer_refuses_builds_of_other_plans_or_turns(plans, tmp_path):
    loaded = [Plan.load(path) for path in (*plans, plans[0])]
    measurer = StepMeasurer(StepProtocol(turns=3))
    files = passes_in(tmp_path, 2, loaded, partial(measurer.wrong, loaded))
    for number, build in enumerate(BUILDS):
        files.write(number, build)
    assert files.leading() == BUILDS
    with refused("stored-part-wrong", names=["pass-0000.parquet", "2 plans"]):
        passes_in(tmp_path, 2, loaded[:2]).leading()
    other = StepMeasurer(StepProtocol(turns=2))
    with refused("stored-part-wrong", names=["pass-0000.parquet"]):
        passes_in(tmp_path, 2, loaded, partial(other.wrong, loaded)).leading()
