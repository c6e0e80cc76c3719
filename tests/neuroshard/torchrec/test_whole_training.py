"""A model of several kinds of modules, planned by two, trains as the unsharded model does; real gloo processes."""

import os
import socket
import traceback
from copy import deepcopy

import torch
from torch import nn

from neuroshard.hardware.workers import forked_warm
from neuroshard.testing import PATIENCE_S

WORLD_SIZE, BATCH_SIZE, LEARNING_RATE, STEPS = 2, 4, 0.01, 3
ROWS, DIM, MOST_LOOKUPS = 40, 8, 4
POOLED, WEIGHTED, SEQUENCES = ("a", "b"), ("w",), ("s",)
NAMES = (*POOLED, *WEIGHTED, *SEQUENCES)


def _model(device):
    """Collections of a config each, by what they do; small layers over all of them."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
    from torchrec.modules.feature_processor_ import PositionWeightedModule
    from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

    def bags(names, is_weighted):
        configs = [
            EmbeddingBagConfig(name=n, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[f"f_{n}"]) for n in names
        ]
        return EmbeddingBagCollection(configs, device=device, is_weighted=is_weighted)

    sequences = [
        EmbeddingConfig(name=n, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[f"f_{n}"]) for n in SEQUENCES
    ]
    processors = {f"f_{name}": PositionWeightedModule(MOST_LOOKUPS, device=device) for name in WEIGHTED}
    return _Model(
        bags(POOLED, False),
        FeatureProcessedEmbeddingBagCollection(bags(WEIGHTED, True), processors),
        EmbeddingCollection(sequences, device=device),
    )


class _Model(nn.Module):
    def __init__(self, pooled, weighted, sequences):
        super().__init__()
        self.pooled, self.weighted, self.sequences = pooled, weighted, sequences

    def forward(self, batches):
        pooled, weighted = self.pooled(batches["pooled"]), self.weighted(batches["weighted"])
        sequences = self.sequences(batches["sequences"])
        parts = [pooled[f"f_{name}"] for name in POOLED] + [weighted[f"f_{name}"] for name in WEIGHTED]
        parts += [sequences[f"f_{name}"].values() for name in SEQUENCES]
        return sum((part * torch.linspace(-1, 1, part.numel()).view_as(part)).square().sum() for part in parts)


def _batches(rank, step):
    from torchrec import KeyedJaggedTensor

    generator = torch.Generator().manual_seed(100 * step + rank)
    found = {}
    for kind, names in (("pooled", POOLED), ("weighted", WEIGHTED), ("sequences", SEQUENCES)):
        lengths = torch.randint(1, MOST_LOOKUPS + 1, (len(names) * BATCH_SIZE,), generator=generator)
        values = torch.randint(ROWS, (int(lengths.sum()),), generator=generator)
        found[kind] = KeyedJaggedTensor(keys=[f"f_{name}" for name in names], values=values, lengths=lengths)
    return found


def _weights(name):
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(NAMES.index(name)))


def _table_of(parameter):
    """The table that a parameter of this name is of; None if it is of none."""
    return next((part for part in parameter.split(".") if part in NAMES), None)


def _planner(keep):
    from torchrec.distributed.planner import ParameterConstraints, Topology

    from neuroshard.torchrec import NeuroShardPlanner

    topology = Topology(WORLD_SIZE, "cpu", ddr_cap=1 << 24, local_world_size=WORLD_SIZE, created_by_factory=True)
    constraints = {name: ParameterConstraints(sharding_types=["table_wise"]) for name in SEQUENCES}  # of one optimizer
    return NeuroShardPlanner(topology, BATCH_SIZE, "roofline:h100", constraints, keep=keep)


def _train(rank, keep):
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder

    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
    bags = EmbeddingBagCollectionSharder(fused_params=fused)
    sharders = [
        bags,
        FeatureProcessedEmbeddingBagCollectionSharder(bags),
        EmbeddingCollectionSharder(fused_params=fused),
    ]
    model = _model(torch.device("meta"))
    planner = _planner(keep / f"{rank}.json")
    plan = planner.collective_plan(model, sharders)
    torch.distributed.barrier()
    assert [path.name for path in keep.iterdir()] == ["0.json"]
    again = _planner(keep / f"{rank}.json")
    assert again.collective_plan(model, sharders).plan == plan.plan
    assert again.last_plan == planner.last_plan
    assert {path: set(names) for path, names in plan.plan.items()} == {
        "pooled": set(POOLED), "weighted": set(WEIGHTED), "sequences": set(SEQUENCES)
    }  # fmt: skip
    assert [table.name for table in planner.last_plan.task.tables] == [*POOLED, *WEIGHTED]  # on every rank
    assert planner.last_cost.total_ms == planner.last_plan.prediction.cost_ms
    sharded = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    for name, tensor in sharded.state_dict().items():
        for shard in tensor.local_shards() if hasattr(tensor, "local_shards") else ():
            column, columns = shard.metadata.shard_offsets[1], shard.metadata.shard_sizes[1]
            shard.tensor.copy_(_weights(_table_of(name))[:, column : column + columns])
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
        for other in range(WORLD_SIZE):  # gradients are averaged over the ranks
            (whole(_batches(other, step)) / WORLD_SIZE).backward()
        optimizer.step()
    assert not torch.allclose(untrained(_batches(rank, STEPS - 1)), expected)


def _process(rank, port, keep, failures):
    try:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(WORLD_SIZE)}
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE)
        _train(rank, keep)
    except Exception:
        failures.put(f"rank {rank}: {traceback.format_exc()}")
    finally:
        failures.put(None)


def test_a_model_planned_by_two_trains_as_the_whole_model_does(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = forked_warm()
    failures = context.Queue()
    processes = [
        context.Process(target=_process, args=(rank, port, tmp_path, failures), daemon=True)
        for rank in range(WORLD_SIZE)
    ]
    for process in processes:
        process.start()
    said = [failures.get(timeout=PATIENCE_S)]
    while sum(text is None for text in said) < WORLD_SIZE:
        said.append(failures.get(timeout=PATIENCE_S))
    for process in processes:
        process.join(timeout=PATIENCE_S)
        process.kill()
    assert [text for text in said if text is not None] == []
    assert [process.exitcode for process in processes] == [0] * WORLD_SIZE
