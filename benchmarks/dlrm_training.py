"""Trains one small model on several plans, ours and TorchRec's planner's: same losses, step times side by side.

usage: torchrun --nproc-per-node=2 benchmarks/dlrm_training.py [KIND] [STEPS] [MODEL]

KIND: papers, small or hot, a DLRM of such tables; whole, a model that has weighted and sequence tables too, which MODEL
must know (roofline:h100 does).

All models live in the same processes and take turns, 10 steps each, on the same synthetic clicks. Where processes
share cores, a step costs what all devices compute together rather than what the slowest one does: both are printed.
TorchRec's planner leaves rows out on CPU; what it plans for GPUs with all its types, by its own estimates, stands
beside it (the best of its settings by our models), where all tables are pooled.
"""

import sys
import time
from collections.abc import Iterator, Mapping

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.types import ShardingPlan, ShardingPlanner
from torchrec.models.dlrm import DLRM, DLRMTrain
from whole_model import WholeModel, features_of, is_weighted, lookups_of, whole_tables

from neuroshard.models import CostModels
from neuroshard.plans.form import FORMS, Form
from neuroshard.simulator import Simulator
from neuroshard.stages.search.methods.torchrec import TorchRecSearch
from neuroshard.tables import Table
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.tables.reuse import zipf_reuse
from neuroshard.tasks.task import Task
from neuroshard.tasks.task import Topology as PlanTopology
from neuroshard.torchrec import NeuroShardPlanner, from_sharding_plan

DIM, NUM_DENSE, BATCH_SIZE, TURN, WARM_UP = 32, 13, 1024, 10, 20
MEMORY_BYTES = 8 << 30
FUSED = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.05}
BAGS = EmbeddingBagCollectionSharder(fused_params=FUSED)
SHARDERS = [
    BAGS,
    FeatureProcessedEmbeddingBagCollectionSharder(BAGS),
    EmbeddingCollectionSharder(fused_params=FUSED),
]
IN_COLUMNS = ("table_wise", "column_wise")
ALL_TYPES = (*IN_COLUMNS, "row_wise", "data_parallel")


