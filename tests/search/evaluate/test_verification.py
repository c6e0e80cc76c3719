"""Verification of candidate plans on hardware: gains above the error are taken, and measurements are kept."""

import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neuroshard import CostModels, Plan, Simulator, Topology
from neuroshard.app import cli
from neuroshard.measure import Meter, Outcome
from neuroshard.measure.steps.step_samples import StepProtocol
from neuroshard.models import Card, save_bundle
from neuroshard.plans.moves import layout_key
from neuroshard.stages.search.evaluate.candidate_plan_files import read_searched
from neuroshard.stages.search.evaluate.step_measurer import StepMeasurer
from neuroshard.stages.search.evaluate.verification import Verify
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Greedy, Random
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.stages.search.published.grid import GridSettings
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.stages.search.runs.search import Search
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.targets.target import constrained
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.testing import linear_models, random_models, toy_task
from tests.kit.commands import shown
from tests.kit.devices import MADE_UP, MadeUpCpu
from tests.kit.devices.made_up import MadeUpHardware
from tests.kit.measuring import CPU
from tests.kit.messages import refused
from tests.kit.processes import PATIENCE_S, as_if_under_torchrun
from tests.kit.searches import ms_of

HOME = MADE_UP["cpu"]
TASK = toy_task(6, num_devices=2)
TASKS = TASK, toy_task(7, num_devices=2, seed=1)
AWAY = replace(HOME, compute=MadeUpCpu(table_ms=0.5, rest_vectors=4.0))
NOISY, STEADY = MadeUpHardware(made_up=AWAY, noise=0.05), MadeUpHardware(made_up=AWAY)
SMALL = NeuroShard(
    3, 1, 2, GridSettings(points=3), Improvement(perturbations=3), acceptance=None, sharding_types=("column_wise",)
)


def _dlrm_tasks(count):
    tables = dlrm_like(num_tables=120, batch_size=HOME.batch_size, seed=3)
    draw = TaskDraw(count, min_tables=16, max_tables=24, max_dim=32)
    return drawn(tables, Topology(4, 4 << 30), HOME.batch_size, draw)


@pytest.fixture
def bundle(tmp_path):
    save_bundle(tmp_path / "models", random_models(2), Card())
    return tmp_path / "models"


def _search(model, out, verify, tasks=TASKS, searcher=SMALL, **settings):
    return Search(str(model), tasks, searcher, "neuroshard", str(out), verify=verify, **settings)


def test_verified_plans_truly_cost_no_more_than_predicted_ones_if_models_are_wrong(tmp_path, monkeypatch):
    ratio = _beside_the_predicted_best(3, tmp_path, monkeypatch)
    assert (ratio <= 1).all()
    assert (ratio < 0.99).any()


@pytest.mark.slow
def test_verified_plans_truly_cost_less_than_predicted_ones_if_models_are_wrong(tmp_path, monkeypatch):
    ratio = _beside_the_predicted_best(12, tmp_path, monkeypatch)
    assert ratio.mean() < 0.985
    assert (ratio < 0.99).mean() > 1 / 3
    assert (ratio <= 1).all()


def _beside_the_predicted_best(count, tmp_path, monkeypatch):
    """Return the true costs of verified plans of `count` tasks over those of the plans predicted to be best."""
    monkeypatch.setattr(CostModels, "of", staticmethod(lambda *_: HOME.truth))
    truth, verify = Simulator(AWAY.truth), Verify(replace(NOISY, noise=0.01), candidate_plans=6, passes=6)
    verified = _search("home", tmp_path / "verified", verify, _dlrm_tasks(count)).run().saved.plans()
    best = _predicted_best(count)
    return np.array([ms_of(verified[number], truth) / ms_of(plan, truth) for number, plan in best.items()])


@cache
def _predicted_best(count):
    """Return the plans of `count` tasks found without measuring, by task number."""
    return {number: SMALL.find(task, Simulator(HOME.truth)).plan for number, task in enumerate(_dlrm_tasks(count))}


