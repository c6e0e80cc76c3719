"""Small evaluations of plans, on real hardware too, and plans that cannot run."""

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from neuroshard import CostModels, Plan, Prediction, Simulator, Task, Topology
from neuroshard.measure.steps.step_samples import LOOKUPS_ALONE, PHASES, STEP, StepProtocol
from neuroshard.measure.store.plan_measurements import COST, PlanMeasurement
from neuroshard.models import Card, save_bundle
from neuroshard.models.predicted_for import PredictedFor
from neuroshard.models.trust import DATASHEET
from neuroshard.plumbing.files import exclusive
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.output import as_json
from neuroshard.stages.search.evaluate.comparison import _BUSY as BUSY
from neuroshard.stages.search.evaluate.comparison import Evaluated, comparison, provenance_lines, trust_lines
from neuroshard.stages.search.evaluate.kernel_measurer import KernelMeasurer
from neuroshard.stages.search.evaluate.mirrored_measurer import MirroredMeasurer
from neuroshard.stages.search.evaluate.step_measurer import StepMeasurer
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.stages.search.runs.evaluate import Evaluate
from neuroshard.stages.search.runs.search import Search
from neuroshard.testing import random_models, toy_task
from neuroshard.words.model_choice import ModelChoice
from tests.kit.commands import shown
from tests.kit.costs import cost_of
from tests.kit.devices.made_up import MadeUpHardware
from tests.kit.measuring import CPU
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, whole
from tests.kit.searches import H100

EPYC = CostModels.load("cpu").hardware
H100_GPU = CostModels.load("h100").hardware


@pytest.fixture
def bundle(tmp_path):
    save_bundle(tmp_path / "models", random_models(2), Card())
    return tmp_path / "models"


