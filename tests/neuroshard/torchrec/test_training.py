"""DistributedModelParallel on our plans computes what the unsharded module computes; real gloo processes."""

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import distributed as dist
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

from neuroshard.layouts import in_columns, in_copies, in_rows
from neuroshard.plans.plan import Plan, assemble
from neuroshard.stages.search.space.homes import rehomed
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE
from neuroshard.torchrec import to_sharding_plan
from neuroshard.words.form import Form
from neuroshard.words.placement import Home, Tier
from tests.kit.processes import on_gloo, shard_of
from tests.kit.torchrec_models import bag

SHAPES = {"a": (50, 16), "b": (30, 32), "c": (7, 64)}
FEATURES = {"a": ["f_a"], "b": ["f_b", "g_b"], "c": ["f_c"]}  # two features share b
NAMES = [name for names in FEATURES.values() for name in names]
BATCH_SIZE, LEARNING_RATE = 8, 0.5

# (table, dim, device) for 2 devices; on 4, the same with two devices left empty, and one plan over all.
PLANS = {
    "table-wise": [(0, 16, 0), (1, 32, 1), (2, 64, 0)],
    "equal columns": [(0, 16, 1), (1, 16, 0), (1, 16, 1), (2, 32, 0), (2, 32, 1)],
    "unequal columns": [(0, 4, 1), (0, 12, 0), (1, 28, 0), (1, 4, 1), (2, 20, 1), (2, 44, 0)],
    "an empty device": [(0, 16, 1), (1, 32, 1), (2, 64, 1)],
}
HOMES = (Home(Tier.CACHED, 0.5), Home(Tier.HOST), Home(Tier.CACHED, 0.1))  # FBGEMM keeps no caches on CPU
WIDE = {"over all four": [(0, 16, 3), (1, 8, 0), (1, 24, 2), (2, 4, 0), (2, 12, 1), (2, 40, 2), (2, 8, 3)]}


def _formed(task):
    """Plans with rows and copies for any number of devices: (placements of the tables) by name."""
    everywhere = range(task.topology.num_devices)
    rows, copies = [in_rows(task, i, everywhere) for i in range(3)], [in_copies(task, i) for i in range(3)]
    return {
        "rows": [*rows[0], *rows[1], *rows[2]],
        "copies": [*copies[0], *copies[1], *copies[2]],
        "rows, copies and columns": [*rows[0], *copies[1], *in_columns(task, [(2, 20, 1), (2, 44, 0)])],
        "rows of what two features share": [*in_columns(task, [(0, 16, 1)]), *rows[1], *copies[2]],
    }


def _formed_on_hosts(task):
    """The same for two hosts of two devices."""
    second = in_rows(task, 2, [2, 3])
    grid = [*in_rows(task, 1, [2, 3], (0, 16)), *in_rows(task, 1, [0, 1], (16, 32))]
    return {
        "rows of a host": [*in_rows(task, 0, [0, 1]), *in_columns(task, [(1, 32, 3)]), *second],
        "a grid": [*in_columns(task, [(0, 4, 3), (0, 12, 0)]), *grid, *in_copies(task, 2)],
        "all forms": [*in_rows(task, 0, range(4)), *grid, *second],
    }


def _collection(device="cpu"):
    configs = [bag(name, *shape, FEATURES[name]) for name, shape in SHAPES.items()]
    return EmbeddingBagCollection(configs, device=torch.device(device))


def _weights():
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(rows, dim, generator=generator) for name, (rows, dim) in SHAPES.items()}


def _batch(rank):
    generator = torch.Generator().manual_seed(100 + rank)
    lengths = torch.randint(0, 5, (len(NAMES) * BATCH_SIZE,), generator=generator)
    counts = lengths.view(len(NAMES), -1).sum(dim=1).tolist()
    rows = [SHAPES[table][0] for table, names in FEATURES.items() for _ in names]
    values = [torch.randint(most, (n,), generator=generator) for n, most in zip(counts, rows, strict=True)]
    return KeyedJaggedTensor(keys=NAMES, values=torch.cat(values), lengths=lengths)


