"""Settings for people, read from conf/."""

import pytest

from neuroshard.app.settings import Setting, command_help, settings_of
from neuroshard.plumbing.configs import Composed, comments, headline, missing


def test_comments_are_found_by_key():
    said = comments("train-policy.yaml")
    assert said["batch_size"].startswith("samples in a step")
    assert said["topology.num_devices"].startswith("devices to place")
    assert "topology" not in said


def test_headlines_skip_what_is_hydras():
    assert headline("experiment/search_beam.yaml").startswith("Sensitivity")
    assert headline("tables/criteo.yaml").startswith("The 26 tables")


def test_settings_of_what_is_built_on_others_are_said_too():
    given = {"searcher": "without_grid"}
    found = settings_of(Composed.of("search", given))
    said = {setting.key: setting.what for setting in found}
    composed = Composed.of("search", {"searcher": "neuroshard_published"})
    published = {setting.key: setting.what for setting in settings_of(composed)}
    assert said["searcher.beam_width"] == published["searcher.beam_width"] != ""
    assert not any(key.startswith("run.") or "_target_" in key for key in said)
    assert "tasks.tables" not in said  # which only hands the tables on


def test_missing_settings_are_found_without_what_points_at_them():
    assert missing(Composed.of("explain", {}).settings) == ["plans"]
    assert missing(Composed.of("search", {"tables": "user_file"}).settings) == ["tables.path"]
    assert missing(Composed.of("search", {}).settings) == []


def test_help_fits_its_width_and_names_everything():
    text = command_help("search", "find", [], width=90)
    assert max(map(len, text.splitlines())) <= 90
    for part in ("topology.memory_bytes=8GiB", "searcher=neuroshard", "or autoshard", "search_main", "batch_size=4096"):
        assert part in text
    assert "pretrain_adapt" not in text


@pytest.mark.parametrize(
    ("value", "what", "values"),
    [
        ("sgd", "sgd | adam: what keeps state", ["sgd", "adam"]),
        ("???", "sok | json", ["sok", "json"]),
        ("4", "4 | 2: fp32 or fp16", ["4", "2"]),
        ("true", "whether tables are pooled", ["true", "false"]),
        ("null", "anything, or null", []),
        ("8GiB", "of each device; or a list, one for each", []),
    ],
)
def test_what_a_setting_may_be_is_read_from_its_line(value, what, values):
    assert Setting("key", value, what).values == values
