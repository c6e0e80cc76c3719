"""Moving tables of running jobs keeps weights, optimizer state and outputs; with real gloo processes."""

import re
from functools import partial

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import ShardingPlan

from neuroshard import Placement, Plan, Shard, Table, Task, Topology
from neuroshard.testing import ONCE
from neuroshard.torchrec import reshard, to_sharding_plan
from neuroshard.torchrec.resharding import plan_difference
from tests.kit.messages import refused
from tests.kit.processes import of_all, on_gloo
from tests.kit.torchrec_models import bags, places, planner, shaped_bags
from tests.kit.training import check_held, drawn_lookups, drawn_weights, set_weights, sharded

SHAPES = {"a": (50, 16), "b": (30, 32), "c": (7, 64)}
SAMPLES = 8


def _planned(placed, kind="column_wise", devices=2, **changes):
    """Return TorchRec's plan of (table, columns, device), with column ranges in the given order."""
    tables = tuple(Table(name, *shape, 2.0, ONCE) for name, shape in SHAPES.items())
    column, placements = [0] * len(tables), []
    for table, dim, device in placed:
        placements.append(Placement(Shard(table, column[table], dim, 0, tables[table].rows), device))
        column[table] += dim
    task = Task(tables, Topology(devices, 1 << 30), devices * SAMPLES)
    exported = to_sharding_plan(Plan(task, tuple(placements)), "bags", "cpu")
    for sharding in exported.plan["bags"].values():
        sharding.sharding_type = kind
    for name, value in changes.items():
        setattr(exported.plan["bags"]["b"], name, value)
    return exported


class _Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = shaped_bags(SHAPES)
        torch.manual_seed(0)
        self.dense = nn.Linear(sum(dim for _, dim in SHAPES.values()), 1)

    def forward(self, batch):
        pooled = self.bags(batch)
        return self.dense(torch.cat([pooled[f"f_{name}"] for name in SHAPES], dim=1)).sum()


def _job(plan, optimizer):
    sharder = EmbeddingBagCollectionSharder({"optimizer": optimizer, "learning_rate": 0.5, "eps": 1e-3})
    job = sharded(_Model(), plan, [sharder])
    set_weights(job, drawn_weights(SHAPES))
    return job


def _train(job, rank, steps):
    outputs, features = [], {f"f_{name}": rows for name, (rows, _) in SHAPES.items()}
    for step in steps:
        loss = job(drawn_lookups(features, SAMPLES, rank, step))
        loss.backward()
        outputs.append(loss.detach())
    return outputs


