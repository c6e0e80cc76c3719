"""Objects are built from the configs in `conf/`, and settings that a class does not have are refused."""

import subprocess
import sys

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from neuroshard.plumbing.configs import FOLDER
from neuroshard.plumbing.registry import build, composed, described, instantiate_config
from neuroshard.stages.search.methods.heuristics import Random
from tests.kit.messages import refused


def test_given_settings_override_the_config():
    assert build("searcher", "random", seed=3) == Random(seed=3)
    assert build("searcher", "neuroshard", improvement={"perturbations": 1}).improvement.perturbations == 1


def test_described_choice_is_a_copy_that_may_be_changed():
    described("searcher", "random")["seed"] = 9
    assert described("searcher", "random")["seed"] == 0


def test_build_refuses_unknown_searchers_and_settings():
    with refused("unknown-name", names=["neuroshard"]):
        build("searcher", "neurosard")
    with refused("unknown-name", names=["beam_width"]):
        build("searcher", "neuroshard", beam_with=1)


def test_build_inside_a_users_hydra_application_keeps_its_config():
    with initialize_config_dir(version_base="1.3", config_dir=str(FOLDER)):
        build("searcher", "size_lookup_greedy")
        assert compose("search").batch_size == 4096


def test_value_for_a_group_of_settings_is_refused_by_the_name_used_on_the_command_line():
    config = composed("search", ["topology=8"])
    with refused("setting-is-group", names=["topology is 8", "topology.NAME"]):
        instantiate_config(config.run.tasks)


@pytest.mark.parametrize("target", ["nowhere.Class", "json.no_such_name", "neuro"])
def test_building_a_missing_target_is_refused(target):
    with refused("target-not-found", names=[target]):
        instantiate_config(OmegaConf.create({"_target_": target}))


def test_hydra_is_not_imported_with_the_package():
    code = "import sys, neuroshard; print('hydra' in sys.modules, 'omegaconf' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "False False\n"


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
def test_unknown_settings_are_refused_at_any_depth(wrap, code, names, wrong):
    with refused(code, names=names):
        instantiate_config(OmegaConf.create(wrap(wrong)))


@pytest.mark.parametrize(
    ("code", "names", "value"),
    [
        ("setting-is-group", ["improvement", 3], 3),
        ("setting-is-group", ["improvement", "'x'"], "x"),
        ("setting-is-group", ["improvement", "[1]"], [1]),
        ("unknown-name", ["'improvement.bogus'"], {"bogus": 1}),
    ],
)
def test_wrong_values_for_a_group_of_settings_are_refused_in_calls(code, names, value):
    with refused(code, names=names):
        build("searcher", "neuroshard", improvement=value)
