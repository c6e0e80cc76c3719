"""Small random tables and tasks, and small cost models that need no measurements."""

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets, Traffic
from neuroshard.models import CommModel, ComputeModel, CostModels, ReluHead, SumModel
from neuroshard.models.comm_models import NeuralComm
from neuroshard.models.compute_models import NeuralCompute
from neuroshard.models.features import FeatureSet
from neuroshard.models.stored import Mlp, Normaliser
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.tables import Table
from neuroshard.tables.reuse import TOUCHED_ONCE, zipf_reuse
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task
from neuroshard.words.topology import Topology

_BATCH_SIZE = 256
ONCE = TOUCHED_ONCE


@cache
def toy_tables(count: int, seed: int = 0, max_rows: int = 2000) -> tuple[Table, ...]:
    """Return small random tables with 4 to 64 columns and fewer than `max_rows` rows."""
    rng = np.random.default_rng(seed)
    return tuple(_toy_table(f"toy{i}", max_rows, rng) for i in range(count))


def _toy_table(name: str, max_rows: int, rng: np.random.Generator) -> Table:
    rows, pooling = int(rng.integers(2, max_rows)), float(rng.uniform(0.5, 8))
    reuse = zipf_reuse(rows, _BATCH_SIZE * pooling, 1.0)
    return Table(name, rows, int(rng.choice([4, 8, 16, 32, 64])), pooling, reuse)


def shared_task(count: int = 12, num_devices: int = 4, seed: int = 0) -> Task:
    """Return a task of toy tables, each read by 1 to 5 features."""
    task, rng = toy_task(count, num_devices, seed=seed), np.random.default_rng(seed)
    tables = tuple(replace(table, features=int(rng.integers(1, 6))) for table in task.tables)
    return replace(task, tables=tables, memory=MemoryUse("sgd", 1))


def sequence_task(count: int = 12, num_devices: int = 4, seed: int = 0, pooled: bool = True) -> Task:
    """Return a task of toy tables, of which every second one is a sequence table.
    If `pooled` is False, all tables are sequence tables.
    """
    task = toy_task(count, num_devices, seed=seed)
    tables = tuple(replace(table, pooled=pooled and i % 2 > 0) for i, table in enumerate(task.tables))
    return replace(task, tables=tables, memory=MemoryUse("sgd", 1))


def toy_task(count: int = 12, num_devices: int = 4, memory_bytes: int = 1 << 30, seed: int = 0) -> Task:
    """Return a task of `count` toy tables."""
    return Task(toy_tables(count, seed), Topology(num_devices, memory_bytes), _BATCH_SIZE)


