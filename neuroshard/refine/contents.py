"""What devices hold where tables are placed at random or by simple rules: contents on which models may be in doubt."""

from collections.abc import Callable, Sequence

import numpy as np

from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.records.samples import ComputeSample
from neuroshard.tables import Table
from neuroshard.tasks.task import Task

_WHOLE_SHARE = 0.6  # of tables that are not cut; of the others, so many are cut once
_SCORES: tuple[Callable[[Table], float], ...] = (
    lambda table: float(table.size_bytes),
    lambda table: float(table.dim),
    lambda table: table.dim * table.pooling_factor,
)


def random_contents(task: Task, rng: np.random.Generator) -> list[ComputeSample]:
    """Of every device that has something, when tables, some of them cut into shards of columns, are handed out.

    Shards go, largest first by bytes, columns or lookups, to the device with the least so far, but a share of them,
    drawn anew for every placement, to random devices. Devices that would hold more than their memory are left out, and
    so are sequence tables.
    """
    shards = [table.with_dim(dim) for table in task.tables if table.pooled for dim in _cut(table.dim, rng)]
    score = _SCORES[int(rng.integers(len(_SCORES)))]
    random_share, devices = rng.random(), task.topology.num_devices
    load = np.zeros(devices)
    held: list[dict[str, Table]] = [{} for _ in range(devices)]
    for shard in sorted(shards, key=score, reverse=True):
        device = int(rng.integers(devices) if rng.random() < random_share else load.argmin())
        load[device] += score(shard)
        before = held[device].get(shard.name)
        held[device][shard.name] = shard if before is None else shard.with_dim(before.dim + shard.dim)
    contents = [ComputeSample(tuple(its.values()), task.batch_size) if its else None for its in held]
    pairs = zip(contents, task.topology.device_memory, strict=True)
    return [one for one, memory in pairs if one is not None and one.size_bytes <= memory]


def _cut(dim: int, rng: np.random.Generator) -> Sequence[int]:
    """Widths of the shards of a table: the widest is halved some times, most often not at all."""
    widths = [dim]
    for _ in range(int(rng.geometric(_WHOLE_SHARE)) - 1):
        widest = max(widths)
        half = DIM_MULTIPLE * (widest // DIM_MULTIPLE // 2)
        if not half:
            break
        widths.remove(widest)
        widths += [half, widest - half]
    return widths
