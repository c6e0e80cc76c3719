"""Trains one small DLRM twice, on our plan and on that of TorchRec's planner: same losses, step times side by side.

usage: torchrun --nproc-per-node=2 benchmarks/dlrm_training.py [STEPS] [NUM_TABLES]

Both models live in the same processes and take turns, 10 steps each, on the same synthetic clicks. Where processes
share cores, a step costs what all devices compute together rather than what the slowest one does: both are printed.
"""

import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.models.dlrm import DLRM, DLRMTrain

from neuroshard.models import CostModels
from neuroshard.simulator import Simulator
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.tasks.task import Task
from neuroshard.tasks.task import Topology as PlanTopology
from neuroshard.torchrec import NeuroShardPlanner, from_sharding_plan

DIM, NUM_DENSE, BATCH_SIZE, TURN, WARM_UP = 32, 13, 1024, 10, 20
SHARDERS = [EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.05})]


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    num_tables = int(sys.argv[2]) if len(sys.argv) > 2 else 24
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    world_size = dist.get_world_size()
    tables = [t for t in dlrm_like(batch_size=BATCH_SIZE * world_size, dim=DIM, seed=3) if t.rows < 1_000_000]
    tables = tables[:num_tables]
    topology = Topology(world_size, "cpu", ddr_cap=8 << 30, created_by_factory=True)
    given = {
        table.name: ParameterConstraints(
            sharding_types=["table_wise", "column_wise"], min_partition=DIM // 2, pooling_factors=[table.pooling_factor]
        )
        for table in tables
    }
    planners = {
        "NeuroShard": NeuroShardPlanner(topology, BATCH_SIZE, constraints=given),
        "TorchRec": EmbeddingShardingPlanner(topology, BATCH_SIZE, constraints=given, stats=[], debug=False),
    }
    simulator = Simulator(CostModels.load("cpu"))
    whole = tuple(table.with_dim(DIM) for table in tables)
    task = Task(whole, PlanTopology(world_size, 8 << 30), BATCH_SIZE * world_size)
    trained = {name: _Trained(planner, tables, task, simulator) for name, planner in planners.items()}
    batches = _batches(tables, dist.get_rank())
    for start in range(0, steps, TURN):
        turn = [next(batches) for _ in range(TURN)]
        order = list(trained) if (start // TURN) % 2 == 0 else list(reversed(trained))
        for name in order:
            trained[name].train(turn)
    if dist.get_rank() == 0:
        _report(trained, world_size)
    dist.destroy_process_group()


class _Trained:
    """A sharded model with its optimizer, losses and step times."""

    def __init__(self, planner: object, tables: list, task: Task, simulator: Simulator) -> None:
        torch.manual_seed(0)
        configs = [
            EmbeddingBagConfig(name=t.name, num_embeddings=t.rows, embedding_dim=DIM, feature_names=[f"{t.name}_f"])
            for t in tables
        ]
        collection = EmbeddingBagCollection(configs, device=torch.device("meta"))
        model = DLRMTrain(DLRM(collection, NUM_DENSE, [64, DIM], [64, 1]))
        start = time.perf_counter()
        plan = planner.collective_plan(model, SHARDERS)
        self.planning_s = time.perf_counter() - start
        self.cost = simulator.cost(task, from_sharding_plan(task, plan))
        self.model = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=SHARDERS)
        self._load()
        rest = [p for name, p in self.model.named_parameters() if "embedding_bags" not in name]
        self.optimizer = torch.optim.SGD(rest, lr=0.05)
        self.losses: list[float] = []
        self.step_ms: list[float] = []

    def _load(self) -> None:
        """The same weights, however the tables are sharded."""
        for name, tensor in self.model.state_dict().items():
            if "embedding_bags" not in name:
                continue
            rows, dim = tensor.shape
            generator = torch.Generator().manual_seed(sum(map(ord, name)))
            whole = (torch.rand(rows, dim, generator=generator) - 0.5) * 2 * rows**-0.5
            for shard in tensor.local_shards():
                first, columns = shard.metadata.shard_offsets[1], shard.metadata.shard_sizes[1]
                shard.tensor.copy_(whole[:, first : first + columns])

    def train(self, batches: list[Batch]) -> None:
        for batch in batches:
            dist.barrier()
            start = time.perf_counter()
            loss, _ = self.model(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            dist.barrier()
            self.step_ms.append((time.perf_counter() - start) * 1e3)
            self.losses.append(loss.item())


def _batches(tables: list, rank: int) -> Iterator[Batch]:
    """Clicks that depend on one dense feature and on the rows of the first tables; lookups are skewed."""
    generator = torch.Generator().manual_seed(rank)
    lookups = [max(round(table.pooling_factor), 1) for table in tables]
    lengths = torch.tensor(lookups).repeat_interleave(BATCH_SIZE)
    keys = [f"{table.name}_f" for table in tables]
    while True:
        dense = torch.randn(BATCH_SIZE, NUM_DENSE, generator=generator)
        values = [
            (torch.rand(BATCH_SIZE * count, generator=generator) ** 3 * table.rows).long()
            for table, count in zip(tables, lookups, strict=True)
        ]
        hints = [(part.view(BATCH_SIZE, -1) % 2).float().mean(dim=1) - 0.5 for part in values[:5]]
        clicked = (dense[:, 0] + torch.stack(hints).sum(dim=0) > 0).float()
        yield Batch(dense, KeyedJaggedTensor(keys, torch.cat(values), lengths=lengths), clicked)


def _report(trained: dict[str, _Trained], world_size: int) -> None:
    print(f"{world_size} processes, {len(trained['TorchRec'].losses)} steps each")
    print(
        "| plan by | planning, s | predicted plan cost, ms | compute of all devices, ms | step ms, median (quartiles) "
        "| first loss | last loss, mean of 20 |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, run in trained.items():
        low, middle, high = np.percentile(run.step_ms[WARM_UP:], [25, 50, 75])
        print(
            f"| {name} | {run.planning_s:.2f} | {run.cost.total_ms:.2f} | {run.cost.compute.sum():.2f} "
            f"| {middle:.2f} ({low:.2f} to {high:.2f}) | {run.losses[0]:.6f} | {np.mean(run.losses[-20:]):.6f} |"
        )
    ours, theirs = (np.array(run.losses) for run in trained.values())
    print(f"largest difference between the losses of a step: {np.abs(ours - theirs).max():.2e}")
    pairs = [np.reshape(run.step_ms[WARM_UP:], (-1, TURN)).mean(axis=1) for run in trained.values()]
    ratio = pairs[0] / pairs[1]
    print(f"step time, ours over TorchRec's, turn by turn: median {np.median(ratio):.3f}, mean {ratio.mean():.3f}")


if __name__ == "__main__":
    main()
