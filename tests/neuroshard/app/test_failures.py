"""A UserError is a mistake of the user. Any other error, wherever raised, is a defect with a traceback in a file."""

import asyncio
import os
import sys
import tempfile
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from neuroshard.app import cli
from neuroshard.app.failures import DEFECT, EXIT_BUG, EXIT_USER_ERROR
from neuroshard.models.roofline import RooflineCompute
from neuroshard.plumbing.errors import InfeasibleError, UserError, raised_by, user_error_in
from neuroshard.stages.search import methods
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.runs.search import Search
from tests.kit.commands import run_command
from tests.kit.messages import check, refused_command, reported

SEARCH = ("search", "tables=tables.csv", "model=roofline:h100", "searcher=size_greedy")
SWEEP = ("search", "-m", "tables=tables.csv", "model=roofline:h100", "searcher=random,size_greedy,dim_greedy")
METHODS = methods.__name__


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """The directory of tracebacks; the working directory has a file of three tables."""
    for name in ("work", "logs"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("tables.csv").write_text("name,rows,dim,pooling_factor\na,100,16,2\nb,50,8,1\nc,70,32,3\n")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "logs"))
    return tmp_path / "logs"


def _type_error():
    len(5)


def _attribute_error():
    None.tables  # noqa: B018


def _value_error():
    int("many")


def _key_error():
    {}["missing"]


def _import_error():
    import neuroshard.no_such_module  # noqa: F401


def _zero_division():
    1 / 0  # noqa: B018


def _system_exit():
    sys.exit(0)


def _cancelled():
    raise asyncio.CancelledError


