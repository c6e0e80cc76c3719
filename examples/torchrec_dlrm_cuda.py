"""Trains a DLRM on GPUs in TorchRec's pipeline, its tables sharded by NeuroShard, one process for each GPU:

torchrun --nproc-per-node=8 examples/torchrec_dlrm_cuda.py
"""

import argparse
import gc
import logging
import os
import time
from functools import partial

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.datasets.random import RandomRecDataset
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.types import TopologyFactory, TrainerConfig
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper

from neuroshard.torchrec import NeuroShardPlanner, data_parallel_optimizer, dense_parameters

NUM_DENSE, DIM, BATCH_SIZE = 13, 128, 8192  # samples of one GPU per step
ROWS = (40_000_000, 20_000_000, 10_000_000, 3_000_000, 500_000, 100_000, 40_000, 10_000, 3_000, 1_000, 100, 10)
LOOKUPS = (3, 20, 1, 50, 10, 2, 5, 1, 1, 10, 1, 1)  # per sample
DENSE_LAYERS, OVER_LAYERS = [512, 256, DIM], [1024, 1024, 512, 256, 1]
DENSE_MS = 5  # time of the dense network on one GPU, forward, backward and update: take yours from a profile
MODELS = "h100"  # cost models of an H100; for other GPUs see docs/how-to/adapt_models.md


def make_model() -> DLRMTrain:
    """Build the model; its tables are on the meta device, so they take no memory before they are sharded."""
    tables = [
        EmbeddingBagConfig(name=f"table{i}", num_embeddings=rows, embedding_dim=DIM, feature_names=[f"feature{i}"])
        for i, rows in enumerate(ROWS)
    ]
    collection = EmbeddingBagCollection(tables, device=torch.device("meta"))
    return DLRMTrain(DLRM(collection, NUM_DENSE, DENSE_LAYERS, OVER_LAYERS))


def make_sharders() -> list[EmbeddingBagCollectionSharder]:
    """Build the sharders with the optimizer of the tables, which FBGEMM fuses into the backward pass."""
    adagrad = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.01}
    return [EmbeddingBagCollectionSharder(fused_params=adagrad)]


def make_planner(topology: Topology) -> NeuroShardPlanner:
    """Build the planner: it knows the dense network's time, the pipeline, and that data-parallel tables are trained."""
    constraints = {f"table{i}": ParameterConstraints(pooling_factors=[lookups]) for i, lookups in enumerate(LOOKUPS)}
    return NeuroShardPlanner(
        topology,
        BATCH_SIZE,
        models=MODELS,
        dense_ms=DENSE_MS,
        constraints=constraints,
        data_parallel=True,
        pipeline="sparse_dist",
    )


def train(topology: Topology, device: torch.device, steps: int) -> DistributedModelParallel:
    """Shard the model, train it for some steps, and return it."""
    torch.manual_seed(0)  # dense parameters must begin alike on every rank
    model, sharders = make_model(), make_sharders()
    plan = make_planner(topology).collective_plan(model, sharders)
    sharded = DistributedModelParallel(model, device=device, plan=plan, sharders=sharders)
    optimizer = CombinedOptimizer(
        [
            sharded.fused_optimizer,  # tables with fused kernels
            data_parallel_optimizer(sharded),  # data-parallel tables: the same optimizer, outside the kernels
            KeyedOptimizerWrapper(dense_parameters(sharded), partial(torch.optim.Adam, lr=1e-3)),
        ]
    )
    batches = iter(
        RandomRecDataset(
            keys=[f"feature{i}" for i in range(len(ROWS))],
            batch_size=BATCH_SIZE,
            hash_sizes=list(ROWS),
            ids_per_features=list(LOOKUPS),
            num_dense=NUM_DENSE,
            manual_seed=dist.get_rank(),
        )
    )
    pipeline = TrainPipelineSparseDist(sharded, optimizer, device)
    begin = time.perf_counter()
    for step in range(1, steps + 1):
        loss, _, _ = pipeline.progress(batches)
        if dist.get_rank() == 0 and (step % 20 == 0 or step == steps):
            ms = 1000 * (time.perf_counter() - begin) / step
            print(f"step {step}: loss {loss.item():.4f}, {ms:.1f} ms per step", flush=True)
    return sharded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("neuroshard").setLevel(logging.INFO)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    hosts = {"local_world_size": int(os.environ["LOCAL_WORLD_SIZE"])}
    memory = torch.cuda.get_device_properties(device).total_memory
    config = TrainerConfig(dist.get_world_size(), hbm_cap_bytes=memory, **hosts)
    train(TopologyFactory.create_topology(config), device, steps)
    gc.collect()  # the model holds the process group's threads, which must end before Python does
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