def constrained_task(seed: int = 0, num_tables: int = 10) -> Task:
    """Return a task of 2 to 4 devices with a random mix of constraints that do not contradict each other."""
    rng, num_devices = np.random.default_rng(seed), 2 + seed % 3
    tables = toy_tables(num_tables, seed)
    names = [tables[i].name for i in rng.permutation(num_tables)]
    wide = max(tables, key=lambda table: table.dim)
    rules = [
        TableRule(names[0], devices=(int(rng.integers(num_devices)),)),
        TableRule(names[1], max_shards=1),
        TableRule(names[2], max_shards=2),
        *(TableRule(name, min_dim=12) for name in names[8:] if name != wide.name),
    ]
    pinned, together, apart = [], (names[3], names[4], names[5]), (names[6], names[7])
    if wide.name not in names[:6] and wide.dim >= 2 * DIM_MULTIPLE:
        if seed % 2:
            pinned = [PinnedShard(wide.name, DIM_MULTIPLE, (num_devices - 1,))]
        else:
            rules.append(TableRule(wide.name, min_shards=2))
    constraints = Constraints(tuple(rules), tuple(pinned), (together,), (apart,) if wide.name not in apart else ())
    use = MemoryUse(("sgd", "rowwise_adagrad", "adam")[seed % 3], batches_in_flight=seed % 2)
    total = int(use.device_bytes(Loads.of(tables, _BATCH_SIZE)).sum())
    memory = tuple(int(total * share) for share in rng.uniform(0.7, 1.5, size=num_devices))
    return Task(tables, Topology(num_devices, memory, total // 100), _BATCH_SIZE, use, constraints)


def cached_task(seed: int = 0, num_tables: int = 10) -> Task:
    """Return a task with tables of unequal widths and with scarce memory on each of 2 to 4 devices.
    Most of the tables must be cached, which means that the weights are in host memory and the device has a cache.
    """
    rng, num_devices, tables = np.random.default_rng(seed), 2 + seed % 3, toy_tables(num_tables, seed)
    tiers = rng.choice(["uvm_caching", "device", "uvm"], num_tables, p=[0.8, 0.1, 0.1])
    rules = tuple(TableRule(table.name, tiers=(str(tier),)) for table, tier in zip(tables, tiers, strict=True))
    roomy = Topology(num_devices, 1 << 30, host_memory_bytes=1 << 30)
    use = MemoryUse(("sgd", "rowwise_adagrad", "adam")[seed % 3], batches_in_flight=seed % 2)
    task = Task(tables, roomy, _BATCH_SIZE, use, Constraints(rules))
    alone = use.device_bytes(task.loads)
    memory = max(int(alone.sum() * rng.uniform(1.0, 2.0)) // num_devices, int(alone.max()))
    return replace(task, topology=replace(roomy, memory_bytes=memory))


@dataclass(frozen=True)
class LinearCompute(SumModel):
    """A compute model: a shard costs `per_table_ms` + `per_column_ms` * columns * lookups per sample, in ms.
    A table that is split into two shards thus costs `per_table_ms` twice.
    """

    head = ReluHead.of_cost()

    per_table_ms: float = 0.05
    per_column_ms: float = 0.01

    def embed(self, loads: Loads) -> Float32Array:
        """Return the cost of each of n shards in ms, (n, 1). `loads` has the n shards. Each row is a vector with one
        element, because a `SumModel` expects a vector for each shard.
        """
        cost = self.per_table_ms + self.per_column_ms * loads.dim * loads.pooling_factor
        return cost[:, None].astype(np.float32)


@dataclass(frozen=True)
class OpaqueCompute(ComputeModel):
    """A compute model that is not a sum over shards: the cost of the most expensive shard plus the root of the sum of
    squared costs.
    """

    def predict(self, sets: LoadSets) -> FloatArray:
        """Return the cost of each of B sets of shards, (B,) ms.
        First, `LinearCompute` gives a cost c for each shard. The cost of a set is then max(c) + sqrt(sum of c^2) over
        the shards of the set.
        """
        alone = LinearCompute().embed(sets.loads)[:, 0]
        by_set = np.split(alone, sets.counts.cumsum()[:-1])
        return np.array([float(costs.max() + np.sqrt((costs**2).sum())) if len(costs) else 0.0 for costs in by_set])


@dataclass(frozen=True)
class LinearComm(CommModel):
    """A toy model of exchanges: devices wait for the straggler, and then take a time in proportion to the columns of
    the device with the most columns.
    """

    devices: int
    per_column_ms: float = 0.002

    @property
    def num_devices(self) -> int:
        """D, the number of devices of the model."""
        return self.devices

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Return the transfer times of D devices in B exchanges, (B, D) ms, without the wait for the last device.
        The times are in proportion to the largest number of columns on a device.
        """
        widest = traffic.columns.max(axis=1, keepdims=True)
        return np.broadcast_to(self.per_column_ms * widest, wait_ms.shape)


def linear_models(num_devices: int = 4) -> CostModels:
    """Return cost models with predictions that are simple enough to compute by hand."""
    return CostModels(LinearCompute(), LinearComm(num_devices), LinearComm(num_devices), _BATCH_SIZE)


def random_models(num_devices: int = 4, seed: int = 0) -> CostModels:
    """Return cost models for `num_devices` devices that are neural networks with random weights."""
    rng = np.random.default_rng(seed)
    features = FeatureSet("log")
    count = len(features.columns)
    compute = NeuralCompute(
        features, random_normaliser(count, rng), random_mlp((count, 128, 32), rng), random_mlp((32, 64, 1), rng), 1.0
    )
    forward, backward = (
        NeuralComm(random_normaliser(2 * num_devices, rng), random_mlp((2 * num_devices, 32, num_devices), rng), 1.0)
        for _ in range(2)
    )
    return CostModels(compute, forward, backward, _BATCH_SIZE)


def random_normaliser(features: int, rng: np.random.Generator) -> Normaliser:
    """Return a normaliser for the inputs of a network, with a random mean and standard deviation for each input.
    `features` is the number of inputs.
    """
    return Normaliser(rng.normal(size=features), rng.uniform(1, 5, size=features))


def random_mlp(widths: tuple[int, ...], rng: np.random.Generator) -> Mlp:
    """Return a network with layers of these widths and random weights."""
    pairs = list(pairwise(widths))
    weights = tuple(rng.normal(size=pair, scale=pair[0] ** -0.5).astype(np.float32) for pair in pairs)
    return Mlp(weights, tuple(rng.uniform(0, 0.5, size=width).astype(np.float32) for _, width in pairs))
