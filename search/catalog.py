"""What the search needs to know of every possible shard of a task, looked up by table and width."""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray, IntArray
from neuroshard.models import ComputeModel
from neuroshard.tables.columns import TableColumns
from neuroshard.tables.table import DIM_MULTIPLE
from neuroshard.task import Task


@dataclass(frozen=True)
class Catalog:
    """Shards of T tables at widths 0, 1, ..., W in units of 4 columns; wider than the table is never asked for.

    Attributes:
        vectors: (T, W + 1, H) the compute model's vectors; zeros at width 0.
        cost_ms: (T, W + 1) compute cost of the shard alone.
        bytes_per_unit: (T,) bytes of weights of 4 columns.
        full_width: (T,) of the whole tables.
    """

    vectors: Float32Array
    cost_ms: FloatArray
    bytes_per_unit: IntArray
    full_width: IntArray

    @classmethod
    def of(cls, task: Task, model: ComputeModel) -> "Catalog":
        """Everything about the task's shards, in one call of the model."""
        columns = TableColumns.of(task.tables)
        full_width = (columns.dim / DIM_MULTIPLE).astype(np.int64)
        table = np.repeat(np.arange(len(task.tables)), full_width)
        width = np.concatenate([np.arange(1, w + 1) for w in full_width])
        shards = columns.take(table).with_dim(width * float(DIM_MULTIPLE))
        embedded = model.embed(shards, task.batch_size)
        shape = (len(task.tables), int(full_width.max()) + 1)
        vectors = np.zeros((*shape, embedded.shape[1]), dtype=np.float32)
        vectors[table, width] = embedded
        cost_ms = np.zeros(shape)
        cost_ms[table, width] = model.head(embedded)
        bytes_per_unit = (columns.rows * columns.bytes_per_element * DIM_MULTIPLE).astype(np.int64)
        return cls(vectors, cost_ms, bytes_per_unit, full_width)
