"""Whatever goes wrong becomes one line; only defects leave a traceback, in a file."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neuroshard.app import cli, entry
from neuroshard.app.failures import EXIT_BUG, EXIT_USER_ERROR, exit_code, one_line
from neuroshard.plumbing.errors import UserError

SMALL = ["tables.num_tables=5", "topology.num_devices=2"]


def test_a_users_mistake_is_its_own_text():
    assert one_line(UserError("rows-zero", "rows\nis 0")) == "rows is 0"
    assert exit_code(UserError("rows-zero", "x")) == EXIT_USER_ERROR


def test_disks_and_memory_are_the_users_to_mend():
    assert "finished work is kept" in one_line(OSError(28, "No space left on device"))
    assert "out of memory" in one_line(MemoryError())
    assert exit_code(OSError()) == exit_code(MemoryError()) == EXIT_USER_ERROR


def test_a_defect_keeps_its_traceback():
    try:
        _ = list[int]()[1]
    except IndexError as error:
        text = one_line(error)
        assert exit_code(error) == EXIT_BUG
    assert text.startswith("IndexError: list index out of range; this is a defect")
    log = Path(re.search(r"traceback in (\S+)", text)[1])
    assert "test_a_defect_keeps_its_traceback" in log.read_text()
    log.unlink()


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), RecursionError("deep")])
def test_a_command_that_breaks_ends_with_one_line(monkeypatch, capsys, error):
    def broken(_given):
        raise error

    monkeypatch.setattr(cli, "_dispatch", broken)
    with pytest.raises(SystemExit) as stop:
        cli.main(["search"])
    assert stop.value.code == EXIT_BUG
    assert capsys.readouterr().err.count("\n") == 1


def test_an_interrupt_while_importing_is_one_line():
    code = (
        "import signal, os; from neuroshard.app import entry; signal.signal(signal.SIGINT, entry._leave);"
        f"os.kill(os.getpid(), {int(signal.SIGINT)})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == entry.INTERRUPTED
    assert done.stderr == "neuroshard: interrupted before any work was done\n"


def test_a_terminal_that_is_not_utf8_shows_what_it_can():
    environment = {"PYTHONIOENCODING": "latin-1", "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "neuroshard", "models"], capture_output=True, env=environment, check=False,
        cwd=Path(__file__).resolve().parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"roofline:h100" in done.stdout


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("words", [["models"], ["search", "--help"], ["search", "searcher=size_greedy", *SMALL]])
def test_a_reader_that_has_seen_enough_ends_the_command(tmp_path, words, both):
    reading, writing = os.pipe()
    os.close(reading)
    command, stderr = [sys.executable, "-m", "neuroshard", *words], writing if both else subprocess.PIPE
    done = subprocess.run(command, stdout=writing, stderr=stderr, check=False, cwd=tmp_path)
    os.close(writing)
    assert done.returncode == 0
    assert both or b"error" not in done.stderr.lower()
