"""The code of the tutorial own_parts.md: a package outside the checkout adds a searcher, models and tables."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.messages import refused_command

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "tutorials" / "own_parts.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FILES = [text for language, text in BLOCKS if language]
SWEEP, _TABLE, PARALLEL = (text.strip() for language, text in BLOCKS if not language)
PACKAGE = "hydra.searchpath=[pkg://mine.conf]"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with the package of the page."""
    for text in FILES:
        path = tmp_path / text.partition("\n")[0].removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


def _run(here, line):
    """Return the output of a command in a new process, with the package on PYTHONPATH."""
    command = [sys.executable, "-m", "neuroshard", *shlex.split(line)[1:]]
    environment = os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=here, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _found(here):
    return [json.loads(path.read_text()) for path in sorted(here.rglob("run.json"))]


def test_sweep_of_the_own_parts_page_lists_own_and_shipped_parts(here):
    out = _run(here, SWEEP)
    rows = [line for line in out.splitlines() if "1/1" in line]
    assert len(rows) == 8
    for name in ("round_robin", "size_greedy", "roofline:lookups", "roofline:h100", "equal", "dlrm_like_60"):
        assert sum(name in row for row in rows) == 4, out
    assert {run["searcher"] for run in _found(here)} == {"round_robin", "size_greedy"}
    assert out.strip().startswith("The sweep")  # nothing before the table
    assert PAGE.count("│ round_robin") == sum("round_robin" in row for row in rows)


@pytest.mark.parametrize("launcher", ["joblib", pytest.param("submitit_local", marks=pytest.mark.slow)])
def test_sweep_with_each_launcher_imports_the_users_package(here, launcher):
    line = PARALLEL.replace("hydra/launcher=joblib hydra.launcher.n_jobs=2", f"hydra/launcher={launcher}")
    out = _run(here, f"{line} 'out=swept/${{method}}'")
    assert all(re.search(rf"{name} .*1/1", out) for name in ("round_robin", "size_greedy")), out
    assert {run["searcher"] for run in _found(here)} == {"round_robin", "size_greedy"}


@pytest.mark.parametrize("added", [[PACKAGE], ["--config-dir", "mine/conf"]], ids=["package", "folder"])
def test_wrong_settings_of_users_own_parts_are_refused_in_one_line(here, capsys, added):
    own = ("search", *added, "searcher=round_robin", "tables=equal", "model=roofline:h100")
    refused_command(capsys, "unknown-name", *own, "searcher.frist=1", names=["searcher.first"])
    refused_command(capsys, "unknown-name", *own, "searcher=round_robbin", names=["round_robin"])
    refused_command(capsys, "unknown-name", *own, "+searcher.last=1", names=["searcher.last"])
    refused_command(capsys, "target-not-found", *own, "searcher._target_=mine.parts.Missing")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("len(5)", "TypeError"),
        pytest.param("np.zeros(3).reshape(2, 2)", "ValueError", marks=pytest.mark.slow),
        pytest.param("{}['a']", "KeyError", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("place", ["search", "model", "tables"])
def test_error_in_a_users_own_part_is_reported_as_one_of_this_part(here, capsys, call, error, place, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(here))
    before = {"search": "        devices = task", "model": "        ms = self.ns", "tables": "    touched_once ="}[
        place
    ]
    path = here / "mine" / "parts.py"
    path.write_text(path.read_text().replace(before, f"{before[: -len(before.lstrip())]}{call}\n{before}"))
    own = ("search", PACKAGE, "searcher=round_robin", "tables=equal", "model=roofline:lookups")
    message = refused_command(capsys, "own-part-failed", *own, names=[error, "mine"])
    (log,) = here.glob("neuroshard-*.log")
    assert str(log) in message.remedy
    assert str(path) in log.read_text()
