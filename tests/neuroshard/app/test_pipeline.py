"""The stages from Python: the whole pipeline once, and search methods by name, with settings of every kind."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

import neuroshard as ns
from neuroshard import Simulator
from neuroshard.measure.store.samples import CommSample, ComputeSample
from neuroshard.models.trust import Range, Ranges
from neuroshard.plumbing.registry import instantiate_config
from neuroshard.searching.searcher import searcher_of
from neuroshard.stages.augment.collect import Collect
from neuroshard.stages.pretrain.pretrain import Pretrain
from neuroshard.stages.search.runs.evaluate import Evaluate
from neuroshard.testing import linear_models, toy_task
from tests.kit.hydra_configs import compose_config, with_hydra
from tests.kit.messages import check, refused
from tests.kit.plans import whole


def test_search_joins_its_warnings_into_one_that_prints_one_line(capsys):
    """The messages of `Simulator.warnings`, joined; nothing of the caller's source is printed below."""
    task = toy_task(5)
    fitted_to = Range("batch size", 1, 2)
    ranges = Ranges.of([ComputeSample(task.tables, task.batch_size)], [CommSample((1, 1), (0.0, 0.0), task.batch_size)])
    models = replace(linear_models(), ranges=replace(ranges, batch_size=fitted_to))
    with pytest.warns(ns.NeuroShardWarning) as seen:
        ns.search(task, Simulator(models), searcher="dim_greedy")
    (warning,) = seen
    messages = warning.message.messages
    assert {message.code for message in messages} == {"values-outside-training-range"}
    for message, (place, *values) in zip(messages, [("batch size", 256, 1, 2), ("devices", 4, 2, 2)], strict=False):
        check(message, message.code, where=place, names=values)
    assert str(warning.message) == "; ".join(map(str, messages))
    shown = warnings.formatwarning(warning.message, warning.category, warning.filename, warning.lineno)
    assert shown.count("\n") == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ns.NeuroShardWarning)
        ns.search(task, Simulator(models), searcher="dim_greedy")


def test_pipeline_functions_take_a_plan_as_a_setting():
    """Hydra must not make a config of it."""
    task = toy_task(5)
    plan = whole(task, 0)
    searcher = searcher_of("replan", start=plan, max_moved_bytes=0, improvement={"perturbations": 1})
    assert (searcher.start, searcher.max_moved_bytes, searcher.improvement.perturbations) == (plan, 0, 1)
    assert searcher.find(task, Simulator(linear_models())).plan == plan
    with refused("value-outside-limits", names=["max_moved_bytes", -1]):
        searcher_of("replan", start=plan, max_moved_bytes=-1)
    with refused("config-value-missing", names=["start"]):
        searcher_of("replan", max_moved_bytes=0)


def _built_by_command(command, **values):
    HydraConfig.instance().set_config(with_hydra(command, ()))
    config = compose_config(command, [])
    for key, value in values.items():
        OmegaConf.update(config, key, value)
    return instantiate_config(config.run)


def _recorded(monkeypatch, stage):
    """Return the list of runs of a stage that are started from here on; none of them does anything."""
    runs = []

    def record(run):
        runs.append(run)

    monkeypatch.setattr(stage, "run", record)
    monkeypatch.setattr(ns.CostModels, "load", str)
    return runs


@pytest.mark.parametrize(
    ("run", "command", "call", "values"),
    [
        (Collect, "collect", lambda: ns.collect(ns.load_tables("dlrm_like", batch_size=4096), "x"), {"out": "x"}),
        (Pretrain, "pretrain", lambda: ns.pretrain("data", Path("x"), seed=3), {"data": "data", "out": "x", "seed": 3}),
        (
            Evaluate,
            "evaluate",
            lambda: ns.evaluate(["a.json", "b.json"]),
            {"plans": ["a.json", "b.json"], "model": None},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pipeline_functions_run_the_commands_with_equal_defaults(run, command, call, values, monkeypatch):
    """Every default is the same."""
    runs = _recorded(monkeypatch, run)
    call()
    assert runs == [_built_by_command(command, **values)]


def test_pretrain_passes_several_data_directories_to_the_run(monkeypatch):
    runs = _recorded(monkeypatch, Pretrain)
    assert ns.pretrain([Path("a"), "b"], "x", comm_model="paper") == "x"
    assert runs[0].data == ("a", "b")


def test_pipeline_functions_refuse_unknown_names():
    with refused("unknown-name", names=["'gpu'"]):
        ns.collect((), "x", hardware="gpu")
    with refused("unknown-name", names=["'nets'"]):
        ns.pretrain("a", "x", compute_model="nets")
    with refused("unknown-name", names=["'kernel'", "'kernels'"]):
        ns.evaluate("a", measure="kernel")


@pytest.mark.parametrize(
    ("call", "unknown", "named"),
    [
        (lambda: ns.collect(toy_task(2).tables, "out", foo=1), "foo", "num_compute_samples"),
        (lambda: ns.collect(toy_task(2).tables, "out", num_device=[2]), "num_device", "'num_devices'"),
        (lambda: ns.pretrain("data", "out", max_sample=1), "max_sample", "'max_samples'"),
        (lambda: ns.pretrain("data", "out", foo=1), "foo", "allow_regression"),
        (lambda: ns.evaluate("plan.json", max_task=1), "max_task", "'max_tasks'"),
        (lambda: ns.evaluate("plan.json", foo=1), "foo", "count_input"),
        (lambda: ns.search(toy_task(2), Simulator(linear_models()), beam_widt=1), "beam_widt", "'beam_width'"),
    ],
)
def test_pipeline_functions_refuse_unknown_settings_and_name_valid_ones(tmp_path, monkeypatch, call, unknown, named):
    monkeypatch.chdir(tmp_path)
    with refused("unknown-name", names=[repr(unknown), named]):
        call()
    assert not list(tmp_path.iterdir())
