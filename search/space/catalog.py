"""What the search needs to know of every possible shard of a task, as arrays."""

from dataclasses import dataclass

import numpy as np

from neuroshard.cost.loads import LoadSets
from neuroshard.models import ComputeModel, SumModel
from neuroshard.models.side_by_side import columns_model
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.packing import check_total
from neuroshard.stages.search.space.sizes import Sizes, entry_loads
from neuroshard.tasks.task import Task

_ROUNDING = 1e-5  # of single precision


@dataclass(frozen=True, eq=False)
class Catalog(Sizes):
    """The sizes of a task's shards, and what a compute model makes of them.

    Attributes:
        model: of what devices compute that hold the task's tables in columns (`columns_model`).
        vectors: (N, H) the model's vectors; zeros for empty shards; H = 0 if it has none.
        cost_ms: (N,) compute cost of the shard alone; 0 for empty shards.
        least_score: (N,) what a shard adds to the score of a device that holds nothing of its item, at least; minus
            infinity where nobody can say.
    """

    model: ComputeModel
    vectors: Float32Array
    cost_ms: FloatArray
    least_score: FloatArray

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
        """Cost every shard, in one call of the compute model."""
        model = columns_model(model, sizes.items.task.loads)
        vectors, cost_ms = _vectors_and_costs(sizes, model)
        return cls(
            sizes.items, sizes.first, sizes.full_width, sizes.size_bytes, sizes.state_bytes, sizes.given,
            model, vectors, cost_ms, _least_score(vectors, model),
        )  # fmt: skip


def _vectors_and_costs(sizes: Sizes, model: ComputeModel) -> tuple[Float32Array, FloatArray]:
    """(N, H) vectors, with H = 0 for models that have none, and (N,) ms."""
    entry, shards = entry_loads(sizes.items, sizes.first)
    cost_ms, (filled, place) = np.zeros(len(sizes.size_bytes)), np.unique(entry, return_inverse=True)
    if not isinstance(model, SumModel):
        cost_ms[filled] = model.predict(LoadSets.grouped(shards, place, len(filled)))
        return np.zeros((len(cost_ms), 0), dtype=np.float32), cost_ms
    embedded = model.embed(shards)
    vectors = np.zeros((len(cost_ms), embedded.shape[1]), dtype=np.float32)
    np.add.at(vectors, entry, embedded)
    cost_ms[filled] = model.head(vectors[filled])
    return vectors, cost_ms


def _least_score(vectors: Float32Array, model: ComputeModel) -> FloatArray:
    """(N,) of vectors (N, H).

    Where every number of every vector pulls a score up, none of a sum falls; and where it pulls a sum up too that
    starts above 0, it counts whole.
    """
    if not isinstance(model, SumModel):
        return np.full(len(vectors), -np.inf)
    head = model.head
    pull = vectors * head.weight
    if (pull < 0).any():
        return np.full(len(vectors), -np.inf)
    whole = (head.bias >= 0) & (head.weight > 0)
    least: FloatArray = pull[:, whole].sum(axis=1, dtype=np.float64) * (1 - _ROUNDING)
    return least
