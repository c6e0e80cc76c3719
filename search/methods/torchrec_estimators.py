"""Estimators and a performance model for TorchRec's planner. They predict costs by NeuroShard's cost models, and count
bytes of memory as NeuroShard counts them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torchrec.distributed.planner.planners import to_sharding_plan
from torchrec.distributed.planner.types import (
    Perf,
    PerfModel,
    ShardEstimator,
    ShardingOption,
    Storage,
    Topology,
)

from neuroshard.cost.loads import Loads, LoadSets, Traffic
from neuroshard.layouts import placed_loads
from neuroshard.models.simulator import Simulator
from neuroshard.tasks.task import Task
from neuroshard.torchrec.kernels import tier_assignment_of
from neuroshard.torchrec.sharding_plan import from_sharding_plan
from neuroshard.words.placement import Placement
from neuroshard.words.placement import Shard as PlanShard


def _loads(task: Task, options: Sequence[ShardingOption]) -> Loads:
    """Return the loads of all shards in TorchRec's sharding options. A load describes a shard as the input of the cost
    models, and does not depend on the device of the shard.
    """
    tables = {table.name: table for table in task.tables}
    placed = [
        Placement(PlanShard(number, shard.offset[1], shard.size[1], shard.offset[0], shard.size[0]), device, assignment)
        for number, option in enumerate(options)
        for assignment in [tier_assignment_of(option.name, option.compute_kernel, option.cache_params)]
        for device, shard in enumerate(option.shards)
    ]
    of_each = [tables[option.name] for option in options]
    return placed_loads(of_each, placed, task.batch_size, task.topology.num_devices)


class SimulatorPerfModel(PerfModel):
    """Rates the plans that TorchRec's planner proposes, by the predicted cost of NeuroShard's simulator, in ms."""

    def __init__(self, task: Task, simulator: Simulator) -> None:
        """Prepare to rate plans of `task`. The tables have the same names in the task as in the module that TorchRec's
        planner shards.
        """
        self._task = task
        self._simulator = simulator
        devices, host_size = task.topology.num_devices, task.topology.host_size
        self._topology = Topology(devices, "cpu", local_world_size=host_size, created_by_factory=True)

    def rate(self, plan: list[ShardingOption]) -> float:
        """Return the predicted cost of the plan, ms, which TorchRec's planner minimises."""
        ours = from_sharding_plan(self._task, to_sharding_plan(plan, self._topology))
        return self._simulator.cost(self._task, ours).total_ms


class SimulatorShardEstimator(ShardEstimator):
    """Estimates the times of each shard by NeuroShard's cost models, as if the shard were alone on a device.

    The compute time is the cost of the shard alone; the communication time is the share of the shard's columns in an
    even exchange. The field `bwd_compute` is 0, because our models predict forward and backward compute together.
    """

    def __init__(self, task: Task, simulator: Simulator) -> None:
        """Prepare to estimate shards of `task`. The tables have the same names in the task as in the module that
        TorchRec's planner shards.
        """
        self._task = task
        self._simulator = simulator

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: dict[str, Any]) -> None:
        """Set `perf`, the estimated times, of all shards in the sharding options."""
        task = self._task
        compute = self._simulator.models.compute.predict(LoadSets.alone(_loads(task, sharding_options)))
        forward, backward = _ms_per_column(self._simulator, task, task.output_columns / task.topology.num_devices)
        tables = {table.name: table for table in task.tables}
        shards = [(tables[option.name], shard) for option in sharding_options for shard in option.shards]
        for (table, shard), ms in zip(shards, compute.tolist(), strict=True):
            columns = table.with_dim(shard.size[1]).output_columns
            shard.perf = Perf(
                fwd_compute=ms, fwd_comms=forward * columns, bwd_compute=0.0, bwd_comms=backward * columns
            )


def _ms_per_column(simulator: Simulator, task: Task, columns: float) -> tuple[float, float]:
    """Return the time of a forward exchange and the time of a backward exchange, both in ms per column. In both
    exchanges, every device sends `columns` columns for each sample.
    """
    dims = np.full((1, task.topology.num_devices), columns)
    traffic = Traffic.of_columns(dims, task.batch_size, task.topology.fast_links)
    directions = simulator.communication(traffic, np.zeros_like(dims))
    forward, backward = (float(ms.max() / dims[0, 0]) for ms in directions)
    return forward, backward


class TaskStorageEstimator(ShardEstimator):
    """Estimates the bytes of each shard for TorchRec's planner. The bytes are counted as in a NeuroShard task, so that
    both planners have the same memory limits.
    """

    def __init__(self, task: Task) -> None:
        """Prepare to count the bytes of shards of `task`. The tables have the same names in the task as in the module
        that TorchRec's planner shards.
        """
        self._task = task

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: dict[str, Any]) -> None:
        """Set `storage`, the bytes of device and host memory, of all shards in the sharding options."""
        loads, memory = _loads(self._task, sharding_options), self._task.memory
        shards = [shard for option in sharding_options for shard in option.shards]
        sizes = zip(self._device_bytes(loads), memory.host_bytes(loads).tolist(), strict=True)
        for shard, (device, host) in zip(shards, sizes, strict=True):
            shard.storage = Storage(hbm=device, ddr=host)

    def _device_bytes(self, loads: Loads) -> list[int]:
        """Return the bytes of device memory that each of n shards takes, as a list. `loads` has the loads of the n
        shards. If a shard is cached, the rows of the cache are as wide as the shard, although FBGEMM's cache may be
        wider.
        """
        sizes: list[int] = self._task.memory.device_bytes(loads).tolist()
        return sizes


class WidestCacheStorageEstimator(TaskStorageEstimator):
    """Estimates the bytes of each shard, with cache rows as wide as the widest shard that could use the same cache. In
    FBGEMM, all cached tables of a kernel call use one cache, and the rows of this cache are as wide as the widest of
    these tables.

    A plan never takes more bytes.
    """

    def _device_bytes(self, loads: Loads) -> list[int]:
        """Return the bytes of device memory that each of n shards takes, as a list. `loads` has the loads of the n
        shards. Caches count as if all n shards were on one device, where cached shards of the same kernel use one
        cache. The rows of such a cache are as wide as the widest of the shards that use the cache.
        """
        sizes: list[int] = self._task.memory.bytes_with_caches(LoadSets(loads, np.array([len(loads)]))).tolist()
        return sizes