def _broken_pipe():
    """Write to a pipe that nobody reads, as to a worker process that has died."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        os.write(writing, b"x")
    finally:
        os.close(writing)


def _omegaconf_error():
    _ = OmegaConf.create({"a": "${no_such_setting}"}).a


def _runtime_error():
    raise RuntimeError("stopped in the middle")


DEFECTS = [
    _type_error, _attribute_error, _value_error, _key_error, _import_error, _zero_division, _system_exit,
    _runtime_error, _cancelled, _broken_pipe, _omegaconf_error,
]  # fmt: skip
KINDS = [_type_error, _system_exit, _cancelled]  # an Exception, an exit, and a BaseException that is neither


def _failing(fail):
    def method(*_args, **_settings):
        fail()

    return method


class _Failing:
    """Import finder for which every import of a module fails."""

    def __init__(self, module, fail):
        self.module, self.fail = module, fail

    def find_spec(self, name, *_):
        if name == self.module:
            self.fail()


def _in_constructor(monkeypatch, fail):
    monkeypatch.setattr(Greedy, "__post_init__", _failing(fail))


def _in_import(monkeypatch, fail):
    monkeypatch.delitem(sys.modules, f"{METHODS}.heuristics")
    monkeypatch.delattr(methods, "heuristics")
    monkeypatch.setattr(sys, "meta_path", [_Failing(f"{METHODS}.heuristics", fail), *sys.meta_path])


def _in_find(monkeypatch, fail):
    monkeypatch.setattr(Greedy, "find", _failing(fail))


def _in_run(monkeypatch, fail):
    monkeypatch.setattr(Search, "run", _failing(fail))


def _in_model(monkeypatch, fail):
    monkeypatch.setattr(RooflineCompute, "predict", _failing(fail))


PLACES = [_in_constructor, _in_import, _in_find, _in_run, _in_model]


def _cases():
    """Yield every defect in every place; all but one place of each defect are slow tests."""
    for number, fail in enumerate(DEFECTS):
        for place in PLACES:
            quick = place is PLACES[number % len(PLACES)]
            yield pytest.param(place, fail, marks=() if quick else pytest.mark.slow)


def _log(logs, err):
    """Return the text of the only log, which the last line of standard error names."""
    (log,) = logs.glob("neuroshard-*.log")
    assert str(log) in err
    return log.read_text()


@pytest.mark.parametrize(("place", "fail"), _cases())
def test_a_defect_anywhere_ends_with_70_and_a_traceback_in_a_file(logs, capsys, monkeypatch, place, fail):
    place(monkeypatch, fail)
    with reported() as messages:
        code, _, err = run_command(capsys, *SEARCH)
    assert code == EXIT_BUG, err
    assert [message.code for message in messages] == ["neuroshard-defect"]
    assert "HYDRA_FULL_ERROR" not in err
    assert "Traceback" not in err
    log = _log(logs, err.splitlines()[-1])
    assert "Traceback" in log
    assert fail.__name__ in log


@pytest.mark.parametrize(
    "fail", [pytest.param(fail, marks=() if fail in KINDS else pytest.mark.slow) for fail in DEFECTS]
)
def test_sweep_with_a_defect_runs_its_other_jobs_and_exits_with_70(logs, capsys, monkeypatch, fail):
    _in_find(monkeypatch, fail)
    monkeypatch.setattr(Greedy, "find", lambda *_: fail())
    with reported() as messages:
        code, out, err = run_command(capsys, *SWEEP)
    assert code == EXIT_BUG
    assert [path.name for path in sorted(Path("runs/search").glob("*/plans/*"))] == ["task-0000.json"]
    *defects, summary = messages
    assert [message.code for message in defects] == ["neuroshard-defect"] * 2
    check(summary, "sweep-jobs-failed", names=[2, 3])
    assert out.count(DEFECT) == 2
    assert all("Traceback" in log.read_text() and str(log) in err for log in logs.glob("neuroshard-*.log"))
    assert len(list(logs.glob("neuroshard-*.log"))) == 2


@pytest.mark.parametrize("place", [_in_constructor, _in_import])
def test_sweep_whose_parts_cannot_be_built_because_of_a_defect_exits_with_70(logs, capsys, monkeypatch, place):
    place(monkeypatch, _system_exit)
    code, out, _ = run_command(capsys, *SWEEP)
    assert code == EXIT_BUG
    assert out.count("defect") >= 2
    assert all("_system_exit" in log.read_text() for log in logs.glob("neuroshard-*.log"))


def test_sweep_exits_with_2_after_user_errors_and_with_70_after_a_defect_as_well(logs, capsys, monkeypatch):
    small = ("topology.memory_bytes=1KiB,1GiB", "out=swept/${method}-${topology.memory_bytes}")
    with reported() as messages:
        code, _, err = run_command(capsys, *SWEEP, *small)
    assert code == EXIT_USER_ERROR, err
    check(messages[-1], "sweep-jobs-failed", names=[3, 6])
    assert len(messages) == 3 + 1
    assert list(logs.iterdir()) == []
    _in_find(monkeypatch, _type_error)
    with reported() as messages:
        code, _, err = run_command(capsys, *SWEEP, *small, "out=again/${method}-${topology.memory_bytes}")
    assert code == EXIT_BUG, err
    check(messages[-1], "sweep-jobs-failed", names=[5, 6])
    assert len(messages) == 5 + 1


@pytest.mark.parametrize("place", PLACES)
def test_user_error_anywhere_is_printed_as_one_line(logs, capsys, monkeypatch, place):
    def mistake():
        try:
            raise UserError("rows-wrong", "rows is -1")
        except UserError as error:
            raise RuntimeError("a part of it failed") from error

    place(monkeypatch, mistake)
    refused_command(capsys, "rows-wrong", *SEARCH, names=["rows is -1"])
    assert list(logs.iterdir()) == []


@pytest.mark.parametrize("error", [FileNotFoundError(2, "no such file", "x"), OSError(28, "full"), MemoryError()])
@pytest.mark.parametrize("place", PLACES)
def test_disk_and_memory_errors_anywhere_in_a_command_are_user_errors(logs, capsys, monkeypatch, place, error):
    def fail():
        raise error

    place(monkeypatch, fail)
    refused_command(capsys, "memory-exhausted" if isinstance(error, MemoryError) else "system-refused", *SEARCH)
    assert list(logs.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "names", "settings"),
    [
        ("unknown-name", ["'searcher.beam_with'"], ["searcher=neuroshard", "searcher.beam_with=2"]),
        ("value-outside-limits", ["max_halvings", "'x'"], ["searcher.max_halvings=x"]),
        ("value-outside-limits", ["max_halvings", None], ["searcher.max_halvings=null"]),
        ("setting-unreadable", ["method"], ["out=${method}", "method=${out}"]),
        ("setting-unreadable", ["out"], ["out=x/${out}"]),
        ("setting-unreadable", ["batch_size"],
         ["batch_size=${topology.num_devices}", "topology.num_devices=${batch_size}"]),
        ("setting-unreadable", ["out", "'nosuch'"], ["out=${nosuch}"]),
        ("value-outside-limits", ["sort_by", -1], ["searcher=torchrec", "searcher.sort_by=-1"]),
        ("value-outside-limits", ["sharding_types", None], ["searcher=torchrec", "searcher.sharding_types=null"]),
        ("value-outside-limits", ["path", -1], ["constraints=file", "constraints.path=-1"]),
        ("value-outside-limits", ["target", 3.5], ["target=3.5"]),
        ("file-missing", ["missing.csv"], ["tables=missing.csv"]),
        ("hydra-refused", ["searcher.improvement"], ["searcher=neuroshard", "searcher.improvement={bogus:1}"]),
        ("hydra-refused", ["hydra.launcher.n_jobs"],
         ["-m", "searcher=random,size_greedy", "hydra.launcher.n_jobs=2"]),
    ],
)  # fmt: skip
def test_mistakes_in_settings_are_reported_in_one_line(logs, capsys, code, names, settings):
    refused_command(capsys, code, *SEARCH, *settings, names=names)
    assert list(logs.iterdir()) == []


def test_defect_before_building_is_reported_as_a_defect_and_not_as_a_settings_error(monkeypatch, logs, capsys):
    monkeypatch.setattr(cli, "_ESCAPED", None)  # for `_run`, before it builds anything
    with reported() as messages:
        code, _, err = run_command(capsys, *SEARCH)
    assert code == EXIT_BUG
    assert [message.code for message in messages] == ["neuroshard-defect"]
    assert "AttributeError" in _log(logs, err)


def test_user_error_in_finds_the_first_user_error_among_causes():
    mistake = InfeasibleError("memory-full", "full")
    outer = RuntimeError()
    outer.__cause__ = KeyError()
    outer.__cause__.__cause__ = mistake
    assert user_error_in(outer) is mistake
    handled = RuntimeError()
    handled.__context__ = mistake
    assert user_error_in(handled) is None


def test_raised_by_recognises_errors_of_a_library():
    theirs, ours = {"__name__": "library.part"}, {"__name__": "neuroshard.part"}
    exec("def call(then): then()", theirs)
    exec("def fail(): int('x')\ndef back(): call(fail)", ours | {"call": theirs["call"]}, ours)
    for calls, expected in (([theirs["call"], _value_error], True), ([theirs["call"], ours["fail"]], False)):
        with pytest.raises(ValueError) as caught:
            calls[0](calls[1])
        assert raised_by(caught.value, "library") == expected
    assert not raised_by(caught.value, "other")


def test_process_of_a_sweep_that_was_killed_is_no_defect(monkeypatch, capsys, logs):
    def killed(*_):
        raise BrokenProcessPool("a worker was killed")

    monkeypatch.setattr(cli, "_start", killed)
    refused_command(capsys, "sweep-process-ended", *SWEEP, "out='${method}'")
    assert not list(logs.glob("*.log"))
