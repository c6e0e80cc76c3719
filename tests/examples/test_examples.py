"""The examples run with the commands of their first lines."""

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.types import TopologyFactory, TrainerConfig

from neuroshard import CostModels
from tests.kit.commands import done
from tests.kit.processes import PATIENCE_S, of_all, on_gloo
from tests.kit.torchrec_models import CPU, topology
from tests.kit.training import held

ROOT = Path(__file__).resolve().parents[2]


def _example(name, **constants):
    """Import an example again, with other constants."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    vars(example).update(constants)
    return example


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
    example = _example("torchrec_dlrm", DIM=dim, ParameterConstraints=_of_types(types))
    _assert_trained(len(example.ROWS), example.train)


def _trains_every_table_in_the_pipeline(rank, world_size, types):
    """Train the GPUs' example on CPUs, with smaller tables."""
    rows = (2000, 700, 300, 50, 10)
    small = {"ROWS": rows, "LOOKUPS": (3, 20, 1, 1, 1), "BATCH_SIZE": 64, "MODELS": "cpu", "DENSE_MS": None}
    example = _example("torchrec_dlrm_cuda", **small, ParameterConstraints=_of_types(types))
    _assert_trained(len(rows), lambda steps: example.train(topology(world_size, cap=1 << 30), CPU, steps))


def _of_types(types):
    return lambda **fields: ParameterConstraints(sharding_types=types, **fields)


def _assert_trained(tables, train):
    names = [f"table{number}" for number in range(tables)]
    before, after = (list(held(train(steps), names)) for steps in (0, 3))
    assert before
    for (name, _, untrained), (_, _, trained) in zip(before, after, strict=True):
        assert not untrained.equal(trained), name


@pytest.mark.xdist_group("measures")
def test_torchrec_dlrm_trains_every_table_of_any_plan():
    """Tables of ten columns are always data-parallel; other tables are in some of the plans."""
    cases = {
        "as it stands": (2, 64, None),
        "of ten columns": (2, 10, None),
        "data-parallel": (2, 64, ["data_parallel"]),
        "in column shards": (2, 64, ["table_wise", "column_wise"]),
    }
    on_gloo(2, of_all, _trains_every_table, cases)


@pytest.mark.xdist_group("measures")
def test_torchrec_dlrm_cuda_trains_every_table_of_any_plan():
    """On CPUs, in the pipeline: TorchRec's fused optimizer trains the tables, or our optimizer, or both."""
    cases = {
        "as it stands": (2, None),
        "data-parallel": (2, ["data_parallel"]),
        "in column shards": (2, ["table_wise", "column_wise"]),
    }
    on_gloo(2, of_all, _trains_every_table_in_the_pipeline, cases)


def test_torchrec_dlrm_cuda_plans_every_table_for_eight_gpus():
    """The plan covers each element of each table once, within 80 GB of each GPU; the planner needs no GPU."""
    example = _example("torchrec_dlrm_cuda")
    gpus = TopologyFactory.create_topology(TrainerConfig(8, local_world_size=8, hbm_cap_bytes=80 << 30))
    assert gpus.compute_device == "cuda"
    plan = example.make_planner(gpus).plan(example.make_model(), example.make_sharders())
    (tables,) = plan.plan.values()
    assert set(tables) == {f"table{number}" for number in range(len(example.ROWS))}
    taken = [0] * 8
    for number, rows in enumerate(example.ROWS):
        table = tables[f"table{number}"]
        if table.sharding_spec is None:
            assert table.sharding_type == "data_parallel"
            continue
        covered = torch.zeros(example.DIM, dtype=torch.int64)  # rows, by column
        for shard in table.sharding_spec.shards:
            first = shard.shard_offsets[1]
            covered[first : first + shard.shard_sizes[1]] += shard.shard_sizes[0]
            taken[shard.placement.rank()] += 4 * shard.shard_sizes[0] * shard.shard_sizes[1]
        assert covered.eq(rows).all(), number
    assert 0 < min(taken) <= max(taken) < 80 << 30


@pytest.mark.slow
@pytest.mark.xdist_group("measures")
@pytest.mark.filterwarnings("ignore::neuroshard.NeuroShardWarning")
def test_python_pipeline_and_commands_write_equal_files_and_models(tmp_path, capsys):
    """The commands accept the files of the Python pipeline as their own, and leave all but pictures unchanged."""
    example = _example("pipeline")
    measured = example.main(tmp_path, num_calls=60, num_exchanges=24)
    assert set(measured) == set(example.SEARCHERS)
    assert all(min(costs) > 0 for costs in measured.values())
    contents = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    sizes = "tables.num_tables=40", "batch_size=512", "comm.num_devices=[2]"
    counts = "num_compute_samples=60", "num_comm_samples=24", "num_second_pass=16", "max_noise=null"
    done(capsys, "collect", *sizes, *counts, f"out={tmp_path}/data")
    files = [str(tmp_path / f"{searcher}.json") for searcher in example.SEARCHERS]
    done(capsys, "evaluate", *files, "model=null", f"out={tmp_path}/measured")
    for path, content in contents.items():
        assert path.suffix == ".png" or path.read_bytes() == content, path
    done(capsys, "pretrain", f"data={tmp_path}/data", f"out={tmp_path}/again")
    assert CostModels.load(str(tmp_path / "again")).digest == CostModels.load(str(tmp_path / "models")).digest


def test_readme_example_passes_only_existing_parameters():
    """Each keyword of each call in the Python block is a parameter of the called function."""
    tree = ast.parse(re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1])
    names = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name: getattr(import_module(node.module), alias.name) for alias in node.names}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", None) in names]
    assert {call.func.id for call in calls} >= {"NeuroShardPlanner", "data_parallel_optimizer", "dense_parameters"}
    for call in calls:
        known = inspect.signature(names[call.func.id]).parameters
        assert {keyword.arg for keyword in call.keywords} <= set(known), call.func.id
