"""What the search needs to know of every possible shard of a task, as arrays."""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray, IntArray
from neuroshard.models import ComputeModel, SumModel
from neuroshard.tables.columns import TableColumns
from neuroshard.tables.table import DIM_MULTIPLE
from neuroshard.task import Task


@dataclass(frozen=True)
class Catalog:
    """Shards of T tables, their widths counted in units of 4 columns; N = sum over tables of (width + 1) entries.

    The shard of table t that is w units wide is entry `first[t] + w`; entry `first[t]` is the empty shard.

    Attributes:
        first: (T,) first entry of each table.
        full_width: (T,) units of the whole tables.
        vectors: (N, H) the compute model's vectors; zeros for empty shards; H = 0 if it has none.
        cost_ms: (N,) compute cost of the shard alone; 0 for empty shards.
        size_bytes: (N,) bytes of weights.
    """

    first: IntArray
    full_width: IntArray
    vectors: Float32Array
    cost_ms: FloatArray
    size_bytes: IntArray

    @classmethod
    def of(cls, task: Task, model: ComputeModel) -> "Catalog":
        """Everything about the task's shards, in one call of the model."""
        columns = TableColumns.of(task.tables)
        full_width = (columns.dim / DIM_MULTIPLE).astype(np.int64)
        first = np.concatenate([[0], (full_width + 1).cumsum()[:-1]])
        table = np.repeat(np.arange(len(task.tables)), full_width + 1)
        width = np.arange(len(table)) - first[table]
        bytes_per_unit = (columns.rows * columns.bytes_per_element * DIM_MULTIPLE).astype(np.int64)
        vectors, cost_ms = _vectors_and_costs(task, model, columns, table, width)
        return cls(first, full_width, vectors, cost_ms, bytes_per_unit[table] * width)

    @property
    def num_tables(self) -> int:
        """T."""
        return len(self.first)


def _vectors_and_costs(
    task: Task, model: ComputeModel, columns: TableColumns, table: IntArray, width: IntArray
) -> tuple[Float32Array, FloatArray]:
    """(N, H) vectors, with H = 0 for models that have none, and (N,) ms."""
    filled = width > 0
    table, width = table[filled], width[filled]
    cost_ms = np.zeros(len(filled))
    if not isinstance(model, SumModel):
        shards = [
            [task.tables[t].with_dim(w * DIM_MULTIPLE)] for t, w in zip(table.tolist(), width.tolist(), strict=True)
        ]
        cost_ms[filled] = model.predict(shards, task.batch_size)
        return np.zeros((len(filled), 0), dtype=np.float32), cost_ms
    embedded = model.embed(columns.take(table).with_dim((width * DIM_MULTIPLE).astype(np.float64)), task.batch_size)
    cost_ms[filled] = model.head(embedded)
    vectors = np.zeros((len(filled), embedded.shape[1]), dtype=np.float32)
    vectors[filled] = embedded
    return vectors, cost_ms
