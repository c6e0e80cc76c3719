"""What devices would compute if they held other columns of one table: asked many times at once, no plan is built."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray
from neuroshard.loads import Loads, LoadSets
from neuroshard.models import ComputeModel, SumModel
from neuroshard.plans.plan import Plan


class Change(NamedTuple):
    """A device that holds `dim` columns of a table, by its index, instead of what it holds of it now; 0 for none."""

    table: int
    device: int
    dim: int


def changed_compute_ms(plan: Plan, changes: Sequence[Change], model: ComputeModel) -> FloatArray:
    """(n,) compute cost, ms, of each change's device after that change alone."""
    if not changes:
        return np.zeros(0)
    return _of_sums(plan, changes, model) if isinstance(model, SumModel) else _of_sets(plan, changes, model)


def _of_sets(plan: Plan, changes: Sequence[Change], model: ComputeModel) -> FloatArray:
    tables, held = plan.task.tables, dims_by_device(plan)
    after = [{**held[change.device], change.table: change.dim} for change in changes]
    sets = [[tables[table].with_dim(dim) for table, dim in dims.items() if dim] for dims in after]
    return model.predict(LoadSets.of(sets, plan.task.batch_size))


def _of_sums(plan: Plan, changes: Sequence[Change], model: SumModel) -> FloatArray:
    """A device's vector less the shard's that it holds plus the one's that it would hold, in 64 bits."""
    loads, held = Loads.of(plan.task.tables, plan.task.batch_size), dims_by_device(plan)
    devices = np.array([change.device for change in changes])

    def embedded(places: Sequence[Change]) -> FloatArray:
        """(n, H), zeros for shards without columns."""
        dims = np.array([place.dim for place in places], dtype=np.float64)
        filled = np.flatnonzero(dims)
        chosen = loads.take(np.array([place.table for place in places])[filled]).columns(dims[filled])
        vectors: Float32Array = model.embed(chosen)
        found = np.zeros((len(places), vectors.shape[1]))
        found[filled] = vectors
        return found

    shards = [Change(placed.shard.table, placed.device, placed.shard.dim) for placed in plan.placements]
    vectors = embedded(shards)
    sums = np.zeros((len(held), vectors.shape[1]))
    np.add.at(sums, np.array([shard.device for shard in shards]), vectors)
    before = [Change(table, device, held[device].get(table, 0)) for table, device, _ in changes]
    after = sums[devices] - embedded(before) + embedded(changes)
    left = [len(held[device]) - (table in held[device]) + (dim > 0) for table, device, dim in changes]
    cost: FloatArray = model.head(after.astype(np.float32)) * (np.array(left) > 0)
    return cost


def dims_by_device(plan: Plan) -> list[dict[int, int]]:
    """(D,) columns by table."""
    held: list[dict[int, int]] = [{} for _ in range(plan.task.topology.num_devices)]
    for placement in plan.placements:
        held[placement.device][placement.shard.table] = placement.shard.dim
    return held
