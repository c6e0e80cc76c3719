"""Data-parallel tables of the planner: when it chooses them, their memory, and warnings of their optimizer."""

import logging
from functools import partial

import pytest
import torch
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.types import DataType

from neuroshard import Constraints, TableRule
from neuroshard.tasks.memory import MemoryUse
from tests.kit.messages import logged
from tests.kit.processes import of_all, on_gloo
from tests.kit.torchrec_models import bags, places, planned, sequences, topology

DATA_PARALLEL = ParameterConstraints(sharding_types=["data_parallel"])
NAMED = {"constraints": {"a": DATA_PARALLEL}}
SMALL = partial(bags, "a", rows=1000, dim=128)  # on eight GPUs, data-parallel costs least
ON_GPUS = {"devices": 8, "device": "cuda", "cap": 1 << 32, "models": "roofline:h100", "batch_size": 8192}


def _with_adagrad(module):
    apply_optimizer_in_backward(RowWiseAdagrad, module.parameters(), {"lr": 0.1})
    return module


def _warnings(caplog):
    return [message for message in logged(caplog) if message.code == "tables-optimizer-not-applied"]


def _given():
    return {"given": planned(SMALL(), **ON_GPUS | NAMED)[1]}


PATHS = {
    "searched": (SMALL, lambda: {"data_parallel": True}),
    "named by TorchRec's constraints": (SMALL, lambda: NAMED),
    "named by its kernel": (SMALL, lambda: {"constraints": {"a": ParameterConstraints(compute_kernels=["dense"])}}),
    "named by rules": (SMALL, lambda: {"rules": Constraints((TableRule("a", sharding_types=("data_parallel",)),))}),
    "of columns that fused kernels refuse": (partial(SMALL, dim=10), dict),
    "delegated": (partial(sequences, "a"), lambda: NAMED),
    "delegated, of columns that fused kernels refuse": (partial(sequences, "a", dim=10), dict),
    "given": (SMALL, _given),
}


@pytest.mark.parametrize("path", PATHS)
def test_a_plan_with_data_parallel_tables_warns_once_of_their_optimizer(path, caplog):
    make, settings = PATHS[path]
    given = settings()
    caplog.clear()
    _, plan = planned(_with_adagrad(make()), **ON_GPUS | given)
    assert places(plan)["a"] == ("data_parallel", list(range(8)))
    (warning,) = _warnings(caplog)
    assert all(name in warning.what for name in ("(a)", "RowWiseAdagrad"))
    assert "data_parallel_optimizer" in warning.remedy
    assert ("12 columns" in warning.remedy) is ("refuse" in path)
    assert ("data_parallel=True" in warning.remedy) is ("refuse" not in path)  # which would change nothing
    assert ("compute_kernels" in warning.remedy) is ("by its kernel" in path)


def test_planner_warns_of_dense_kernels_in_a_given_plan(caplog):
    model = SMALL()
    _, given = planned(model, **ON_GPUS)
    given.plan[""]["a"].compute_kernel = "dense"
    planned(model, **ON_GPUS | {"given": given})
    assert len(_warnings(caplog)) == 1


def test_planner_warns_of_data_parallel_optimizers_with_a_kept_plan_too(tmp_path, caplog):
    settings = ON_GPUS | {"data_parallel": True, "keep": tmp_path / "plan.json"}
    for _ in range(2):
        caplog.clear()
        planned(SMALL(), **settings)
        assert len(_warnings(caplog)) == 1


@pytest.mark.parametrize("make", [SMALL, partial(SMALL, data_type=DataType.INT8), partial(sequences, "a")])
def test_planner_makes_no_table_data_parallel_unless_requested(make, caplog):
    """TorchRec's planner, to which INT8 tables are delegated, does not choose data_parallel either."""
    _, plan = planned(make(), **ON_GPUS)
    assert places(plan)["a"][0] != "data_parallel"
    assert not _warnings(caplog)


def test_planner_makes_only_the_named_table_data_parallel():
    _, plan = planned(bags("a", "b", rows=1000, dim=128), **ON_GPUS | NAMED)
    kinds = {name: kind for name, (kind, _) in places(plan).items()}
    assert kinds["a"] == "data_parallel" != kinds["b"]


@pytest.mark.parametrize("dim", [1, 10])
def test_tables_of_odd_width_cost_as_much_as_if_padded(dim):
    """When delegated tables cost nothing, four tables of one column looked cheaper than after padding to four."""
    padded = -(-dim // 4) * 4
    names, shape = "abcd", {"rows": 5_000_000}
    odd, _ = planned(bags(*names, **shape, dim=dim), **ON_GPUS | {"cap": 40 << 30})
    named = dict.fromkeys(names, DATA_PARALLEL)
    even, _ = planned(bags(*names, **shape, dim=padded), **ON_GPUS | {"cap": 40 << 30, "constraints": named})
    assert odd.last_cost.total_ms == pytest.approx(even.last_cost.total_ms)
    assert odd.last_cost.total_ms > 1
    assert odd.last_plan.device_bytes == even.last_plan.device_bytes


@pytest.mark.parametrize(("dense", "copies"), [("sgd", 2), ("adagrad", 3), ("adam", 4)])
def test_memory_counts_the_optimizer_of_data_parallel_tables(dense, copies):
    """Data-parallel tables take weights, a gradient, and the state of the user's optimizer."""
    memory = MemoryUse("sgd", batches_in_flight=1, dense_optimizer=dense)
    ours, _ = planned(SMALL(), **ON_GPUS | NAMED | {"memory": memory, "batch_size": 1})
    weights = 1000 * 128 * 4
    assert copies * weights <= max(ours.last_plan.device_bytes) < copies * weights + 1000


def test_memory_counts_the_optimizer_of_delegated_data_parallel_tables():
    model = nn.ModuleDict({"ours": SMALL(), "theirs": sequences("s", rows=1000, dim=64)})
    left = {}
    for dense in ("sgd", "adam"):
        memory = MemoryUse("sgd", batches_in_flight=1, dense_optimizer=dense)
        constraints = {"s": DATA_PARALLEL}
        ours, _ = planned(model, **ON_GPUS | {"memory": memory, "constraints": constraints})
        left[dense] = ours.last_plan.task.topology.device_memory[0]
    assert left["sgd"] - left["adam"] == 2 * 1000 * 64 * 4


def test_memory_counts_adam_for_data_parallel_tables_by_default():
    ours, _ = planned(SMALL(), sharders=[EmbeddingBagCollectionSharder()], **ON_GPUS)
    assert ours.last_plan.task.memory == MemoryUse("sgd", batches_in_flight=1, dense_optimizer="adam")


def _plan_on_ranks(rank, world_size, settings):
    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(getattr(record.msg, "code", None))
    logging.getLogger("neuroshard").addHandler(handler)
    ours, _ = planned(bags("z"), **settings, topology=topology(world_size))
    heard.clear()
    ours.collective_plan(bags("a", dim=10, device=torch.device("cpu")))
    assert heard.count("tables-optimizer-not-applied") == 1


def test_data_parallel_plan_warns_on_every_rank():
    """Each builds its own optimizers."""
    on_gloo(2, of_all, _plan_on_ranks, {"odd": (2, {"models": "roofline:h100"})})