def main() -> None:
    kind = sys.argv[1] if len(sys.argv) > 1 else "papers"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    model = sys.argv[3] if len(sys.argv) > 3 else "cpu"
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    world_size = dist.get_world_size()
    tables = _tables(kind, BATCH_SIZE * world_size)
    simulator = Simulator(CostModels.load(model))
    task = Task(tables, PlanTopology(world_size, MEMORY_BYTES), BATCH_SIZE * world_size)
    trained = {
        name: _Trained(planner, task, simulator) for name, planner in _planners(tables, world_size, model).items()
    }
    batches = _batches(tables, dist.get_rank())
    for start in range(0, steps, TURN):
        turn = [next(batches) for _ in range(TURN)]
        order = list(trained) if (start // TURN) % 2 == 0 else list(reversed(trained))
        for name in order:
            trained[name].train(turn)
    if dist.get_rank() == 0:
        _report(trained, kind, world_size)
    dist.destroy_process_group()


def _tables(kind: str, batch_size: int) -> tuple[Table, ...]:
    """The papers' kind; small ones; every kind; or some of the papers' and one looked up more than these together."""
    if kind == "whole":
        return whole_tables(batch_size, DIM)
    like = tuple(t for t in dlrm_like(batch_size=batch_size, dim=DIM, seed=3) if t.rows < 1_000_000)
    if kind == "papers":
        return like[:24]
    if kind == "hot":
        return (_table("hot", 1_000_000, 100, batch_size), *like[:8])
    rng = np.random.default_rng(0)
    shapes = [(int(10 ** rng.uniform(1, 3.7)), int(rng.integers(1, 6))) for _ in range(40)]
    return tuple(_table(f"small{i}", *shape, batch_size) for i, shape in enumerate(shapes))


def _table(name: str, rows: int, lookups: int, batch_size: int) -> Table:
    return Table(name, rows, DIM, lookups, zipf_reuse(rows, batch_size * lookups))


def _planners(tables: tuple[Table, ...], world_size: int, model: str) -> Mapping[str, ShardingPlanner]:
    topology = Topology(world_size, "cpu", ddr_cap=MEMORY_BYTES, created_by_factory=True)
    columns, every = _constraints(tables, IN_COLUMNS), _constraints(tables, ALL_TYPES)
    planners = {
        "NeuroShard, columns": NeuroShardPlanner(topology, BATCH_SIZE, model, columns),
        "NeuroShard, all forms": NeuroShardPlanner(topology, BATCH_SIZE, model, every),
        "TorchRec": EmbeddingShardingPlanner(topology, BATCH_SIZE, constraints=every, stats=[], debug=False),
    }
    if all(table.pooled for table in tables):
        on_gpus = TorchRecSearch(forms=FORMS)
        planners["TorchRec, as for GPUs"] = NeuroShardPlanner(topology, BATCH_SIZE, model, every, searcher=on_gpus)
    return planners


def _constraints(tables: tuple[Table, ...], types: tuple[str, ...]) -> dict[str, ParameterConstraints]:
    return {
        table.name: ParameterConstraints(
            sharding_types=[kind for kind in types if kind in _served(table)],
            min_partition=DIM // 2,
            pooling_factors=[table.pooling_factor / table.features] * table.features,
        )
        for table in tables
    }


def _served(table: Table) -> tuple[str, ...]:
    """What TorchRec serves on CPU: weighted tables in columns, sequence tables in rows too, others in every form."""
    if not table.pooled:
        return (*IN_COLUMNS, "row_wise")
    return IN_COLUMNS if is_weighted(table) else ALL_TYPES


def _model(tables: tuple[Table, ...]) -> nn.Module:
    if not all(table.pooled for table in tables):
        return WholeModel(tables, NUM_DENSE, DIM)
    configs = [
        EmbeddingBagConfig(name=t.name, num_embeddings=t.rows, embedding_dim=DIM, feature_names=features_of(t))
        for t in tables
    ]
    collection = EmbeddingBagCollection(configs, device=torch.device("meta"))
    return DLRMTrain(DLRM(collection, NUM_DENSE, [64, DIM], [64, 1]))


def _table_of(parameter: str) -> str | None:
    """The table that a parameter is the weights of, by their names; None for others."""
    parts = parameter.split(".")
    return parts[-2] if {"embedding_bags", "embeddings"}.intersection(parts) else None


class _Trained:
    """A sharded model with its optimizer, losses and step times."""

    def __init__(self, planner: ShardingPlanner, task: Task, simulator: Simulator) -> None:
        torch.manual_seed(0)
        model = _model(task.tables)
        start = time.perf_counter()
        plan: ShardingPlan = planner.collective_plan(model, SHARDERS)
        self.planning_s = time.perf_counter() - start
        found = from_sharding_plan(task, plan)
        self.cost = simulator.cost(task, found)
        self.forms = [found.forms.count(form) for form in Form]
        self.model = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=SHARDERS)
        self._load()
        trained = {table.name for table, form in zip(task.tables, found.forms, strict=True) if form is Form.COPIES}
        trained.add(None)  # what is no table, but for weights of positions
        named = self.model.named_parameters()
        rest = [p for name, p in named if _table_of(name) in trained and "position_weight" not in name]
        self.optimizer = torch.optim.SGD(rest, lr=0.05)
        self.losses: list[float] = []
        self.step_ms: list[float] = []

    def _load(self) -> None:
        """The same weights, however the tables are sharded."""
        for name, tensor in self.model.state_dict().items():
            if _table_of(name) is None:
                continue
            rows, dim = tensor.shape
            generator = torch.Generator().manual_seed(sum(map(ord, name)))
            whole = (torch.rand(rows, dim, generator=generator) - 0.5) * 2 * rows**-0.5
            if not hasattr(tensor, "local_shards"):  # a copy
                tensor.copy_(whole)
                continue
            for shard in tensor.local_shards():
                (row, column), (count, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.copy_(whole[row : row + count, column : column + columns])

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


def _batches(tables: tuple[Table, ...], rank: int) -> Iterator[Batch]:
    """Clicks that depend on one dense feature and on the rows of the first tables; lookups are skewed."""
    generator = torch.Generator().manual_seed(rank)
    read = [(key, lookups_of(table), table.rows) for table in tables for key in features_of(table)]
    keys, lookups, _ = zip(*read, strict=True)
    lengths = torch.tensor(lookups).repeat_interleave(BATCH_SIZE)
    while True:
        dense = torch.randn(BATCH_SIZE, NUM_DENSE, generator=generator)
        values = [(torch.rand(BATCH_SIZE * count, generator=generator) ** 3 * rows).long() for _, count, rows in read]
        hints = [(part.view(BATCH_SIZE, -1) % 2).float().mean(dim=1) - 0.5 for part in values[:5]]
        clicked = (dense[:, 0] + torch.stack(hints).sum(dim=0) > 0).float()
        yield Batch(dense, KeyedJaggedTensor(list(keys), torch.cat(values), lengths=lengths), clicked)


def _report(trained: dict[str, _Trained], kind: str, world_size: int) -> None:
    first = next(iter(trained.values()))
    print(f"{kind}: {world_size} processes, {len(first.losses)} steps each")
    print(
        "| plan by | columns, rows, copies | planning, s | predicted plan cost, ms | compute of all devices, ms "
        "| step ms, median (quartiles) | over the first, turn by turn | last loss, mean of 20 |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, run in trained.items():
        low, middle, high = np.percentile(run.step_ms[WARM_UP:], [25, 50, 75])
        ratio = np.median(_turns(run) / _turns(first))
        print(
            f"| {name} | {', '.join(map(str, run.forms))} | {run.planning_s:.2f} | {run.cost.total_ms:.2f} "
            f"| {run.cost.compute.sum():.2f} | {middle:.2f} ({low:.2f} to {high:.2f}) | {ratio:.3f} "
            f"| {np.mean(run.losses[-20:]):.6f} |"
        )
    losses = np.array([run.losses for run in trained.values()])
    print(f"largest difference between the losses of a step: {np.ptp(losses, axis=0).max():.2e}")


def _turns(run: _Trained) -> np.ndarray:
    """Mean ms of a step in each turn."""
    return np.reshape(run.step_ms[WARM_UP:], (-1, TURN)).mean(axis=1)


if __name__ == "__main__":
    main()
