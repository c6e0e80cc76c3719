"""The examples run as their first lines say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def _run(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *arguments]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.mark.slow
@pytest.mark.xdist_group("measures")
def test_torchrec_dlrm_learns_on_two_processes():
    done = _run("--nproc-per-node=2", "examples/torchrec_dlrm.py", "--steps=120")
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 7
    assert losses[-1] < losses[0] - 0.03
    assert "6 tables on 2 devices" in done.stderr
