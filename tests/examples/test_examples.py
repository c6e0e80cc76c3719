"""The examples run as their first lines say."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torchrec.distributed.planner import ParameterConstraints

from tests.kit.processes import PATIENCE_S, of_all, on_gloo
from tests.kit.training import held

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


def _trains_every_table(rank, world_size, dim, types):
    """Train twice from the same weights, for no step and for three."""
    spec = importlib.util.spec_from_file_location("torchrec_dlrm", ROOT / "examples" / "torchrec_dlrm.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.DIM = dim
    example.ParameterConstraints = lambda **fields: ParameterConstraints(sharding_types=types, **fields)
    names = [f"table{number}" for number in range(len(example.ROWS))]
    before, after = (list(held(example.train(steps), names)) for steps in (0, 3))
    assert before
    for (name, _, untrained), (_, _, trained) in zip(before, after, strict=True):
        assert not untrained.equal(trained), name


@pytest.mark.xdist_group("measures")
def test_torchrec_dlrm_trains_every_table_whatever_the_plan():
    """Tables of ten columns are data-parallel, whatever constraints say; and some plans have the others so."""
    cases = {
        "as it stands": (2, 64, None),
        "of ten columns": (2, 10, None),
        "data-parallel": (2, 64, ["data_parallel"]),
        "in column shards": (2, 64, ["table_wise", "column_wise"]),
    }
    on_gloo(2, of_all, _trains_every_table, cases)
