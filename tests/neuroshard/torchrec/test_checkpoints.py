"""Optimizer state in checkpoints that are loaded under another sharding type; real gloo processes."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper

from neuroshard import MemoryUse, Task, Topology
from neuroshard.plans.checkpoints import checkpoint_remark
from neuroshard.torchrec import data_parallel_optimizer, to_sharding_plan
from neuroshard.torchrec.data_parallel import data_parallel_parameters
from tests.kit.plans import DATA_PARALLEL, laid_out, tables
from tests.kit.processes import on_gloo
from tests.kit.torchrec_models import CPU, bags
from tests.kit.training import drawn_lookups, sharded

PLACES = {"whole": 1, "halves": {0: 8, 1: 8}, "row_wise": [0, 1], "data_parallel": DATA_PARALLEL}
BY_ROW, BY_ELEMENT = EmbOptimType.EXACT_ROWWISE_ADAGRAD, EmbOptimType.EXACT_ADAGRAD
ADAM = "Adam"  # the dense optimizer of data-parallel tables, in place of data_parallel_optimizer
CASES = [
    ("whole", "row_wise", BY_ROW, None, True),
    ("whole", "halves", BY_ROW, None, False),
    ("halves", "row_wise", BY_ROW, None, False),
    ("data_parallel", "halves", BY_ROW, None, False),
    ("halves", "whole", BY_ELEMENT, None, True),
    ("row_wise", "data_parallel", BY_ROW, None, True),
    ("data_parallel", "row_wise", BY_ROW, None, True),
    ("data_parallel", "row_wise", BY_ROW, ADAM, False),
]


def _plan(kind, optimizer=BY_ROW):
    memory = MemoryUse("rowwise_adagrad" if optimizer is BY_ROW else "adagrad")
    return laid_out(Task(tables("ab", 100, 16), Topology(2, 1 << 20), 8, memory), PLACES[kind], 0)


def _trained(kind, optimizer, dense, rank):
    """Return the optimizers of a model after one training step."""
    sharder = EmbeddingBagCollectionSharder({"optimizer": optimizer, "learning_rate": 0.1})
    plan = to_sharding_plan(_plan(kind), "bags", compute_device="cpu", local_world_size=2)
    job = sharded(nn.ModuleDict({"bags": bags("a", "b", device=CPU)}), plan, [sharder])
    if dense == ADAM and kind == "data_parallel":
        others = KeyedOptimizerWrapper(data_parallel_parameters(job), torch.optim.Adam)
    else:
        others = data_parallel_optimizer(job)
    both = CombinedOptimizer([job.fused_optimizer, others])
    out = job.module.bags(drawn_lookups({"f_a": 100, "f_b": 100}, 4, rank, 0)).wait()
    out.values().square().sum().backward()
    both.step()
    return both


def _load(rank, directory):
    for number, (one, other, optimizer, dense, loads) in enumerate(CASES):
        where = Path(directory) / str(number)
        dcp.save({"optimizer": _trained(one, optimizer, dense, rank).state_dict()}, checkpoint_id=where)
        ours = _trained(other, optimizer, dense, rank)
        state = {"optimizer": ours.state_dict()}
        if loads:
            dcp.load(state, checkpoint_id=where)
            ours.load_state_dict(state["optimizer"])
        else:
            with pytest.raises(CheckpointException):
                dcp.load(state, checkpoint_id=where)


def test_optimizer_state_loads_from_checkpoints_unless_a_remark_says_otherwise(tmp_path):
    on_gloo(2, _load, str(tmp_path))
    for one, other, optimizer, dense, loads in CASES:
        remark = checkpoint_remark(_plan(one, optimizer), _plan(other, optimizer))
        with_ours = remark is not None and "data_parallel_optimizer" in remark.limit
        never = remark is not None and not with_ours
        assert never is (not loads and dense is None)
        assert loads or remark
        assert with_ours is ("data_parallel" in (one, other) and not never)
