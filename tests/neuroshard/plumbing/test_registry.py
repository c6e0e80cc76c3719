"""What is built is said in `conf/` alone, whatever settings hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

import neuroshard as ns
from neuroshard.plumbing.registry import build, check_setting, instantiate_config
from tests.kit.messages import refused

BUILDING = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")
EVIL = {"_target_": "builtins.open", "file": "x"}
_PLAIN = st.none() | st.booleans() | st.integers() | st.text("abc_{}: \\", max_size=8)
_VALUES = st.recursive(
    _PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=4), inner, max_size=3)
)


@given(_VALUES)
def test_values_pass(value):
    check_setting("forms", value)


@given(
    _VALUES,
    st.sampled_from(BUILDING),
    st.lists(st.sampled_from([lambda v: [v], lambda v: (1, v), lambda v: {"a": v}]), max_size=8),
)
def test_what_says_what_is_built_is_refused_at_any_depth(value, word, wraps):
    value = {"b": 1, word: value}
    for wrap in wraps:
        value = wrap(value)
    with refused("setting-builds", where="forms", names=[repr(word)]):
        check_setting("forms", value)


@pytest.mark.parametrize("name", ["_target_", "tables._target_", "hydra.launcher._partial_", "a._args_.b"])
def test_keys_that_say_what_is_built_are_refused(name):
    with refused("setting-builds", names=[repr(name)]):
        check_setting(name, 1)


@pytest.mark.parametrize("value", ["runs/_target_/x", "my_target_run", "a{_target_: b}", ["_args_"], {"a_target_": 1}])
def test_texts_and_other_names_are_no_keys(value):
    check_setting("out", value)


@pytest.mark.parametrize(
    "text",
    [
        "${oc.env:HOME}",
        "${oc.create:{_target_:os.getcwd}}",
        "${oc.decode:'{_target_: os.getcwd}'}",
        "${oc.${method}:{_target_:os.getcwd}}",  # the resolver's name is a setting's value
        "${${method}:x}",
        "${hydra:${oc.env:HOME}}",
        "a\\\\${oc.env:HOME}",  # the backslash is escaped, not what follows
        "${method}${python:1}",
        "${",
    ],
)
def test_resolvers_are_refused(text):
    for value in (text, [text], {"a": [1, text]}):
        with refused("setting-resolver", names=["out="]):
            check_setting("out", value)


@pytest.mark.parametrize(
    "text", ["x/${method}", "${hydra:job.num}", "${hydra:runtime.choices.searcher}", "\\${oc.env:HOME}", "$ {a:b}"]
)
def test_settings_may_be_named(text):
    check_setting("out", text)


def test_a_value_in_itself_is_one_line():
    loop: list[object] = []
    loop.append(loop)
    with refused("value-nested-deeply", where="forms"):
        check_setting("forms", loop)


@pytest.mark.parametrize(
    ("code", "where", "named", "settings"),
    [
        ("setting-builds", "", "'_target_'", {"_target_": "os.getcwd"}),
        ("setting-builds", "", "'_partial_'", {"_partial_": True}),
        ("setting-builds", "improvement", "'_target_'", {"improvement": EVIL}),
        ("setting-builds", "improvement", "'_target_'", {"improvement": {"seed": [EVIL]}}),
        ("setting-builds", "improvement", "'_target_'", {"improvement": OmegaConf.create(EVIL)}),
        ("setting-builds", "forms", "'_target_'", {"forms": [OmegaConf.create(EVIL)]}),
        ("setting-resolver", "", "beam_width=", {"beam_width": "${oc.create:{_target_:os.getcwd}}"}),
    ],
)
def test_settings_of_calls_build_nothing(code, where, named, settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(code, where=where, names=[named]):
        build("searcher", "neuroshard", **settings)
    with refused(code, where=where, names=[named]):
        ns.load_tables("criteo", **settings)


GRID = "neuroshard.stages.search.published.grid.GridSettings"
SEARCH = {"_target_": "neuroshard.stages.search.methods.published.BeamSearch"}


@pytest.mark.parametrize("wrap", [lambda it: it, lambda it: {"within": it}, lambda it: {"within": [it]}])
@pytest.mark.parametrize(
    ("code", "names", "wrong"),
    [
        ("unknown-name", ["grid.bogus'"], SEARCH | {"grid": {"_target_": GRID, "bogus": 1}}),
        ("value-outside-limits", ["beam_width", "'x'"], SEARCH | {"beam_width": "x"}),
    ],
)
def test_settings_that_are_not_taken_are_refused_at_any_depth(wrap, code, names, wrong):
    with refused(code, names=names):
        instantiate_config(OmegaConf.create(wrap(wrong)))


@pytest.mark.parametrize(
    ("code", "names", "value"),
    [
        ("setting-group-as-value", ["improvement", 3], 3),
        ("setting-group-as-value", ["improvement", "'x'"], "x"),
        ("setting-group-as-value", ["improvement", "[1]"], [1]),
        ("unknown-name", ["'improvement.bogus'"], {"bogus": 1}),
    ],
)
def test_wrong_values_for_a_group_of_settings_are_refused_in_calls(code, names, value):
    with refused(code, names=names):
        build("searcher", "neuroshard", improvement=value)
