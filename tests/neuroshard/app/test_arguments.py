"""Arguments of commands are translated for Hydra, or refused in one clear line."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from neuroshard.app.arguments import for_hydra, with_reader
from neuroshard.plumbing.configs import quoted
from tests.kit.messages import refused


def _pairs(command, *texts):
    parsed = OverridesParser.create().parse_overrides(for_hydra(command, texts))
    return [(one.key_or_group, one.value()) for one in parsed]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("out=a=b", "a=b"),
        ("out=a b", "a b"),
        ("out=[bold].json", "[bold].json"),
        ("out='kept as is'", "kept as is"),
        ("out=it's", "it's"),
        ("out=back\\", "back\\"),
    ],
)
def test_argument_values_are_passed_on_unchanged(text, value):
    assert _pairs("search", text) == [("out", value)]


@example("???")
@example("back\\${method}")
@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20))
def test_quoted_path_is_read_back_unchanged(path):
    ((_, value),) = _pairs("explain", f"out={quoted(path)}")
    config = OmegaConf.create({"out": value})
    expected = path[1:-1] if len(path) > 1 and path[0] == path[-1] == "'" else path
    if expected == "???":  # what has no value, in every config; such a file is ./???
        assert OmegaConf.is_missing(config, "out")
    else:
        assert config.out == expected


def test_file_as_a_value_selects_the_choice_that_reads_the_file():
    assert _pairs("search", "tables=my tables.csv") == [("tables", "user_file"), ("tables.path", "my tables.csv")]
    assert _pairs("search", "tables=set.pt.gz") == [("tables", "dlrm"), ("tables.path", "set.pt.gz")]
    assert _pairs("search", "tasks=t.json", "constraints=c.yaml") == [
        ("tasks", "file"), ("tasks.path", "t.json"), ("constraints", "file"), ("constraints.path", "c.yaml"),
    ]  # fmt: skip
    assert _pairs("search", "tables=criteo") == [("tables", "criteo")]


@pytest.mark.parametrize(
    ("text", "suffix", "read"),
    [
        ("constraints=../tables.csv", ".csv", ".yaml"),
        ("tables=here.txt", ".txt", ".parquet"),
        ("tables=/tmp/tables", "no suffix", ".csv"),
        ("tasks=./tasks.yaml", ".yaml", ".json"),
        ("tables=criteo,here.txt", ".txt", ".csv"),
    ],
)
def test_file_of_a_type_that_no_choice_reads_is_refused(tmp_path, monkeypatch, text, suffix, read):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.txt").touch()
    with refused("file-type-unread", names=[text, suffix, read]):
        for_hydra("search", [text])


@pytest.mark.parametrize("text", ["tables=mine/criteo", "tables=v1.5", f"tables={'x' * 300}.y", "tables=criteo"])
def test_names_of_configs_are_not_files(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "criteo").touch()
    assert for_hydra("search", [text]) == [text]


def test_several_files_are_a_sweep_if_one_choice_reads_all_of_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert for_hydra("search", ["tables=a.csv,b.csv"]) == ["tables=user_file", "tables.path='a.csv','b.csv'"]
    for text in ("tables=criteo,a.csv", "tables=a.csv,b.pt"):
        with refused("files-of-several-types", names=[text, "tables.path="]):
            for_hydra("search", [text])
    (tmp_path / "a,b.csv").write_text("name,rows,dim,pooling_factor\n")
    assert _pairs("search", "tables=a,b.csv") == [("tables", "user_file"), ("tables.path", "a,b.csv")]


def test_with_reader_accepts_sweeps_longer_than_a_file_name_can_be():
    seeds = f"searcher.seed={','.join(map(str, range(200)))}"
    assert list(with_reader(seeds)) == [seeds]


def test_paths_without_a_key_become_the_plans_of_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.json").write_text("{}")
    pairs = _pairs("explain", "a=b.json", "p,q.json", "out=x.html", "${oc.env:HOME}")
    assert pairs == [("out", "x.html"), ("plans", ["a=b.json", "p,q.json", "\\${oc.env:HOME}"])]
    assert _pairs("evaluate", "runs/a") == [("plans", ["runs/a"])]
    assert _pairs("export", "to=sok", "a=b.json") == [("to", "sok"), ("plan", "a=b.json")]


@pytest.mark.parametrize(
    ("command", "texts", "code", "names", "remedy"),
    [
        ("search", ["alone"], "argument-malformed", ["'alone'"], "key=value"),
        ("search", ["tables.csv"], "argument-malformed", ["'tables.csv'"], "tables=tables.csv"),
        ("search", ["topology.memory_bytes=80", "GB"], "argument-malformed", ["'GB'"], "topology.memory_bytes=80GB"),
        ("search", ["out=my", "runs"], "argument-malformed", ["'runs'"], "'out=my runs'"),
        ("search", [f"rules={'[' * 3000}{']' * 3000}"], "argument-nested-deeply", ["rules="], ""),
        ("export", ["a.json", "sok"], "paths-count", [2, "a.json, sok"], "key=value"),
        ("export", ["a.json", "plan=b.json"], "path-given-twice", ["'a.json'", "plan=..."], ""),
        ("explain", ["a.json", "plans=b.json"], "path-given-twice", ["'a.json'", "plans=..."], ""),
        ("search", ["--multi"], "unknown-name", ["'--multi'", "'--multirun'"], ""),
        ("search", ["--searcher=random"], "flag-unknown", ["'--searcher'"], "searcher=random"),
    ],
)
def test_malformed_arguments_are_refused_with_a_remedy(command, texts, code, names, remedy):
    with refused(code, names=names) as raised:
        for_hydra(command, texts)
    assert remedy in raised.value.message.remedy


def test_hydra_arguments_are_passed_to_hydra():
    given = ["a=1", "--config-dir", "mine", "-m", "+b=2", "~c", "hydra.searchpath=[pkg://mine]", "--cfg", "job"]
    handed = ["--config-dir", "mine", "-m", "--cfg", "job", "a=1", "+b=2", "~c", "hydra.searchpath=[pkg://mine]"]
    assert for_hydra("search", given) == handed
    assert for_hydra("explain", ["--cfg", "job", "a.json"]) == ["--cfg", "job", "plans=['a.json']"]
    assert for_hydra("search", ["out='x/${method}'"]) == ["out='x/${method}'"]
