"""The notebook docs/tutorials/two_minutes.ipynb: its cells run one after the other, as in Jupyter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs" / "tutorials" / "two_minutes.ipynb"


def _code():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.mark.slow
@pytest.mark.xdist_group("measures")
def test_notebook_code_runs_without_errors(tmp_path):
    environment = os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _code()]  # like a notebook, this has no file that workers could import
    done = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert "with rules: " in done.stdout
    assert "plan: predicted" in done.stdout


def test_notebook_cells_that_print_have_stored_outputs():
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    printed = [cell for cell in cells if "print(" in "".join(cell["source"])]
    assert all(cell["outputs"] for cell in printed)