def _tasks():
    easy = [toy_task(5, num_devices=2, seed=seed) for seed in range(2)]
    impossible = Task(easy[0].tables, Topology(2, easy[0].size_bytes // 3), 256)
    return (*easy, impossible)


def _search(bundle, method, out):
    return Search(str(bundle), _tasks(), Greedy(method), method, str(out)).run()


def _evaluate(plans, out, model=None, hardware=CPU, **settings):
    paths = [*map(str, plans)] if isinstance(plans, list) else str(plans)
    return Evaluate(paths, model, hardware, None, 0, str(out), **settings)


def test_saved_search_run_is_loaded_back_unchanged(bundle, tmp_path):
    result = _search(bundle, "dim", tmp_path / "dim")
    loaded = SearchRun.load(tmp_path / "dim")
    assert [r.task for r in loaded.records] == [0, 1, 2]
    assert loaded.records[:2] == result.saved.records[:2]
    assert loaded.records[2].plan is None
    assert loaded.records[2].predicted_ms is None
    assert "topology.memory_bytes" in loaded.records[2].error
    assert list(loaded.plans()) == [0, 1]
    assert "solved 2 of 3 tasks" in shown(result)


def test_evaluation_reports_measured_and_predicted_costs_of_each_plan(bundle, tmp_path):
    for method in ("dim", "size"):
        _search(bundle, method, tmp_path / method)
    result = _evaluate([tmp_path / "dim", tmp_path / "size"], tmp_path / "out").run()
    assert [entry.error is None for entry in result.entries] == [True, True, False] * 2
    for entry in result.entries:
        if entry.measured is not None:
            assert entry.measured.compute.shape == (2,)
            assert entry.measured_ms > max(entry.measured.compute)
            assert entry.predicted_ms >= 0
    text = shown(result)
    assert text.count("2/3") == 2
    frame = pd.read_parquet(tmp_path / "out" / "results.parquet")
    assert frame.measured_ms.notna().sum() == 4
    assert len(pd.read_parquet(tmp_path / "out" / "devices.parquet")) == 8
    rows = json.loads(as_json(result.facts))["tables"]["results"]
    assert [row["measured_ms"] is None for row in rows] == [False, False, True] * 2
    assert (tmp_path / "out" / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_models_of_other_versions_are_warned_of_once(tmp_path):
    save_bundle(tmp_path / "models", random_models(2), Card(versions={"torch": "0.9.0"}))
    searched = _search(tmp_path / "models", "dim", tmp_path / "dim")
    assert shown(searched).count("torch 0.9.0") == 1
    assert "warning:" not in shown(searched)
    plan = tmp_path / "dim" / "plans" / "task-0000.json"
    measured = _evaluate(plan, tmp_path / "out", str(tmp_path / "models"), MadeUpHardware()).run()
    assert shown(measured).count("torch 0.9.0") == 1


def test_evaluating_one_plan_shows_the_costs_of_each_device(bundle, tmp_path):
    task = toy_task(3, num_devices=2)  # with so many lookups that devices wait long beside what a busy machine delays
    task = replace(task, tables=tuple(replace(table, pooling_factor=500.0) for table in task.tables))
    whole(task, 0).save(tmp_path / "unbalanced.json")
    result = _evaluate(tmp_path / "unbalanced.json", tmp_path / "out", str(bundle)).run()
    cost = result.entries[0].measured
    assert cost.compute[1] == 0  # an empty device
    assert cost.forward[1] >= cost.compute[0] * 0.8  # waits for the full one
    assert "unbalanced" in shown(result)
    assert np.isfinite(result.entries[0].predicted_ms)


def test_plans_that_do_not_fit_are_counted_not_run(tmp_path):
    task = toy_task(4, num_devices=2)
    tight = Task(task.tables, Topology(2, task.size_bytes // 2 + 1), 256)
    whole(tight, 0).save(tmp_path / "heavy.json")
    whole(task).save(tmp_path / "fine.json")
    plans = [tmp_path / "heavy.json", tmp_path / "fine.json"]
    result = _evaluate(plans, tmp_path / "out").run()
    assert "device 0" in result.entries[0].error
    assert result.entries[1].measured is not None
    assert "0/1" in shown(result)
    with refused("evaluate-nothing-to-run", names=["1 given plan", "device 0"]):
        _evaluate(plans[0], tmp_path / "other").run()
    assert not (tmp_path / "other").exists()


def test_plans_of_all_sharding_types_are_measured(tmp_path):
    tables = toy_task(4, num_devices=2).tables
    task = Task(tables, Topology(4, 1 << 30, devices_per_host=2), 256)
    laid_out(task, range(4), [2, 3], 0, DATA_PARALLEL).save(tmp_path / "mixed.json")
    result = _evaluate(tmp_path / "mixed.json", tmp_path / "out", count_input=True).run()
    (entry,) = result.entries
    assert entry.error is None
    assert entry.measured_ms == max(entry.measured.device_ms) > max(entry.measured.compute + entry.measured.forward)
    assert "input ms" in shown(result)
    assert min(entry.measured.ms(part).min() for part in ("input", "compute", "forward", "backward")) > 0


def _entry(method, task, measured):
    cost = None if measured is None else cost_of(np.array([measured]), np.zeros(1), np.zeros(1))
    return Evaluated(method, task, None, None, 0.1, None if cost else "no plan", cost)


@pytest.mark.parametrize(
    ("entries", "success", "left_out"),
    [
        ([("a", 0, 10.0), ("a", 1, 99.0), ("b", 0, 20.0), ("b", 1, None)], "1/2", []),
        ([("a", 0, 10.0), ("b", 0, 20.0), ("c", 0, None)], "0/1", ["c"]),
    ],
)
def test_comparison_uses_tasks_solved_by_every_method_that_solved_any(entries, success, left_out):
    """The caption has the number of these tasks, and the methods without a solved task."""
    grid = comparison([_entry(*one) for one in entries])
    console = Console(record=True, width=120)
    console.print(grid)
    text = console.export_text()
    assert all(one in text for one in ("10.00", success))
    assert "99" not in text
    caption = grid.caption.plain.split()
    assert "1" in caption
    assert [name for name in "abc" if name in caption] == left_out


def test_predicted_costs_without_measurements_carry_a_caveat():
    plan = Greedy("dim").find(toy_task(3), simulator := H100).plan
    entries = [replace(_entry("a", 0, 10.0), plan=simulator.predicted(plan)), _entry("b", 0, 10.0)]
    caveat, scope = trust_lines(entries, H100_GPU)
    assert DATASHEET in entries[0].caveat
    assert entries[0].caveat in caveat
    assert entries[0].prediction.scope in scope
    assert all("a" in line.split() and "b" not in line.split() for line in (caveat, scope))


def test_evaluating_a_missing_plan_is_refused(tmp_path):
    with refused("file-missing", names=[tmp_path / "none.json"]):
        _evaluate(tmp_path / "none.json", tmp_path / "out").run()
    with refused("file-missing", names=[tmp_path / "run.json"]):
        _evaluate(tmp_path, tmp_path / "out").run()


def _measured_by(monkeypatch, measure):
    monkeypatch.setattr("neuroshard.stages.search.evaluate.kernel_measurer.measure_plans", measure)


@pytest.fixture
def fixed(monkeypatch):
    """Replace measuring by equal costs of every plan."""
    its = cost_of(np.full(2, 4.0), np.ones(2), np.ones(2))
    _measured_by(monkeypatch, lambda _meters, plans, *_rest: [its] * len(plans))


@pytest.fixture
def unbalanced(fixed, tmp_path):
    path = tmp_path / "unbalanced.json"
    replace(whole(toy_task(3, num_devices=2), 0), prediction=Prediction(ModelChoice("cpu"), 5.5, 0.25)).save(path)
    return path


def test_evaluation_shows_the_prediction_in_the_plan_file(unbalanced, tmp_path):
    result = _evaluate(unbalanced, tmp_path / "out").run()
    assert (result.entries[0].predicted_ms, result.entries[0].margin_ms) == (5.5, 0.25)


def test_evaluating_into_the_directory_of_another_evaluation_is_refused(unbalanced, tmp_path):
    evaluate = _evaluate(unbalanced, tmp_path / "out")
    with exclusive(tmp_path / "out"), refused("out-in-use", names=[tmp_path / "out"]):
        evaluate.run()
    evaluate.run()
    kept = (tmp_path / "out" / "results.parquet").read_bytes()
    with refused("out-begun-otherwise", names=["seed=0", 1]):
        replace(evaluate, seed=1).run()
    other = replace(CPU, embedding=replace(CPU.embedding, optimizer="rowwise_adagrad"))
    with refused("out-begun-otherwise", names=["hardware.embedding.optimizer='sgd'", "'rowwise_adagrad'"]):
        replace(evaluate, hardware=other).run()
    whole(Plan.load(unbalanced).task, 1).save(unbalanced)
    with refused("out-begun-otherwise", names=["digest of plans="]):
        evaluate.run()
    assert (tmp_path / "out" / "results.parquet").read_bytes() == kept


def test_interrupted_evaluation_resumes_at_the_first_unmeasured_task(bundle, tmp_path, monkeypatch):
    _search(bundle, "dim", tmp_path / "dim")
    asked, stops, cost = [], [False, True, False], cost_of(np.full(2, 4.0), np.ones(2), np.arange(2.0))

    def stopped(_meters, plans, *_rest):
        if stops.pop(0):
            raise KeyboardInterrupt
        asked.append(plans[0].task)
        return [cost] * len(plans)

    _measured_by(monkeypatch, stopped)
    evaluate = _evaluate(tmp_path / "dim", tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        evaluate.run()
    found = evaluate.run()
    assert asked == [*_tasks()[:2]]
    again = evaluate.run()  # finished: nothing is left to measure
    path = tmp_path / "out" / "measurements" / "task-0001" / "pass-0000.parquet"
    sound = pd.read_parquet(path, dtype_backend="numpy_nullable")
    for damaged in (sound.replace({"phase": {"compute": "computed"}}), sound[sound.device != 0]):
        damaged.to_parquet(path)
        with refused("stored-part-wrong") as caught:
            evaluate.run()
        assert str(path) in caught.value.message.remedy
    sound.to_parquet(path)
    for result in (found, again):
        assert [entry.measured_ms for entry in result.entries[:2]] == [6.0, 6.0]
        assert str(result.entries[0].measured) == str(cost)


def test_measurements_are_saved_before_pictures_are_drawn(unbalanced, tmp_path, monkeypatch):
    def broken(*_arguments):
        raise RuntimeError("no picture")

    monkeypatch.setattr("neuroshard.stages.search.evaluate.kernel_measurer.plan_png", broken)
    with pytest.raises(RuntimeError):
        _evaluate(unbalanced, tmp_path / "out").run()
    assert pd.read_parquet(tmp_path / "out" / "results.parquet").measured_ms[0] == 6.0
    assert (tmp_path / "out" / "run.json").exists()


def _trusted(predicted, measured, margin, models=None, method="m"):
    cost = cost_of(np.array([measured]), np.zeros(1), np.zeros(1))
    models = ModelChoice(models) if isinstance(models, str) else models
    plan = Greedy("dim").find(toy_task(3), Simulator(random_models())).plan
    return Evaluated(method, 0, None, replace(plan, prediction=Prediction(models, predicted, margin)), 0.0, None, cost)


def test_coverage_of_margins_is_reported_with_its_count():
    inside = [_trusted(10.0, 10.5, 1.0)] * 9 + [_trusted(10.0, 12.0, 1.0)]
    (line,) = trust_lines(inside, EPYC)
    assert re.findall(r"\d+%?", line) == ["9", "10", "90%", "9"]  # inside, all, level, expected inside
    first, second = trust_lines([_trusted(10.0, 20.0, 1.0)] * 4, EPYC)
    assert first.startswith("0 of 4")
    assert "2.00 times" in second
    assert "experiment=pretrain_adapt" in second
    assert list(trust_lines([_trusted(10.0, 20.0, None)], EPYC)) == []


def _of_scope(scope, predicted):
    entry = _trusted(predicted, 10.0, 1.0, "cpu")
    return replace(entry, plan=replace(entry.plan, prediction=replace(entry.prediction, scope=scope)))


@pytest.mark.parametrize("scope", ["kernels and exchanges, framework overhead", "input dist, kernels and exchanges"])
def test_predicted_costs_that_count_more_than_measured_ones_are_not_compared(scope):
    alike = [_of_scope("kernels and exchanges", 10.5)] * 2
    lines = list(trust_lines([*alike, *[_of_scope(scope, 20.0)] * 8], EPYC))
    assert any(line.startswith("2 of 2") for line in lines)
    assert not any(BUSY in line for line in lines)
    assert sum(OTHER_SCOPE in line for line in lines) == 1
    assert not any(OTHER_SCOPE in line for line in trust_lines(alike, EPYC))


OTHER_SCOPE, OTHER_HARDWARE = "predicted-scope-differs", "predicted-for-other-hardware"


class _Coded(Message):
    """A message that is shown with its code."""

    def __str__(self):
        return f"[{self.code}] {super().__str__()}"


@pytest.fixture(autouse=True)
def _codes_in_lines(monkeypatch):
    monkeypatch.setattr("neuroshard.stages.search.evaluate.comparison.Message", _Coded)


IN_STEPS = ModelChoice("h100", framework="torchrec")
OTHER_CPU = replace(EPYC, device="Intel Xeon", revision="6/143/8")


@pytest.mark.parametrize(
    ("models", "here", "named"),
    [
        ("h100", EPYC, ["NVIDIA H100 80GB HBM3", "'h100'", "a CPU: AMD EPYC"]),
        (IN_STEPS, EPYC, ["NVIDIA H100 80GB HBM3", "'h100, framework=torchrec'", "a CPU: AMD EPYC"]),
        ("roofline:h100", EPYC, ["a GPU: H100 (datasheet)", "'roofline:h100'", "a CPU: AMD EPYC"]),
        (replace(IN_STEPS, name="roofline:b200"), EPYC, ["a GPU: B200 (datasheet)", "a CPU: AMD EPYC"]),
        ("roofline:h100_meta", replace(H100_GPU, device="NVIDIA GH200 480GB"), ["H100 (datasheet)", "NVIDIA GH200"]),
        ("roofline:h200", H100_GPU, ["H200 (datasheet)", "a GPU: NVIDIA H100 80GB HBM3"]),
        ("cpu", H100_GPU, ["a CPU: AMD EPYC", "'cpu'", "a GPU: NVIDIA H100 80GB HBM3"]),
        ("cpu", OTHER_CPU, ["a CPU: AMD EPYC", "'cpu'", "a CPU: Intel Xeon"]),
    ],
)
def test_costs_predicted_for_other_hardware_name_both(models, here, named):
    lines = list(trust_lines([_trusted(10.0, 20.0, 1.0, models)] * 4, here))
    (told,) = (line for line in lines if OTHER_HARDWARE in line)
    assert all(one in told for one in named)
    assert BUSY not in " ".join(lines)
    choice = ModelChoice(models) if isinstance(models, str) else models
    of_one_kind = PredictedFor.of(choice).kind == here.kind
    assert any(line.startswith("0 of 4") for line in lines) is of_one_kind


@pytest.mark.parametrize(
    ("models", "here"),
    [("h100", H100_GPU), ("roofline:h100", H100_GPU), ("roofline:h100_pcie", H100_GPU), ("cpu", EPYC), (None, EPYC)],
)
def test_trust_lines_blame_a_busy_machine_for_errors_on_this_hardware(models, here):
    lines = list(trust_lines([_trusted(10.0, 20.0, 1.0, models)] * 4, here))
    assert not any(OTHER_HARDWARE in line for line in lines)
    assert BUSY in lines[-1]


def test_predictions_of_missing_models_are_for_unknown_hardware(tmp_path):
    assert PredictedFor.of(ModelChoice(str(tmp_path / "gone"))) is None


def test_predictions_by_different_models_are_warned_of():
    choices = ModelChoice("cpu"), ModelChoice("cpu", framework="torchrec")
    ours, theirs = (_trusted(10.0, 10.0, 1.0, *its) for its in zip(choices, "ab", strict=True))
    assert list(provenance_lines([ours, ours], EPYC)) == []
    (told,) = provenance_lines([ours, theirs], EPYC)
    assert "predicted-by-several-models" in told
    assert "('cpu': a, 'cpu, framework=torchrec': b)" in told


def test_costs_predicted_for_this_hardware_are_judged_without_those_for_another():
    here, gpu = (_trusted(10.0, 20.0, 1.0, name, name) for name in ("cpu", "h100"))
    lines = list(trust_lines([here, gpu, here], EPYC))
    assert sum(OTHER_HARDWARE in line for line in lines) == 1
    assert any(line.startswith("0 of 2") for line in lines)
    assert BUSY in lines[-1]


def _of_every_plan(rows, plans, number, *_rest):
    return tuple(replace(row, plan=plan, pass_number=number) for plan in range(len(plans)) for row in rows)


@pytest.mark.parametrize("measure", ["kernels", "steps", "mirrored"])
def test_evaluation_names_other_hardware_with_every_measure_setting(measure, unbalanced, tmp_path, monkeypatch):
    plan = Plan.load(unbalanced)
    replace(plan, prediction=Prediction(ModelChoice("roofline:h100"), 5.5)).save(unbalanced)
    few = StepProtocol(builds=1, turns=1, steps=1)
    step = [PlanMeasurement(0, 0, phase=phase, ms=3.0) for phase in (COST, STEP, LOOKUPS_ALONE, *PHASES)]
    rank = [PlanMeasurement(0, 0, 0, "lookups", 3.0, None, "all_to_all"), step[0]]
    for name, rows in ((StepMeasurer, step), (MirroredMeasurer, rank)):
        measured = partial(_of_every_plan, rows)
        monkeypatch.setattr(name, "opened", lambda *_, measured=measured: nullcontext(measured))
    ways = {"kernels": KernelMeasurer(), "steps": StepMeasurer(few), "mirrored": MirroredMeasurer(few)}
    result = _evaluate(unbalanced, tmp_path / "out", measure=ways[measure]).run()
    (line,) = (line for line in shown(result, 1000).splitlines() if OTHER_HARDWARE in line)
    assert all(one in line for one in ("a GPU: H100 (datasheet)", "a CPU"))


def test_runs_of_one_method_have_distinct_names(bundle, tmp_path, fixed):
    runs = [tmp_path / "one", tmp_path / "other"]
    for out in runs:
        _search(bundle, "dim", out)
    methods = {entry.method for entry in _evaluate(runs, tmp_path / "out").run().entries}
    assert methods == {f"dim ({out})" for out in runs}


def test_evaluating_plans_of_unlike_tasks_is_refused(tmp_path):
    task, paths = toy_task(3, num_devices=2), [tmp_path / "one.json", tmp_path / "other.json"]
    whole(task).save(paths[0])
    for other, what in ((replace(task, batch_size=512), "batch size"), (toy_task(4, num_devices=2), "tables")):
        whole(other).save(paths[1])
        with refused("evaluate-tasks-differ", names=[*paths, what]):
            _evaluate(paths, tmp_path / "out").run()
    with refused("evaluate-plan-twice", names=paths[:1]):
        _evaluate(paths[:1] * 2, tmp_path / "out").run()
    same = [paths[0], tmp_path / ".." / tmp_path.name / "one.json"]
    with refused("evaluate-plan-twice", names=same):
        _evaluate(same, tmp_path / "out").run()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("predicted", "measured"), [(True, False), (False, True)])
def test_evaluating_a_plan_with_another_count_input_setting_is_refused(tmp_path, predicted, measured):
    plan = replace(
        whole(toy_task(3, num_devices=2)), prediction=Prediction(ModelChoice("cpu"), 5.5, counts_input=predicted)
    )
    plan.save(tmp_path / "plan.json")
    with refused("count-input-differs", where=str(tmp_path / "plan.json")) as caught:
        _evaluate(tmp_path / "plan.json", tmp_path / "out", count_input=measured).run()
    assert "count_input=true" in caught.value.message.remedy
