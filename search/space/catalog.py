"""What the search needs to know of every possible shard of a task, as arrays."""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray
from neuroshard.loads import LoadSets
from neuroshard.models import ComputeModel, SumModel
from neuroshard.simulator import Simulator
from neuroshard.stages.search.space.feasibility import check_total
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.sizes import Sizes, entry_loads
from neuroshard.tasks.task import Task


@dataclass(frozen=True, eq=False)
class Catalog(Sizes):
    """The sizes of a task's shards, and what a compute model makes of them.

    Attributes:
        vectors: (N, H) the model's vectors; zeros for empty shards; H = 0 if it has none.
        cost_ms: (N,) compute cost of the shard alone; 0 for empty shards.
    """

    vectors: Float32Array
    cost_ms: FloatArray

    @classmethod
    def checked(cls, task: Task, simulator: Simulator) -> "Catalog":
        """Everything about the task's shards.

        Raises:
            UserError: the models can't serve the task.
            InfeasibleError: some item, or all of them together, take more memory than there is.
        """
        simulator.models.check(task)
        sizes = Sizes.of(Items.of(task))
        check_total(sizes)
        return cls.costed(sizes, simulator.models.compute)

    @classmethod
    def costed(cls, sizes: Sizes, model: ComputeModel) -> "Catalog":
        """With costs, in one call of the model."""
        vectors, cost_ms = _vectors_and_costs(sizes, model)
        return cls(
            sizes.items, sizes.first, sizes.full_width, sizes.size_bytes, sizes.state_bytes, vectors, cost_ms
        )  # fmt: skip


def _vectors_and_costs(sizes: Sizes, model: ComputeModel) -> tuple[Float32Array, FloatArray]:
    """(N, H) vectors, with H = 0 for models that have none, and (N,) ms."""
    items, first = sizes.items, sizes.first
    entry, shards = entry_loads(items, first)
    cost_ms, filled = np.zeros(len(sizes.size_bytes)), np.unique(entry)
    if not isinstance(model, SumModel):
        item = np.searchsorted(first, filled, side="right") - 1
        sets = [items.tables(i, w) for i, w in zip(item.tolist(), (filled - first[item]).tolist(), strict=True)]
        cost_ms[filled] = model.predict(LoadSets.of(sets, items.task.batch_size))
        return np.zeros((len(cost_ms), 0), dtype=np.float32), cost_ms
    embedded = model.embed(shards)
    vectors = np.zeros((len(cost_ms), embedded.shape[1]), dtype=np.float32)
    np.add.at(vectors, entry, embedded)
    cost_ms[filled] = model.head(vectors[filled])
    return vectors, cost_ms