def _loss(output):
    """Every element counts differently."""
    pooled = [output[name] for name in NAMES]  # a sharded module orders its features as it likes
    return sum((part * torch.linspace(-1, 1, part.numel()).view_as(part)).sum() for part in pooled)


def _train(rank, world_size, plan):
    """Compare one step of the sharded module with one of the whole module."""
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
    sharded = DistributedModelParallel(
        _collection("meta"),
        device=torch.device("cpu"),
        plan=to_sharding_plan(plan, compute_device="cpu"),
        sharders=[EmbeddingBagCollectionSharder(fused_params=fused)],
    )
    whole, weights = _collection(), _weights()
    for name, table in whole.embedding_bags.items():
        table.weight.data.copy_(weights[name])
    state = {name.split(".")[-2]: tensor for name, tensor in sharded.state_dict().items()}
    copies = {name: tensor for name, tensor in state.items() if plan.forms[list(SHAPES).index(name)] is Form.COPIES}
    shards = [(name, shard) for name in state.keys() - copies for shard in state[name].local_shards()]
    for name, shard in shards:
        shard.tensor.copy_(shard_of(weights[name], shard))
    for name, tensor in copies.items():
        tensor.copy_(weights[name])

    output, expected = sharded(_batch(rank)), whole(_batch(rank))
    given = {name: output[name] + 0 for name in NAMES}  # waits for it
    close = {"rtol": 1e-5, "atol": 1e-5} if Form.ROWS in plan.forms else {"rtol": 0, "atol": 0}  # sums in other orders
    for name in NAMES:
        torch.testing.assert_close(given[name], expected[name], **close)
    _loss(output).backward()
    for other in range(world_size):  # gradients are averaged over the ranks
        (_loss(whole(_batch(other))) / world_size).backward()
    for name, shard in shards:
        weight = whole.embedding_bags[name].weight
        after = weight.detach() - LEARNING_RATE * weight.grad
        assert not torch.equal(shard.tensor, shard_of(weights[name], shard))
        torch.testing.assert_close(shard.tensor, shard_of(after, shard))
    trained = {name.split(".")[-2]: parameter for name, parameter in sharded.named_parameters()}
    for name in copies:  # their optimizer is the user's own: what it is given is everybody's gradient
        torch.testing.assert_close(trained[name].grad, whole.embedding_bags[name].weight.grad)
        assert trained[name].grad.abs().max() > 0
    assert len(shards) + len(copies) == sum(placed.device == rank for placed in plan.placements)
    dist.barrier()


def _train_all(rank, world_size, plans):
    for name, plan in plans.items():
        try:
            _train(rank, world_size, plan)
        except Exception as error:
            error.add_note(f"plan: {name}")
            raise


@pytest.mark.parametrize(("world_size", "placed"), [pytest.param(2, PLANS, marks=pytest.mark.slow), (4, PLANS | WIDE)])
def test_sharded_training_computes_what_the_whole_module_does(world_size, placed):
    tables = tuple(Table(name, rows, dim, 2.0, ONCE) for name, (rows, dim) in SHAPES.items())
    task = Task(tables, Topology(world_size, 1 << 30, devices_per_host=2), BATCH_SIZE * world_size)
    plans = {name: assemble(task, places) for name, places in placed.items()}
    formed = _formed(task) | (_formed_on_hosts(task) if world_size == 4 else {})
    plans |= {name: Plan(task, tuple(places)) for name, places in formed.items()}
    rows = Plan(task, (*formed["rows"][:-world_size], *in_columns(task, [(2, 20, 1), (2, 44, 0)])))
    plans["behind caches and in host memory"] = rehomed(rows, task, HOMES)
    on_gloo(world_size, _train_all, world_size, plans, local_world_size=2)
