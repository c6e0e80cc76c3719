"""Tables of running jobs that move: weights, optimizer state and outputs survive; real gloo processes."""

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints

from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.torchrec import reshard, to_sharding_plan
from neuroshard.torchrec.resharding import plan_difference
from neuroshard.words.placement import Placement, Shard
from tests.kit.processes import on_gloo
from tests.kit.torchrec_models import META, bag, bags, planner

SHAPES = {"a": (50, 16), "b": (30, 32), "c": (7, 64)}
BATCH_SIZE = 8


def _plan(placed, devices=2):
    """A plan of (table, columns, device): ranges of columns in the order that they are given."""
    once = (1.0, *(0.0,) * 16)
    tables = tuple(Table(name, rows, dim, 2.0, once) for name, (rows, dim) in SHAPES.items())
    column, placements = [0] * len(tables), []
    for table, dim, device in placed:
        placements.append(Placement(Shard(table, column[table], dim, 0, tables[table].rows), device))
        column[table] += dim
    return Plan(Task(tables, Topology(devices, 1 << 30), devices * BATCH_SIZE), tuple(placements))


class _Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = EmbeddingBagCollection([bag(name, *shape) for name, shape in SHAPES.items()], device=META)
        torch.manual_seed(0)
        self.dense = nn.Linear(sum(dim for _, dim in SHAPES.values()), 1)

    def forward(self, batch):
        pooled = self.bags(batch)
        return self.dense(torch.cat([pooled[f"f_{name}"] for name in SHAPES], dim=1)).sum()


def _batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    lengths = torch.randint(0, 5, (len(SHAPES) * BATCH_SIZE,), generator=generator)
    counts = lengths.view(len(SHAPES), -1).sum(dim=1).tolist()
    pairs = zip(counts, SHAPES.values(), strict=True)
    values = torch.cat([torch.randint(rows, (n,), generator=generator) for n, (rows, _) in pairs])
    return KeyedJaggedTensor(keys=[f"f_{name}" for name in SHAPES], values=values, lengths=lengths)


def _job(plan, optimizer):
    sharder = EmbeddingBagCollectionSharder(fused_params={"optimizer": optimizer, "learning_rate": 0.5, "eps": 1e-3})
    job = DistributedModelParallel(_Model(), device=torch.device("cpu"), plan=plan, sharders=[sharder])
    for name, tensor in job.state_dict().items():
        if "bags" in name:
            rows, dim = SHAPES[name.split(".")[-2]]
            whole = torch.randn(rows, dim, generator=torch.Generator().manual_seed(rows))
            for shard in tensor.local_shards():
                column = shard.metadata.shard_offsets[1]
                shard.tensor.copy_(whole[:, column : column + shard.metadata.shard_sizes[1]])
    return job


def _train(job, rank, steps):
    outputs = []
    for step in steps:
        loss = job(_batch(rank, step))
        loss.backward()
        outputs.append(loss.detach())
    return outputs


