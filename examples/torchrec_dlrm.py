"""Trains a small DLRM on CPUs with TorchRec, its tables sharded by NeuroShard:

torchrun --nproc-per-node=2 examples/torchrec_dlrm.py
"""

import argparse
import gc
import logging
from functools import partial

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper

from neuroshard.torchrec import NeuroShardPlanner, data_parallel_optimizer, dense_parameters

NUM_DENSE, DIM, BATCH_SIZE = 13, 64, 256  # samples of one process per step
ROWS = (200_000, 50_000, 20_000, 5_000, 1_000, 100)
LOOKUPS = (3, 1, 20, 5, 1, 1)  # per sample


def make_model() -> DLRMTrain:
    """Build the model; its tables are on the meta device, so they take no memory before they are sharded."""
    tables = [
        EmbeddingBagConfig(name=f"table{i}", num_embeddings=rows, embedding_dim=DIM, feature_names=[f"feature{i}"])
        for i, rows in enumerate(ROWS)
    ]
    collection = EmbeddingBagCollection(tables, device=torch.device("meta"))
    return DLRMTrain(DLRM(collection, NUM_DENSE, dense_arch_layer_sizes=[64, DIM], over_arch_layer_sizes=[64, 1]))


class Clicks:
    """Generates clicks that can be learned: they depend on a dense feature and on rows of the first table."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def batch(self) -> Batch:
        dense = torch.randn(BATCH_SIZE, NUM_DENSE, generator=self._generator)
        values = [
            torch.randint(rows, (BATCH_SIZE * lookups,), generator=self._generator)
            for rows, lookups in zip(ROWS, LOOKUPS, strict=True)
        ]
        lengths = torch.tensor(LOOKUPS).repeat_interleave(BATCH_SIZE)
        sparse = KeyedJaggedTensor(
            keys=[f"feature{i}" for i in range(len(ROWS))], values=torch.cat(values), lengths=lengths
        )
        score = dense[:, 0] + (values[0].view(BATCH_SIZE, -1) % 2).sum(dim=1) - LOOKUPS[0] / 2
        return Batch(dense, sparse, (score > 0).float())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("neuroshard").setLevel(logging.INFO)
    dist.init_process_group("gloo")
    train(steps)
    gc.collect()  # the model holds the process group's threads, which must end before Python does
    dist.destroy_process_group()


def train(steps: int) -> DistributedModelParallel:
    """Shard the model, train it for some steps, and return it."""
    torch.manual_seed(0)  # dense parameters must begin alike on every rank
    model = make_model()
    sharders = [EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 1.0})]
    topology = Topology(dist.get_world_size(), "cpu", ddr_cap=2 << 30, created_by_factory=True)
    constraints = {f"table{i}": ParameterConstraints(pooling_factors=[lookups]) for i, lookups in enumerate(LOOKUPS)}

    # Before: planner = EmbeddingShardingPlanner(topology=topology, batch_size=BATCH_SIZE, constraints=constraints)
    planner = NeuroShardPlanner(topology=topology, batch_size=BATCH_SIZE, constraints=constraints, data_parallel=True)

    plan = planner.collective_plan(model, sharders)
    sharded = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    optimizer = CombinedOptimizer(
        [
            sharded.fused_optimizer,  # tables with fused kernels
            data_parallel_optimizer(sharded),  # data-parallel tables: the same optimizer, outside the kernels
            KeyedOptimizerWrapper(dense_parameters(sharded), partial(torch.optim.SGD, lr=0.1)),
        ]
    )
    clicks = Clicks(seed=dist.get_rank())
    for step in range(steps):
        loss, _ = sharded(clicks.batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step % 20 == 0 or step == steps - 1):
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    return sharded


if __name__ == "__main__":
    main()
