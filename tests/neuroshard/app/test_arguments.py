"""What people write behind a command becomes what Hydra reads, or one clear line."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from neuroshard.app.arguments import as_overrides, quoted, split_flags, with_reader
from tests.kit.messages import refused


def _pairs(command, *texts):
    return [(override.key, override.values[0]) for override in as_overrides(command, texts)]


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
def test_values_are_taken_as_they_are_written(text, value):
    assert _pairs("search", text) == [("out", value)]


@example("???")
@example("back\\${method}")
@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20))
def test_any_path_survives_quoting(path):
    (override,) = as_overrides("explain", [f"out={quoted(path)}"])
    config = OmegaConf.create({"out": override.values[0]})
    expected = path[1:-1] if len(path) > 1 and path[0] == path[-1] == "'" else path
    if expected == "???":  # what has no value, in every config; such a file is ./???
        assert OmegaConf.is_missing(config, "out")
    else:
        assert config.out == expected


def test_files_stand_for_the_choice_that_reads_them():
    assert _pairs("search", "tables=my tables.csv") == [("tables", "user_file"), ("tables.path", "my tables.csv")]
    assert _pairs("search", "tables=set.pt.gz") == [("tables", "dlrm"), ("tables.path", "set.pt.gz")]
    assert _pairs("search", "tasks=t.json", "constraints=c.yaml") == [
        ("tasks", "file"), ("tasks.path", "t.json"), ("constraints", "file"), ("constraints.path", "c.yaml"),
    ]  # fmt: skip
    assert _pairs("search", "tables=criteo") == [("tables", "criteo")]


def test_several_files_are_swept_if_one_choice_reads_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    swept = as_overrides("search", ["tables=a.csv,b.csv"])
    assert [(one.key, one.values, one.swept) for one in swept] == [
        ("tables", ("user_file",), False),
        ("tables.path", ("a.csv", "b.csv"), True),
    ]
    for text in ("tables=criteo,a.csv", "tables=a.csv,b.pt"):
        with refused("files-of-several-types", names=[text, "tables.path="]):
            as_overrides("search", [text])
    (tmp_path / "a,b.csv").write_text("name,rows,dim,pooling_factor\n")
    assert _pairs("search", "tables=a,b.csv") == [("tables", "user_file"), ("tables.path", "a,b.csv")]


def test_a_sweep_may_list_more_values_than_a_file_name_holds():
    seeds = f"searcher.seed={','.join(map(str, range(200)))}"
    assert with_reader(seeds) == [seeds]


def test_paths_need_no_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.json").write_text("{}")
    pairs = _pairs("explain", "a=b.json", "p,q.json", "out=x.html", "${oc.env:HOME}")
    assert pairs == [("out", "x.html"), ("plans", ["a=b.json", "p,q.json", "\\${oc.env:HOME}"])]
    assert _pairs("evaluate", "runs/a") == [("plans", ["runs/a"])]
    assert _pairs("export", "to=sok", "a=b.json") == [("to", "sok"), ("plan", "a=b.json")]


@pytest.mark.parametrize(
    ("text", "code", "where", "names"),
    [
        ("alone", "argument-malformed", "", ["'alone'", "key=value"]),
        ("+new=1", "setting-added-or-deleted", "", ["'+new=1'"]),
        ("++new=1", "setting-added-or-deleted", "", ["'++new=1'"]),
        ("~out", "setting-added-or-deleted", "", ["'~out'"]),
        ("run=null", "run-setting", "", ["run"]),
        ("run._target_=os.getcwd", "run-setting", "", ["run._target_"]),
        ("hydra.mode=MULTIRUN", "hydra-setting", "", ["hydra.mode"]),
        ("hydra/job_logging=default", "hydra-setting", "", ["hydra/job_logging"]),
        ("out=${oc.env:HOME}", "setting-resolver", "", ["out='${oc.env:HOME}'"]),
        ("out=${ hydra.x }${python:1}", "setting-resolver", "", ["out='${ hydra.x }${python:1}'"]),
        ("tables._target_=os.getcwd", "setting-builds", "", ["'tables._target_'"]),
        ("hydra.launcher._target_=pandas.read_pickle", "setting-builds", "", ["'hydra.launcher._target_'"]),
        ("constraints.rules=[{_target_: pandas.read_pickle, filepath_or_buffer: x.pkl}]", "setting-builds",
         "constraints.rules", ["'_target_'"]),
        ("topology.memory_bytes={_target_: shutil.copyfile, src: a, dst: b}", "setting-builds",
         "topology.memory_bytes", ["'_target_'"]),
        ("constraints.rules=[],[{_target_: os.getcwd}]", "setting-builds", "constraints.rules", ["'_target_'"]),
        ("constraints.rules=choice([],[{a: {_args_: [1]}}])", "setting-builds", "constraints.rules", ["'_args_'"]),
        ("constraints.rules=shuffle([{_partial_: true}])", "setting-builds", "constraints.rules", ["'_partial_'"]),
        ("constraints.rules=['${oc.${method}:{_target_:os.getcwd}}']", "setting-resolver", "", ["constraints.rules="]),
        ("out=a,'${oc.env:HOME}'", "setting-resolver", "", ["out='${oc.env:HOME}'"]),
        ("hydra.sweeper.params={constraints.rules: '[{_target_: os.getcwd}]'}", "sweep-params-setting", "",
         ["hydra.sweeper.params"]),
        ("hydra.sweeper.params.run=null", "sweep-params-setting", "", ["hydra.sweeper.params.run"]),
        (f"constraints.rules={'[' * 3000}{']' * 3000}", "argument-nested-deeply", None, ["constraints.rules="]),
    ],
)  # fmt: skip
def test_what_a_command_line_may_not_do(text, code, where, names):
    with refused(code, where=where, names=names):
        as_overrides("search", [text])


@pytest.mark.parametrize(
    ("command", "texts", "code", "names", "remedy"),
    [
        ("export", ["a.json", "sok"], "paths-count", [2, "a.json, sok"], "key=value"),
        ("export", ["a.json", "plan=b.json"], "path-given-twice", ["'a.json'", "plan=..."], ""),
        ("explain", ["a.json", "plans=b.json"], "path-given-twice", ["'a.json'", "plans=..."], ""),
        ("search", ["topology.memory_bytes=80", "GB"], "argument-malformed", ["'GB'"], "topology.memory_bytes=80GB"),
        ("search", ["out=my", "runs"], "argument-malformed", ["'runs'"], "'out=my runs'"),
        ("search", ["tables.csv"], "argument-malformed", ["'tables.csv'"], "tables=tables.csv"),
    ],
)
def test_what_was_meant_is_said(command, texts, code, names, remedy):
    with refused(code, names=names) as raised:
        as_overrides(command, texts)
    assert remedy in raised.value.message.remedy


def test_interpolations_of_settings_and_of_hydra_are_kept():
    assert _pairs("search", "out='x/${method}'") == [("out", "x/${method}")]
    assert _pairs("search", "out='x/${hydra:job.num}'") == [("out", "x/${hydra:job.num}")]


def test_flags():
    assert split_flags("search", ["-m", "a=1"]) == (["-m"], ["a=1"])
    for flag in ("--config-name", "-cd", "--multi", "--info"):
        with refused("flag-unknown", names=[repr(flag)]):
            split_flags("search", [flag])
