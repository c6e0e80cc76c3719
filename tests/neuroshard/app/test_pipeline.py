"""Search methods by name, with settings of every kind."""

import warnings
from dataclasses import replace

import pytest

import neuroshard as ns
from neuroshard import Simulator
from neuroshard.models.trust import Range, Ranges
from neuroshard.records.samples import CommSample, ComputeSample
from neuroshard.searching.searcher import searcher_of
from neuroshard.testing import linear_models, toy_task
from tests.kit.messages import check, refused
from tests.kit.plans import whole


def test_what_is_doubtful_is_one_line_of_one_category(capsys):
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


def test_a_plan_is_a_setting_like_any_other():
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