def test_search_run_with_verify_takes_the_plan_that_verify_decides(bundle, tmp_path):
    verify = Verify(NOISY, candidate_plans=4, passes=3)
    run = _search(bundle, tmp_path / "run", verify, (TASK,)).run().saved
    found = verify.decided(SMALL, TASK, Simulator(CostModels.load(str(bundle))))
    assert run.plans()[0].placements == found.plan.placements
    assert found.remark in run.records[0].remark


def test_predicted_plan_is_kept_if_differences_are_noise(tmp_path, monkeypatch):
    monkeypatch.setattr(CostModels, "of", staticmethod(lambda *_: HOME.truth))
    verify = Verify(MadeUpHardware(made_up=HOME, noise=0.3), candidate_plans=6, passes=3)
    run = _search("home", tmp_path / "verified", verify, _dlrm_tasks(3)).run().saved
    assert run.plans() == _predicted_best(3)
    frame = pd.read_parquet(tmp_path / "verified" / "candidate_plans.parquet")
    assert set(frame[frame.taken].candidate_plan) == {0}


def test_verified_search_writes_measurements_of_candidate_plans(bundle, tmp_path):
    result = _search(bundle, tmp_path / "run", Verify(NOISY, candidate_plans=4, passes=3)).run()
    frame = pd.read_parquet(tmp_path / "run" / "candidate_plans.parquet")
    assert frame.task.tolist() == [0] * 4 + [1] * 4
    assert frame.candidate_plan.tolist() == [0, 1, 2, 3] * 2
    assert (frame.groupby("task").taken.sum() == 1).all()
    assert (frame.passes == 3).all()
    simulator, text = Simulator(CostModels.load(bundle)), shown(result)
    for row in frame.itertuples():
        plan = Plan.load(tmp_path / "run" / row.plan)
        assert row.predicted_ms == plan.prediction.cost_ms == pytest.approx(ms_of(plan, simulator))
        assert row.measured_ms == pytest.approx(ms_of(plan, Simulator(AWAY.truth)), rel=0.2)
    loaded = SearchRun.load(tmp_path / "run")
    for record, plan in zip(loaded.records, loaded.plans().values(), strict=True):
        taken = frame[(frame.task == record.task) & frame.taken].iloc[0]
        assert Plan.load(tmp_path / "run" / taken.plan) == plan
        assert record.measured_ms == taken.measured_ms
        assert plan.prediction.cost_ms == record.predicted_ms == taken.predicted_ms
        assert record.remark in text
        assert f"{record.measured_ms:.2f}" in text
    assert "measured ms" in text
    assert f"candidate plans: {tmp_path}/run/candidate_plans.parquet" in text
    assert _search(bundle, tmp_path / "run", Verify(NOISY, 4, 3)).run().saved.plans() == loaded.plans()
    for other, what in (
        (Verify(NOISY, 4, 4), "verify.passes=3"),
        (Verify(NOISY, 5, 3), "verify.candidate_plans=4"),
        (None, "verify.candidate_plans=4"),
        (Verify(replace(NOISY, noise=0.1), 4, 3), "verify.hardware.noise=0.05"),
    ):
        with refused("out-begun-otherwise", names=[tmp_path / "run", what]):
            _search(bundle, tmp_path / "run", other).run()


