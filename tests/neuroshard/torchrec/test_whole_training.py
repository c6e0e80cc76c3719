"""A model of every kind of tables, all planned here, trains as the unsharded model does; real gloo processes."""

from copy import deepcopy

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.torchrec import NeuroShardPlanner
from tests.kit.processes import on_gloo, shard_of

BATCH_SIZE, LEARNING_RATE, STEPS = 4, 0.01, 3
ROWS, DIM, MOST_LOOKUPS = 41, 8, 4
POOLED, WEIGHTED, SEQUENCES = ("a", "b"), ("w",), ("whole", "halved", "rows")
NAMES = (*POOLED, *WEIGHTED, *SEQUENCES)
FEATURES = {name: [f"f_{name}"] for name in NAMES} | {"b": ["f_b", "g_b"], "halved": ["f_halved", "g_halved"]}
KINDS = {"pooled": POOLED, "weighted": WEIGHTED, "sequences": SEQUENCES}
SERVED = {"whole": "table_wise", "halved": "column_wise", "rows": "row_wise"}


def _model(device):
    """Collections of a config each, by what they do; small layers over all of them."""

    def configs(kind, names):
        return [kind(name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=FEATURES[name]) for name in names]

    weighted = EmbeddingBagCollection(configs(EmbeddingBagConfig, WEIGHTED), is_weighted=True, device=device)
    processors = {f"f_{name}": PositionWeightedModule(MOST_LOOKUPS, device=device) for name in WEIGHTED}
    return _Model(
        EmbeddingBagCollection(configs(EmbeddingBagConfig, POOLED), device=device),
        FeatureProcessedEmbeddingBagCollection(weighted, processors),
        EmbeddingCollection(configs(EmbeddingConfig, SEQUENCES), device=device),
    )


class _Model(nn.Module):
    def __init__(self, pooled, weighted, sequences):
        super().__init__()
        self.pooled, self.weighted, self.sequences = pooled, weighted, sequences

    def forward(self, batches):
        pooled, weighted = self.pooled(batches["pooled"]), self.weighted(batches["weighted"])
        sequences = self.sequences(batches["sequences"])
        parts = [pooled[feature] for name in POOLED for feature in FEATURES[name]]
        parts += [weighted[feature] for name in WEIGHTED for feature in FEATURES[name]]
        parts += [sequences[feature].values() for name in SEQUENCES for feature in FEATURES[name]]
        return sum((part * torch.linspace(-1, 1, part.numel()).view_as(part)).square().sum() for part in parts)


def _batches(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    found = {}
    for kind, names in KINDS.items():
        keys = [feature for name in names for feature in FEATURES[name]]
        lengths = torch.randint(0, MOST_LOOKUPS + 1, (len(keys) * BATCH_SIZE,), generator=generator)
        values = torch.randint(ROWS, (int(lengths.sum()),), generator=generator)
        found[kind] = KeyedJaggedTensor(keys=keys, values=values, lengths=lengths)
    return found


def _weights(name):
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(NAMES.index(name)))


def _table_of(parameter):
    """The table that a parameter of this name is of; None if it is of none."""
    return next((part for part in parameter.split(".")[1:] if part in NAMES), None)


def _planner(world_size, keep):
    """One that lays out a sequence table in every form."""
    topology = Topology(world_size, "cpu", ddr_cap=1 << 24, local_world_size=2, created_by_factory=True)
    alone = {"whole": "table_wise", "rows": "row_wise", "a": "row_wise"}
    constraints = {name: ParameterConstraints(sharding_types=[kind]) for name, kind in alone.items()}
    rules = Constraints((TableRule("halved", min_shards=2, forms=("columns",)),))
    return NeuroShardPlanner(topology, BATCH_SIZE, "roofline:h100", constraints, rules=rules, keep=keep)


def _planned(rank, world_size, keep, model, sharders):
    """The plan, kept and read again."""
    planner = _planner(world_size, keep / f"{rank}.json")
    plan = planner.collective_plan(model, sharders)
    torch.distributed.barrier()
    assert [path.name for path in keep.iterdir()] == ["0.json"]
    again = _planner(world_size, keep / f"{rank}.json")
    assert again.collective_plan(model, sharders).plan == plan.plan
    assert again.last_plan == planner.last_plan
    assert {path: set(names) for path, names in plan.plan.items()} == {kind: set(its) for kind, its in KINDS.items()}
    assert {name: sharding.sharding_type for name, sharding in plan.plan["sequences"].items()} == SERVED
    assert plan.plan["pooled"]["a"].sharding_type == "row_wise"  # TorchRec's own planner has no rows of bags on CPUs
    assert [table.name for table in planner.last_plan.task.tables] == [*NAMES]  # on every rank
    assert planner.last_plan.violations == ()
    assert planner.last_cost.total_ms == planner.last_plan.prediction.cost_ms
    return plan


def _train(rank, world_size, keep):
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
    bags = EmbeddingBagCollectionSharder(fused_params=fused)
    sharders = [
        bags,
        FeatureProcessedEmbeddingBagCollectionSharder(bags),
        EmbeddingCollectionSharder(fused_params=fused),
    ]
    model = _model(torch.device("meta"))
    plan = _planned(rank, world_size, keep, model, sharders)
    sharded = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    for name, tensor in sharded.state_dict().items():
        for shard in tensor.local_shards() if hasattr(tensor, "local_shards") else ():
            shard.tensor.copy_(shard_of(_weights(_table_of(name)), shard))
    whole = _model(torch.device("cpu"))
    tables = {_table_of(name): parameter for name, parameter in whole.named_parameters() if _table_of(name)}
    for name, parameter in tables.items():
        parameter.data.copy_(_weights(name))
    for model in (whole, sharded):  # they are not trained: by whom is the user's choice
        (position,) = [p for name, p in model.named_parameters() if "position_weight" in name]
        position.data.copy_(torch.linspace(0.5, 2, MOST_LOOKUPS))
    optimizer, untrained = torch.optim.SGD(tables.values(), lr=LEARNING_RATE), deepcopy(whole)
    for step in range(STEPS):
        loss, expected = sharded(_batches(rank, step)), whole(_batches(rank, step))
        torch.testing.assert_close(loss, expected)
        optimizer.zero_grad()
        loss.backward()
        for other in range(world_size):  # gradients are averaged over the ranks
            (whole(_batches(other, step)) / world_size).backward()
        optimizer.step()
    assert not torch.allclose(untrained(_batches(rank, STEPS - 1)), expected)
    for name, tensor in sharded.state_dict().items():
        for shard in tensor.local_shards() if hasattr(tensor, "local_shards") else ():
            torch.testing.assert_close(shard.tensor, shard_of(tables[_table_of(name)].detach(), shard))
            assert not torch.equal(shard.tensor, shard_of(_weights(_table_of(name)), shard))


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_model_with_every_kind_of_tables_trains_as_the_whole_model_does(world_size, tmp_path):
    on_gloo(world_size, _train, world_size, tmp_path, local_world_size=2)
