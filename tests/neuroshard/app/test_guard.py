"""Every error is printed as one line; only defects write a traceback, to a file."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from neuroshard.app import cli, entry
from neuroshard.app.failures import EXIT_BUG, EXIT_USER_ERROR, exit_code, report_of
from neuroshard.plumbing.errors import UserError
from neuroshard.testing import toy_task
from tests.kit.messages import check, refused_command, reported
from tests.kit.plans import whole

SMALL = ["tables.num_tables=5", "topology.num_devices=2"]


def test_user_error_prints_only_its_message():
    error = UserError("rows-wrong", "rows is 0", where="tables.csv, line 2", limit="the minimum is 1")
    assert report_of(error) is error.message
    assert exit_code(error) == EXIT_USER_ERROR


def test_disk_and_memory_errors_exit_as_user_errors():
    check(report_of(OSError(28, "disk is full", "plan.json")), "system-refused", names=["disk is full", "plan.json"])
    check(report_of(MemoryError()), "memory-exhausted")
    assert exit_code(OSError()) == exit_code(MemoryError()) == EXIT_USER_ERROR


def test_report_of_a_defect_writes_the_traceback_to_a_log(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    try:
        _ = list[int]()[1]
    except IndexError as error:
        message = report_of(error)
        assert exit_code(error) == EXIT_BUG
    (log,) = tmp_path.iterdir()
    check(message, "neuroshard-defect", names=["IndexError: list index out of range"])
    assert str(log) in message.remedy
    assert "test_report_of_a_defect_writes_the_traceback_to_a_log" in log.read_text()


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), RecursionError("deep")])
def test_defect_in_the_command_line_prints_one_line_and_exits_with_70(monkeypatch, capsys, error):
    def broken(_given):
        raise error

    monkeypatch.setattr(cli, "_dispatch", broken)
    with pytest.raises(SystemExit) as stop, reported() as messages:
        cli.main(["search"])
    assert stop.value.code == EXIT_BUG
    assert [message.code for message in messages] == ["neuroshard-defect"]
    assert capsys.readouterr().err.count("\n") == 1


def test_interrupt_while_importing_is_reported_in_one_line():
    code = (
        "import signal, os; from neuroshard.app import entry; signal.signal(signal.SIGINT, entry._leave);"
        f"os.kill(os.getpid(), {int(signal.SIGINT)})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == entry.INTERRUPTED
    assert done.stderr.count("\n") == 1
    assert "KeyboardInterrupt" not in done.stderr


def test_terminal_without_utf8_shows_replacement_characters():
    environment = {"PYTHONIOENCODING": "latin-1", "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "neuroshard", "models"], capture_output=True, env=environment, check=False,
        cwd=Path(__file__).resolve().parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"roofline:h100" in done.stdout


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("words", [["models"], ["search", "--help"], ["search", "searcher=size_greedy", *SMALL]])
def test_command_ends_if_the_reader_closes_its_output(tmp_path, words, both):
    reading, writing = os.pipe()
    os.close(reading)
    command, stderr = [sys.executable, "-m", "neuroshard", *words], writing if both else subprocess.PIPE
    done = subprocess.run(command, stdout=writing, stderr=stderr, check=False, cwd=tmp_path)
    os.close(writing)
    assert done.returncode == 0
    assert both or b"error" not in done.stderr.lower()


@pytest.mark.parametrize("closed", [*(pytest.param((one,), marks=pytest.mark.slow) for one in range(3)), (0, 1, 2)])
@pytest.mark.parametrize("words", [["--version"], ["search", "searcher=size_greedy", "out=run", *SMALL, "format=json"]])
def test_command_with_closed_streams_does_its_work(tmp_path, words, closed):
    """The shell's `>&-` closes a stream, which is then None in Python."""
    closing = " ".join(f"{descriptor}>&-" for descriptor in closed)
    command = ["sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, "-m", "neuroshard", *words]
    done = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert bool(done.stdout) is (1 not in closed)
    if words[0] == "search":
        assert json.loads((tmp_path / "run" / "run.json").read_text())["kind"] == "search"


@pytest.mark.parametrize(
    "words",
    [
        ["search", "searcher=random", *SMALL, "out={}"],
        ["collect", "out={}"],
        ["pretrain", "data=[data]", "out={}"],
        ["evaluate", "plan.json", "out={}"],
        ["explain", "plan.json", "out={}.html"],
        ["export", "plan.json", "to=torchrec", "out={}.json"],
        ["export", "plan.json", "to=sok", "out={}.py"],
        ["report", "runs=[.]", "out={}"],
    ],
)
def test_too_long_name_of_the_output_is_refused_at_the_start(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    whole(toy_task(2, num_devices=2), 0, 1).save("plan.json")
    names = ["out=", "maximum is 255"]
    refused_command(capsys, "out-name-long", *(word.format("x" * 300) for word in words), names=names)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("words", [["search"], ["search", "-m", "seed=1,2"], ["explain", "plan.json"]])
def test_deleted_current_directory_is_named(tmp_path, monkeypatch, capsys, words):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setenv("PWD", str(gone))
    gone.rmdir()
    refused_command(capsys, "current-directory-missing", *words, names=[gone])
