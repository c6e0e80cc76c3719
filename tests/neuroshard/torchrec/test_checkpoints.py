"""State dicts of DistributedModelParallel on our plans, on real gloo processes: which plans weights load into."""

import logging

import pytest
import torch
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

from neuroshard.layouts import in_columns
from neuroshard.plans.plan import Plan
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE
from neuroshard.torchrec import to_sharding_plan
from tests.kit.processes import on_gloo
from tests.kit.torchrec_models import bags, planner

ROWS, DIM = 20, 16


def _collection():
    return bags("a", rows=ROWS, dim=DIM, device=torch.device("cpu"))


def _job(widths):
    task = Task((Table("a", ROWS, DIM, 1.0, ONCE),), Topology(2, 1 << 30), 8)
    columns = in_columns(task, [(0, width, device) for width, device in widths])
    plan = to_sharding_plan(Plan(task, tuple(columns)), compute_device="cpu")
    sharders = [EmbeddingBagCollectionSharder()]
    return DistributedModelParallel(_collection(), device=torch.device("cpu"), plan=plan, sharders=sharders)


def _loads(rank, widths, what):
    """Check whether a job's weights load into another one on the same plan, as they are sharded, or whole."""
    saved, job = _job(widths), _job(widths)
    state, weights = saved.state_dict(), torch.arange(ROWS * DIM, dtype=torch.float32).view(ROWS, DIM)
    if what == "whole":
        job.load_state_dict(dict.fromkeys(state, weights))
        (held,) = (its for value in job.state_dict().values() for its in value.local_shards())
        (_, column), (_, width) = held.metadata.shard_offsets, held.metadata.shard_sizes
        assert torch.equal(held.tensor, weights[:, column : column + width])
    elif what == "nothing" and rank == 1:  # rank 0's shard is the first one, as wide as TorchRec takes all to be
        with pytest.raises(RuntimeError, match="size mismatch"):
            job.load_state_dict(state)
    else:
        job.load_state_dict(state)
        pairs = zip(saved.state_dict().values(), job.state_dict().values(), strict=True)
        assert all(
            torch.equal(one.tensor, other.tensor)
            for had, has in pairs
            for one, other in zip(had.local_shards(), has.local_shards(), strict=True)
        )


@pytest.mark.parametrize(
    ("widths", "what"), [([(8, 0), (8, 1)], "shards"), ([(4, 0), (12, 1)], "nothing"), ([(4, 0), (12, 1)], "whole")]
)
def test_weights_load_into_shards_of_one_width_and_whole_ones_into_any(widths, what):
    on_gloo(2, _loads, widths, what)


@pytest.mark.parametrize(
    ("rule", "widths"),
    [(TableRule("*", min_shards=3), [4, 4, 8]), (TableRule("*", min_shards=2, equal_widths=True), [8, 8])],
)
def test_a_warning_names_tables_that_sharded_weights_do_not_load_into(rule, widths, caplog):
    ours = planner(3, rules=Constraints(rules=(rule,)))
    with caplog.at_level(logging.WARNING, "neuroshard"):
        ours.plan(bags("a"))
    assert sorted(placed.shard.dim for placed in ours.last_plan.placements) == widths
    assert ("1 table(s) in shards of unequal width (a); rules=" in caplog.text) is (len(set(widths)) > 1)