def test_output_does_not_mention_measuring_if_nothing_is_measured(bundle, tmp_path):
    result = _search(bundle, tmp_path / "run", None).run()
    assert "measured" not in shown(result)
    names = {"plans", "records", "results.parquet", "run.json", "settings.json", "tasks.json"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == names


class _Killed(Exception):
    pass


@dataclass(frozen=True)
class _Counter(Meter):
    """A meter that counts kernel calls, and fails at one batch of them."""

    meter: Meter
    counts: dict

    def close(self):
        pass

    def measure(self, samples, seeds):
        self.counts["batches"] += 1
        if self.counts["batches"] == self.counts["dies_at"]:
            raise _Killed
        self.counts["calls"] += len(samples)
        if self.counts["fails"]:
            return [self._outcome(sample, seed) for sample, seed in zip(samples, seeds, strict=True)]
        return self.meter.measure(samples, seeds)

    def _outcome(self, sample, seed):
        if len(sample.tables) >= self.counts["fails"]:
            return Outcome(None, "MemoryError: too many tables", 0.0)
        return self.meter.measure([sample], [seed])[0]


class _Counted(MadeUpHardware):
    """Hardware that also has a counter, in addition to the settings."""

    def compute_meter(self, warn):
        return _Counter(super().compute_meter(warn), self.counts)


def _counted(dies_at=0, fails=0):
    hardware = _Counted(made_up=AWAY, noise=0.05)
    vars(hardware)["counts"] = {"batches": 0, "calls": 0, "dies_at": dies_at, "fails": fails}
    return hardware


def test_interrupted_verification_measures_only_missing_passes(bundle, tmp_path):
    tasks = tuple(toy_task(6, num_devices=2, seed=seed) for seed in range(2))
    whole = _counted()
    expected = _search(bundle, tmp_path / "whole", Verify(whole, 3, 4), tasks).run().saved
    assert whole.counts["batches"] == 8  # a batch for each pass
    dying = _counted(dies_at=7)
    with pytest.raises(_Killed):
        _search(bundle, tmp_path / "run", Verify(dying, 3, 4), tasks).run()
    assert len(read_searched(tmp_path / "run", 1, tasks[1]).passes) == 2
    rest = _counted()
    found = _search(bundle, tmp_path / "run", Verify(rest, 3, 4), tasks).run().saved
    assert dying.counts["calls"] + rest.counts["calls"] == whole.counts["calls"]
    assert found.plans() == expected.plans()
    assert [record.measured_ms for record in found.records] == [record.measured_ms for record in expected.records]
    frames = [pd.read_parquet(tmp_path / out / "candidate_plans.parquet") for out in ("run", "whole")]
    pd.testing.assert_frame_equal(*frames)


def test_a_plan_that_cannot_run_is_left_out(bundle, tmp_path):
    task = toy_task(12, num_devices=2)
    _search(bundle, tmp_path / "free", Verify(_counted(), 6, 2), (task,)).run()
    candidate_plans = read_searched(tmp_path / "free", 0, task).candidate_plans
    largest = [max(map(len, plan.device_tables)) for plan in candidate_plans]
    assert len(set(largest)) > 1, "the candidate plans must differ in this for the test to test anything"
    limit = max(largest)
    run = _search(bundle, tmp_path / "run", Verify(_counted(fails=limit), 6, 2), (task,)).run()
    frame = pd.read_parquet(tmp_path / "run" / "candidate_plans.parquet")
    assert (frame.error.notna().to_numpy() == (np.array(largest) >= limit)).all()
    assert frame.measured_ms.isna().equals(frame.error.notna())
    assert frame[frame.taken].error.isna().all()
    assert frame.error.dropna().str.contains("MemoryError: too many tables").all()
    if largest[0] == limit:  # the predicted best could not be measured, so gains over it are not known
        assert "%" not in run.saved.records[0].remark
    none = _search(bundle, tmp_path / "none", Verify(_counted(fails=1), 3, 2), (task,)).run()
    assert "(device 0: MemoryError: too many tables)" in shown(none)
    assert none.saved.plans() == _search(bundle, tmp_path / "plain", None, (task,)).run().saved.plans()


def test_verify_measures_the_only_plan_of_a_searcher_without_others(bundle, tmp_path):
    run = _search(bundle, tmp_path / "run", Verify(NOISY, 4, 2), searcher=Greedy("dim")).run().saved
    frame = pd.read_parquet(tmp_path / "run" / "candidate_plans.parquet")
    assert frame.candidate_plan.tolist() == [0] * len(run.records)
    assert all(record.measured_ms > 0 for record in run.records)
    assert all(f"{record.measured_ms:.2f} ms" in record.remark for record in run.records)


def test_remarks_of_a_search_precede_the_verdict_and_are_kept(bundle, tmp_path):
    replan = Replan(
        Random().find(TASK, Simulator(CostModels.load(bundle))).plan, improvement=Improvement(perturbations=3)
    )
    plain, verified = (
        _search(bundle, tmp_path / name, how, (TASK,), replan).run().saved.records[0].remark
        for name, how in (("plain", None), ("verified", Verify(NOISY, 4, 2)))
    )
    assert verified.startswith(f"{plain}; ")
    assert read_searched(tmp_path / "verified", 0, TASK).found.remark == plain


def test_tasks_without_a_plan_are_recorded(bundle, tmp_path):
    tight = replace(TASK, topology=Topology(2, TASK.size_bytes // 3))
    run = _search(bundle, tmp_path / "run", Verify(STEADY, 2, 2), (TASK, tight)).run().saved
    assert [record.error is None for record in run.records] == [True, False]
    assert set(pd.read_parquet(tmp_path / "run" / "candidate_plans.parquet").task) == {0}


def test_verify_accepts_plans_with_rules_added_for_the_target(tmp_path, monkeypatch):
    """The plan splits a table into four equal parts, a rule that the task itself does not have."""
    monkeypatch.setattr(CostModels, "of", staticmethod(lambda *_: linear_models(4)))
    hot, *rest = toy_task(5).tables
    tables = (replace(hot, dim=64, pooling_factor=30.0), *(replace(table, dim=4) for table in rest))
    tasks = constrained([replace(toy_task(5), tables=tables)], "hugectr")
    for _ in range(2):  # searched, then read
        run = _search("linear", tmp_path / "run", Verify(STEADY, 2, 2), tasks, SMALL).run().saved
    plan = run.plan_of(run.records[0])
    assert plan.task.constraints.rules[-1].min_shards == 4
    assert read_searched(tmp_path / "run", 0, tasks[0]).candidate_plans[0].task == plan.task


def test_damaged_measurements_are_refused_by_file_name(bundle, tmp_path):
    _search(bundle, tmp_path / "run", Verify(STEADY, 2, 2)).run()
    path = tmp_path / "run" / "measurements" / "task-0000" / "pass-0000.parquet"
    frame = pd.read_parquet(path, dtype_backend="numpy_nullable")
    frame[frame["plan"] == 0].to_parquet(path)
    with refused("stored-part-wrong", names=[path, "2 plans", "2 devices"]):
        read_searched(tmp_path / "run", 0, TASK)
    frame.assign(ms=-1.0).to_parquet(path)
    with refused("value-outside-limits", where=f"pass {path}"):
        read_searched(tmp_path / "run", 0, TASK)
    with refused("candidate-plan-other-task", names=["plan-00.json"]):
        read_searched(tmp_path / "run", 0, toy_task(6, num_devices=2, seed=5))


def test_verify_reports_user_mistakes_in_one_line(bundle, tmp_path):
    with refused("value-outside-limits", names=["candidate_plans", 0, 1]):
        Verify(STEADY, candidate_plans=0, passes=2)
    with refused("value-outside-limits", names=["passes", 1, 2]):
        Verify(STEADY, candidate_plans=2, passes=1)
    on_hosts = replace(TASK, topology=replace(TASK.topology, devices_per_host=1))
    with refused("hardware-hosts-differ", names=["1 of its 2 devices", "2 devices on each host"]):
        _search(bundle, tmp_path / "run", Verify(STEADY, 2, 2), (on_hosts,)).run()
    assert not (tmp_path / "run").exists()


def test_verify_refuses_torchrun_with_another_number_of_devices_before_any_work(bundle, tmp_path, monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    with refused("torchrun-processes-differ", names=["3 processes", "num_devices is 2"]):
        _search(bundle, tmp_path / "run", Verify(CPU, 2, 2)).run()
    assert not (tmp_path / "run").exists()


@pytest.mark.xdist_group("measures")
def test_verified_search_on_real_hardware_measures_three_distinct_plans(bundle, tmp_path):
    result = _search(bundle, tmp_path / "run", Verify(CPU, 3, 2), count_input=False).run()
    frame = pd.read_parquet(tmp_path / "run" / "candidate_plans.parquet")
    assert frame.error.isna().all()
    assert (frame.measured_ms > 0).all()
    plans = [Plan.load(tmp_path / "run" / name) for name in frame[frame.task == 0].plan]
    assert len(set(map(layout_key, plans))) == len(plans) == 3
    assert "solved 2 of 2 tasks" in shown(result)


TABLES = "name,rows,dim,pooling_factor\na,100,16,2\nb,50,8,1\nc,70,32,3\nd,90,16,2\n"
TIMED = [f"hardware.{kind}_timing.{name}" for kind in ("compute", "comm") for name in ("rounds=2", "live=8")]


MEASURED = re.compile(r"task 0: .*measured \d")  # in the remark on a task


@pytest.fixture
def command(bundle, tmp_path):
    (tmp_path / "tables.csv").write_text(TABLES)
    given = (f"model={bundle}", f"tables={tmp_path}/tables.csv", "batch_size=256", "topology.num_devices=2")
    return ["search", *given, "verify=kernels", "passes=2", f"out={tmp_path}/found", *TIMED]


@pytest.mark.xdist_group("measures")
def test_command_with_verify_measures_candidate_plans(command, tmp_path, capsys):
    cli.main([*command, "candidate_plans=2"])
    out = capsys.readouterr().out
    assert len(MEASURED.findall(out)) == 1
    assert "measured ms" in out
    assert len(pd.read_parquet(tmp_path / "found" / "candidate_plans.parquet")) == 2


def _under_torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "neuroshard"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=environment, timeout=PATIENCE_S, check=False
    )


def _command_of(rank, said, command):
    with (said / str(rank)).open("w") as file, redirect_stdout(file):
        cli.main(command)


@pytest.mark.slow
@pytest.mark.xdist_group("measures")
def test_searches_measure_between_processes_that_torchrun_started(command, tmp_path):
    as_if_under_torchrun(2, _command_of, tmp_path, [*command, "candidate_plans=2"])
    assert [len(MEASURED.findall((tmp_path / str(rank)).read_text())) for rank in range(2)] == [1, 0]
    assert len(pd.read_parquet(tmp_path / "found" / "candidate_plans.parquet")) == 2


@pytest.mark.slow
@pytest.mark.xdist_group("measures")
def test_searches_and_evaluations_run_under_torchrun(command, tmp_path):
    for _ in range(2):  # searched, then read
        done = _under_torchrun(*command, "candidate_plans=2")
        assert len(MEASURED.findall(done.stdout)) == 1, done.stderr  # the other process only took part
    assert len(pd.read_parquet(tmp_path / "found" / "candidate_plans.parquet")) == 2
    plan = str(next(Path(tmp_path / "found" / "plans").iterdir()))
    measured = _under_torchrun("evaluate", plan, f"out={tmp_path}/measured", *TIMED)
    assert measured.stdout.count("results:") == 1, measured.stderr
    assert pd.read_parquet(tmp_path / "measured" / "results.parquet").measured_ms.notna().all()


@pytest.mark.xdist_group("measures")
@pytest.mark.parametrize("pipeline", ["sparse_dist", pytest.param("none", marks=pytest.mark.slow)])
def test_candidate_plans_are_verified_by_training_steps(bundle, tmp_path, pipeline):
    """Each pass is a build of all candidate plans, on two real processes."""
    measure = StepMeasurer(StepProtocol(turns=2, steps=2, dense=(), pipeline=pipeline))
    result = _search(bundle, tmp_path / "run", Verify(CPU, candidate_plans=2, passes=2, measure=measure), (TASK,)).run()
    searched = read_searched(tmp_path / "run", 0, TASK)
    assert searched.errors == (None,) * len(searched.candidate_plans)
    assert (searched.costs_ms > 0).all()
    assert searched.costs_ms.shape == (len(searched.candidate_plans), 2)
    assert result.saved.records[0].measured_ms == pytest.approx(searched.verdict.measured_ms[searched.verdict.taken])
