"""Runs of one method are told apart by what differs."""

from pathlib import Path

import pytest

from neuroshard.stages.search.report.gather import named
from neuroshard.stages.search.results.search_results import SearchRun


def _runs(*settings, method="neuroshard", tasks=("t",)):
    return [
        (tasks[number % len(tasks)], SearchRun(Path(str(number)), method, (), "cpu", some))
        for number, some in enumerate(settings)
    ]


def test_a_run_alone_keeps_its_name():
    assert named(_runs({"width": 3}))[Path("0")].method == "neuroshard"
    both = named(_runs({"width": 3}, {"width": 4}, tasks=("one", "other")))
    assert {name.method for name in both.values()} == {"neuroshard"}


def test_runs_that_differ_in_a_number_are_a_sweep():
    found = named(_runs({"grid": {"points": 3}, "width": 1}, {"grid": {"points": 11}, "width": 1}))
    assert [name.method for name in found.values()] == ["neuroshard (grid.points=3)", "neuroshard (grid.points=11)"]
    assert {name.setting for name in found.values()} == {"grid.points of neuroshard"}
    assert [name.value for name in found.values()] == [3.0, 11.0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"seed": 1}, {"seed": 2}),
        ({"kind": "a"}, {"kind": "b"}),
        ({"on": True}, {"on": False}),
        ({"n": 1}, {"n": None}),
        ({"n": 1}, {}),
        ({"n": 1, "m": 1}, {"n": 2, "m": 2}),
        ({"n": [1]}, {"n": [2]}),
        ({"n": 1}, {"n": 10**400}),
        ({"n": 1}, {"n": float("inf")}),
        ({"n": 1}, {"n": float("nan")}),
    ],
)
def test_other_differences_are_named_but_no_sweep(one, other):
    found = named(_runs(one, other))
    assert len({name.method for name in found.values()}) == 2
    assert {name.setting for name in found.values()} == {None}
    key = next(iter(one))
    assert f"({key}={one[key]}" in found[Path("0")].method


def test_paths_tell_apart_what_settings_do_not():
    assert [name.method for name in named(_runs({}, {})).values()] == ["neuroshard (0)", "neuroshard (1)"]


@pytest.mark.parametrize(
    ("method", "setting", "value"),
    [("width=1", "width", 1.0), ("a.b_c=-2.5e3", "a.b_c", -2500.0), ("samples=.5", "samples", 0.5)],
)
def test_methods_named_after_a_number_are_a_sweep(method, setting, value):
    (name,) = named(_runs({}, method=method)).values()
    assert (name.method, name.setting, name.value) == (method, setting, value)


@pytest.mark.parametrize(
    "method", ["a=b", "a=1.2.3", "a=", "=1", "a=1e", "a=1e9999", "a=1e999", "a=1 b", "a=nan", "a=inf"]
)
def test_other_methods_are_methods(method):
    (name,) = named(_runs({}, method=method)).values()
    assert (name.method, name.setting, name.value) == (method, None, None)


def test_deep_settings_are_no_trouble():
    deep: dict = {"x": 1}
    for _ in range(500):
        deep = {"a": deep}
    assert len(named(_runs(deep, {"a": 1}))) == 2