def _reshard(rank, first, second, optimizer):
    """Compare a job that moves after two steps with one that doesn't."""
    plans = [to_sharding_plan(plan, "bags", "cpu") for plan in (first, second)]
    for sharding in [it for plan in plans for it in plan.plan["bags"].values()]:
        sharding.sharding_type = "column_wise"
    moving, staying = _job(plans[0], optimizer), _job(plans[0], optimizer)
    for job in (moving, staying):
        _train(job, rank, range(2))
    moved = reshard(moving, plans[1])
    assert set(moved) == {f"bags.{name}" for name, is_moved in _moves(first, second).items() if is_moved}
    places = {name: sharding.ranks for name, sharding in moving.plan.plan["bags"].items()}
    assert places == {name: sharding.ranks for name, sharding in plans[1].plan["bags"].items()}
    for got, expected in zip(_train(moving, rank, range(2, 5)), _train(staying, rank, range(2, 5)), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert reshard(moving, plans[1]) == ()


def _moves(first, second):
    pairs = zip(SHAPES, first.by_table, second.by_table, strict=True)
    return {name: sorted(before) != sorted(after) for name, before, after in pairs}


def _reshard_all(rank, cases):
    for case in cases:
        try:
            _reshard(rank, *case)
        except Exception as error:
            error.add_note(f"plans: {case}")
            raise


WHOLE = [(0, 16, 0), (1, 32, 1), (2, 64, 0)]
ASIDE = [(0, 16, 0), (1, 32, 0), (2, 64, 0)]
SWAPPED = [(0, 16, 1), (1, 32, 0), (2, 64, 0)]
CUT = [(0, 16, 0), (1, 16, 0), (1, 16, 1), (2, 32, 1), (2, 32, 0)]
SWAPPED_CUT = [(0, 16, 0), (1, 16, 1), (1, 16, 0), (2, 32, 0), (2, 32, 1)]
CUT_IN_FOUR = [(0, 16, 0), (1, 16, 3), (1, 16, 2), (2, 32, 1), (2, 32, 3)]
SEWN = [(0, 8, 1), (0, 8, 2), (1, 32, 1), (2, 64, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "pairs"),
    [(2, [(WHOLE, SWAPPED), (ASIDE, SWAPPED), (CUT, SWAPPED_CUT)]), (4, [(ASIDE, CUT_IN_FOUR), (CUT_IN_FOUR, SEWN)])],
)
def test_tables_move_while_a_job_trains(devices, pairs):
    kinds = [EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD][: 2 if devices == 2 else 1]  # it cuts no such states
    cases = [(_plan(first, devices), _plan(second, devices), kind) for first, second in pairs for kind in kinds]
    on_gloo(devices, _reshard_all, cases)


def _sharded(placed, kind="column_wise", **changes):
    plan = to_sharding_plan(_plan(placed), "bags", "cpu")
    for sharding in plan.plan["bags"].values():
        sharding.sharding_type = kind
    for name, value in changes.items():
        setattr(plan.plan["bags"]["b"], name, value)
    return plan


def test_the_difference_is_what_lies_elsewhere():
    changed = plan_difference(_sharded(WHOLE, "table_wise"), _sharded(SWAPPED))
    assert {name: (it.sharding_type, it.ranks) for name, it in changed["bags"].items()} == {
        "a": ("table_wise", [1]),
        "b": ("table_wise", [0]),
    }
    widths = plan_difference(_sharded(CUT), _sharded([*CUT[:1], (1, 12, 0), (1, 20, 1), *CUT[3:]]))
    assert list(widths["bags"]) == ["b"]  # on the same devices
    assert plan_difference(_sharded(CUT), _sharded(CUT)) == {}


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (_sharded(WHOLE, "table_wise"), _sharded(CUT), "is table_wise and would be cut"),
        (_sharded(WHOLE), _sharded(SWAPPED, "row_wise"), "from column_wise to row_wise"),
        (_sharded(WHOLE), _sharded(SWAPPED, compute_kernel="fused_uvm"), "from fused to fused_uvm"),
        (_sharded(WHOLE), _sharded(SWAPPED, sharding_type="data_parallel", sharding_spec=None), "to data_parallel"),
    ],
)
def test_what_cannot_move_is_said(before, after, why):
    with pytest.raises(UserError, match=why):
        plan_difference(before, after)


def test_a_table_asked_for_in_columns_is_so_even_whole():
    said = {"a": ParameterConstraints(sharding_types=["column_wise"], min_partition=16)}
    plan = planner(constraints=said).plan(bags("a", "b"))
    assert {name: one.sharding_type for name, one in plan.plan[""].items()} == {"a": "column_wise", "b": "table_wise"}


def test_a_running_job_keeps_its_tables():
    fewer = _sharded(WHOLE)
    del fewer.plan["bags"]["c"]
    with pytest.raises(UserError, match=r"only one of the plans has bags\.c"):
        plan_difference(_sharded(WHOLE), fewer)


def _refused(rank):
    """Ask for what would fail in the middle: it is refused before anything moves."""
    job = _job(_sharded(WHOLE), EmbOptimType.EXACT_ADAGRAD)
    with pytest.raises(UserError, match="gloo sends no process its own"):
        reshard(_job(_sharded(WHOLE), EmbOptimType.EXACT_SGD), _sharded(CUT))
    with pytest.raises(UserError, match="'b' is cut into shards of 12 and 20 columns"):
        reshard(job, _sharded([*CUT[:1], (1, 12, 0), (1, 20, 1), *CUT[3:]]))
    job.module.bags.fused_optimizer.state_dict = lambda: {  # as Adam's, which FBGEMM has on GPUs only
        "state": {f"embedding_bags.{name}.weight": {f"{name}.momentum1": 0, f"{name}.exp_avg_sq": 0} for name in "abc"}
    }
    with pytest.raises(UserError, match=r"would lose a\.exp_avg_sq$"):
        reshard(job, _sharded(SWAPPED))
    assert job.plan.plan["bags"]["a"].ranks == [0]


def test_what_would_be_lost_is_refused():
    on_gloo(2, _refused)
