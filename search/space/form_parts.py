"""What each table costs in each form, before anything is placed: the parts that estimates add up."""

from dataclasses import dataclass, replace

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray, IntArray
from neuroshard.loads import Loads
from neuroshard.plans.shard import Placement, Shard
from neuroshard.schema import DIM_MULTIPLE
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.layout import even_layout
from neuroshard.tasks.task import Task
from neuroshard.traffic import Collective, given_bytes

_SHARES = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, np.inf)  # of a device, that a shard may take


@dataclass(frozen=True, eq=False)
class Cuts:
    """The tables in columns, cut in Q ways.

    Attributes:
        vectors: (T, Q, H) of the compute model, summed over a table's shards.
        cost_ms: (T, Q) compute cost of the dearest shard of a table.
        columns: (T, Q) that a sample gets of the widest one.
        size_bytes: (T, Q) of the largest one.
        given: (T,) columns that it gets of all.
        total_bytes: (T,) of all, uncut.
    """

    vectors: FloatArray
    cost_ms: FloatArray
    columns: FloatArray
    size_bytes: FloatArray
    given: FloatArray
    total_bytes: FloatArray

    @classmethod
    def none(cls, num_tables: int, numbers: int) -> "Cuts":
        """Of no table, with vectors of so many numbers."""
        shape = (num_tables, len(_SHARES))
        return cls(np.zeros((*shape, numbers)), *np.zeros((3, *shape)), *np.zeros((2, num_tables)))

    @classmethod
    def of(cls, catalog: Catalog, tables: IntArray, num_tables: int) -> "Cuts":
        """Of a catalog of `tables` (t,) out of so many; zeros for all others.

        What is kept together counts as the first table of it.
        """
        vectors = catalog.vectors if catalog.vectors.shape[1] else catalog.cost_ms[:, None]
        table = tables[[item.parts[0][0] for item in catalog.items.items]]  # (I,)
        found = cls.none(num_tables, vectors.shape[1])
        for cut, share in enumerate(_SHARES):
            shards = even_layout(catalog, share)
            its = table[catalog.item[shards]]
            np.add.at(found.vectors[:, cut], its, vectors[shards])
            np.maximum.at(found.cost_ms[:, cut], its, catalog.cost_ms[shards])
            np.maximum.at(found.columns[:, cut], its, catalog.given[shards] * DIM_MULTIPLE)
            np.maximum.at(found.size_bytes[:, cut], its, catalog.size_bytes[shards])
        np.add.at(found.given, table, catalog.given[catalog.whole] * DIM_MULTIPLE)
        np.add.at(found.total_bytes, table, catalog.size_bytes[catalog.whole])
        return found


@dataclass(frozen=True, eq=False)
class Everywhere:
    """What each table costs every device in a form that lies on all: the first device stands for the others.

    Attributes:
        vectors: (T, H) of the compute model.
        given: (T, C) bytes that a device puts into every collective.
        size_bytes: (T,) on a device.
    """

    vectors: FloatArray
    given: FloatArray
    size_bytes: FloatArray

    @classmethod
    def of(cls, task: Task, tables: IntArray, loads: Loads, vectors: Float32Array) -> "Everywhere":
        """Of some `tables` (t,), with their loads (t,) on a device and the vectors (t, H); zeros for all others."""
        count = len(task.tables)
        found = cls(np.zeros((count, vectors.shape[1])), np.zeros((count, len(Collective))), np.zeros(count))
        found.vectors[tables] = vectors
        found.given[tables] = given_bytes(loads, task.topology.num_devices)
        found.size_bytes[tables] = task.memory.device_bytes(loads)
        return found


def first_blocks(task: Task, tables: IntArray) -> Loads:
    """(t,) of some `tables` (t,) the first block of rows, of as many as there are devices."""
    devices = task.topology.num_devices
    kept = [(index, task.tables[index]) for index in tables.tolist()]
    placed = [Placement(Shard(index, 0, table.dim, 0, -(-table.rows // devices)), 0) for index, table in kept]
    loads = Loads.placed(task.tables, placed, task.batch_size, devices)
    return replace(loads, sharers=np.full(len(loads), devices))


def first_copies(task: Task, tables: IntArray) -> Loads:
    """(t,) of some `tables` (t,) a copy."""
    kept = [(index, task.tables[index]) for index in tables.tolist()]
    shards = [Shard(index, 0, table.dim, 0, table.rows) for index, table in kept]
    two = [Placement(shard, device) for device in range(2) for shard in shards]
    loads = Loads.placed(task.tables, two, task.batch_size, task.topology.num_devices)
    return loads.take(np.arange(len(shards)))