def _reshard(rank, first, second, devices, optimizer):
    """Compare a job whose tables move after two steps with a job whose tables stay."""
    before, after = (_planned(placed, devices=devices) for placed in (first, second))
    moving, staying = _job(before, optimizer), _job(before, optimizer)
    for job in (moving, staying):
        _train(job, rank, range(2))
    moved = reshard(moving, after)
    others = (table for table in range(len(SHAPES)) if _of(table, first) != _of(table, second))
    assert set(moved) == {f"bags.{list(SHAPES)[table]}" for table in others}
    assert places(moving.plan, "bags") == places(after, "bags")
    for got, expected in zip(_train(moving, rank, range(2, 5)), _train(staying, rank, range(2, 5)), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert reshard(moving, after) == ()


def _of(table, placed):
    return [one for one in placed if one[0] == table]


WHOLE = [(0, 16, 0), (1, 32, 1), (2, 64, 0)]
ASIDE = [(0, 16, 0), (1, 32, 0), (2, 64, 0)]
SWAPPED = [(0, 16, 1), (1, 32, 0), (2, 64, 0)]
CUT = [(0, 16, 0), (1, 16, 0), (1, 16, 1), (2, 32, 1), (2, 32, 0)]
SWAPPED_CUT = [(0, 16, 0), (1, 16, 1), (1, 16, 0), (2, 32, 0), (2, 32, 1)]
UNEQUAL = [(0, 16, 0), (1, 12, 0), (1, 20, 1), (2, 32, 1), (2, 32, 0)]
CUT_IN_FOUR = [(0, 16, 0), (1, 16, 3), (1, 16, 2), (2, 32, 1), (2, 32, 3)]
SEWN = [(0, 8, 1), (0, 8, 2), (1, 32, 1), (2, 64, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "pairs"),
    [(2, [(WHOLE, SWAPPED), (ASIDE, SWAPPED), (CUT, SWAPPED_CUT)]), (4, [(ASIDE, CUT_IN_FOUR), (CUT_IN_FOUR, SEWN)])],
)
def test_resharding_moves_tables_of_a_training_job(devices, pairs):
    kinds = [EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD][: 2 if devices == 2 else 1]  # it cuts no such states
    cases = {f"{pair}, {kind}": (*pair, devices, kind) for pair in pairs for kind in kinds}
    on_gloo(devices, of_all, _reshard, cases)


class _TablesAlone(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = shaped_bags(SHAPES)

    def forward(self, batch):
        return self.bags(batch)


def _at_another_rate(rank, make, path):
    """Move tables to a rank without tables when the schedule has set the learning rate to 0: weights stay equal."""
    before, after = (ShardingPlan({path: _planned(placed).plan["bags"]}) for placed in (ASIDE, SWAPPED))
    job = sharded(make(), before, [EmbeddingBagCollectionSharder({"learning_rate": 0.5})])
    weights = drawn_weights(SHAPES)
    set_weights(job, weights)
    for group in job.fused_optimizer.param_groups:
        group |= {"lr": 0.0, "initial_lr": 0.5}
    job.fused_optimizer.step()
    assert len(reshard(job, after)) == 1
    output = job(drawn_lookups({f"f_{name}": rows for name, (rows, _) in SHAPES.items()}, SAMPLES, rank, 0))
    (output if torch.is_tensor(output) else output.values()).sum().backward()
    assert check_held(job, weights) == (2, 1)[rank]
    assert [(group["lr"], group["initial_lr"]) for group in job.fused_optimizer.param_groups] == [(0.0, 0.5)]
    assert places(job.plan, path) == places(after, path)


def test_resharding_keeps_learning_rates_beside_any_other_parameters():
    cases = {
        "dense": (_Model, "bags"),
        "tables alone": (_TablesAlone, "bags"),
        "a collection": (partial(shaped_bags, SHAPES), ""),
    }
    on_gloo(2, of_all, _at_another_rate, cases)


def test_plan_difference_contains_only_tables_with_changed_shards():
    changed = ShardingPlan(plan_difference(_planned(WHOLE, "table_wise"), _planned(SWAPPED)))
    assert places(changed, "bags") == {"a": ("table_wise", [1]), "b": ("table_wise", [0])}
    widths = plan_difference(_planned(CUT), _planned(UNEQUAL))
    assert list(widths["bags"]) == ["b"]  # on the same devices
    assert plan_difference(_planned(CUT), _planned(CUT)) == {}


@pytest.mark.parametrize(
    ("before", "after", "code", "words"),
    [
        (_planned(WHOLE, "table_wise"), _planned(CUT), "reshard-table-wise-split", ["bags.b", "table_wise"]),
        (
            _planned(WHOLE),
            _planned(SWAPPED, "row_wise"),
            "reshard-sharding-type",
            ["bags.a", "column_wise", "row_wise"],
        ),
        (
            _planned(WHOLE),
            _planned(SWAPPED, compute_kernel="fused_uvm"),
            "reshard-kernel",
            ["bags.b", "fused", "fused_uvm"],
        ),
        (
            _planned(WHOLE),
            _planned(SWAPPED, sharding_type="data_parallel", sharding_spec=None),
            "reshard-sharding-type",
            ["bags.b", "column_wise", "data_parallel"],
        ),
        (_planned(WHOLE), ShardingPlan({}), "reshard-tables-differ", ["bags.a", "bags.b", "bags.c"]),
    ],
)
def test_resharding_names_tables_that_cannot_be_resharded(before, after, code, words):
    with refused(code) as raised:
        plan_difference(before, after)
    assert re.findall(r"bags\.\w|\w+_wise|data_parallel|fused\w*", raised.value.message.what) == words


def test_a_table_requested_column_wise_is_column_wise_even_if_whole():
    said = {"a": ParameterConstraints(sharding_types=["column_wise"], min_partition=16)}
    found = places(planner(constraints=said).plan(bags("a", "b")))
    assert {name: kind for name, (kind, _) in found.items()} == {"a": "column_wise", "b": "table_wise"}


def _refused(rank):
    """Request moves that would fail halfway; they are refused before any table moves."""
    job = _job(_planned(WHOLE), EmbOptimType.EXACT_ADAGRAD)
    with refused("reshard-gloo-own-message", names=["gloo", "NCCL"]):
        reshard(_job(_planned(WHOLE), EmbOptimType.EXACT_SGD), _planned(CUT))
    with refused("reshard-widths-unequal", names=["'b'", 12, 20, "min_partition"]):
        reshard(job, _planned(UNEQUAL))
    job.module.bags.fused_optimizer.state_dict = lambda: {  # as Adam's, which FBGEMM has on GPUs only
        "state": {f"embedding_bags.{name}.weight": {f"{name}.momentum1": 0, f"{name}.exp_avg_sq": 0} for name in "abc"}
    }
    with refused("reshard-state-lost", names=["(a.exp_avg_sq)"]):
        reshard(job, _planned(SWAPPED))
    assert job.plan.plan["bags"]["a"].ranks == [0]


def test_resharding_that_loses_optimizer_state_is_refused():
    on_gloo(2, _refused)
