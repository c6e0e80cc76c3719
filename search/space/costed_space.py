"""A search space with costs: arrays of all shards with costs,
and the simulator that predicts the costs of whole plans.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from neuroshard.cost.cost import Cost, KernelTimes
from neuroshard.cost.loads import Traffic
from neuroshard.layouts import sent_bytes_of
from neuroshard.models import SumModel
from neuroshard.models.kernels import KernelModels
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.stages.search.published.grid import PlacementProblem
from neuroshard.stages.search.published.shard_table import PlacementRules, ShardTable, least_score
from neuroshard.stages.search.space.fixed_load import FixedLoad
from neuroshard.stages.search.space.memory_checks import check_total
from neuroshard.stages.search.space.search_space import SearchSpace, row_loads


@dataclass(frozen=True, eq=False)
class CostedSpace(SearchSpace):
    """A search space in which a compute model has predicted the cost of every shard.

    Attributes:
        simulator: costs exchanges, and whole plans.
        model: compute model of the devices with column-wise tables (`KernelModels.of_columns`).
    """

    simulator: Simulator
    model: SumModel

    @classmethod
    def checked(cls, fixed: FixedLoad, simulator: Simulator) -> "CostedSpace":
        """Return the search space of the tables that a search is to place column-wise, with the predicted compute time
        of every shard. `fixed` is the load of all other tables of the task. The function also checks that the models
        support the task, and that the column-wise tables do not need more memory than `fixed` leaves.

        Raises:
            UserError: the models cannot serve the task.
            InfeasibleError: some item, or all of them together, take more memory than there is.
        """
        simulator.models.check(fixed.task)
        space = SearchSpace.of(fixed)
        check_total(space)
        return cls.costed(space, simulator, simulator.compute_for(fixed.task))

    @classmethod
    def costed(cls, space: SearchSpace, simulator: Simulator, kernels: KernelModels) -> "CostedSpace":
        """Return a copy of the search space `space` with the predicted compute time of every shard, in ms. The models
        in `kernels` predict the time for the case that the shard is alone on a device.

        The models predict the costs of all shards in one call.
        """
        task, shards = space.task, space.shards
        model = kernels.of_columns(task.loads.take(space.fixed.column_wise))
        row, loads = row_loads(task, space.items, shards.first, shards.full_width)
        embedded = model.embed(loads)
        vectors = np.zeros((len(shards.size_bytes), embedded.shape[1]), dtype=np.float32)
        np.add.at(vectors, row, embedded)
        cost_ms, filled = np.zeros(len(vectors)), np.unique(row)
        cost_ms[filled] = model.head(vectors[filled])
        shards = shards._replace(vectors=vectors, cost_ms=cost_ms, least_score=least_score(vectors, model.head))
        return cls(space.fixed, space.items, shards, simulator, model)

    @property
    def problem(self) -> PlacementProblem:
        """The placement problem of this space, in the form that NeuroShard's published search needs: the shards, the
        memory, and the costs of plans.
        """
        return PlacementProblem(
            self.shards, self.model.head, self.free_bytes, self.fixed.compute_ms,
            lambda compute_ms, units: self.step(compute_ms, units)[1].max(axis=1),
        )  # fmt: skip

    def take(self, fixed: FixedLoad) -> "CostedSpace":
        """Return a smaller search space, which has only the tables that `fixed` leaves to be placed
        (`fixed.column_wise`). The other tables of this space count as placed: their load is part of `fixed`. The
        predicted costs of the remaining shards are not computed again.

        Tables that are kept together or apart, or whose shards are pinned, must all be column-wise, or none.
        """
        kept = np.isin(self.first_tables, fixed.column_wise)
        items = tuple(item for item, stays in zip(self.items, kept.tolist(), strict=True) if stays)
        return replace(self, fixed=fixed, items=items, shards=_taken(self.shards, kept))

    def step(self, compute_ms: FloatArray, units: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Predict the times at which each of D devices starts and ends the output dist, in each of n plans: two arrays
        (n, D) in ms. The output dist counts as the last part of a step, after the compute and the backward exchanges.

        `compute_ms` (n, D) has the compute time of the column-wise tables. `units` (n, D) has the units of 4 columns
        that each device sends for these tables, for each sample. The compute time and the traffic of the fixed load are
        added.
        """
        return self.fixed.step(self.simulator, compute_ms, units)

    def costs(self, plans: Sequence[IntArray]) -> list[Cost]:
        """Return the costs that the simulator predicts for whole plans; each plan is given as widths (I, D)."""
        return self.simulator.costs_of(*self._work(plans))

    def balanced_cost(self, widths: IntArray) -> Cost:
        """Return the predicted cost of an imagined plan that has the same total work as the plan `widths` (I, D),
        spread evenly over the devices. Every device has the mean kernel times of that plan, and sends the mean number
        of bytes.
        """
        times, traffic = self._work([widths])
        return self.simulator.costs_of(times.evenly, traffic.evenly)[0]

    @property
    def whole_on_one(self) -> IntArray:
        """The widths (I, D) of an imagined plan, in units of 4 columns: every item is whole, and all items are on the
        first device. No plan has less total work, so the plan is used for lower bounds. The plan may break limits, such
        as the memory of the device.
        """
        widths = np.zeros((self.shards.num_items, self.task.topology.num_devices), dtype=np.int64)
        widths[:, 0] = self.shards.full_width
        return widths

    def _work(self, plans: Sequence[IntArray]) -> tuple[KernelTimes, Traffic]:
        """Return the predicted kernel times and the exchange traffic of n plans.
        Each plan is an array (I, D): the width of each of I items (such as tables) on each of D devices, in units of 4
        columns. The tables of the fixed load are included if the loads of these tables on each device are known, that
        is, if `fixed.loads` is not None.
        """
        task, devices = self.task, self.task.topology.num_devices
        loads = self.device_loads(np.concatenate(plans, axis=1))
        times = self.simulator.kernel_times(loads, devices)
        given = sent_bytes_of(loads.loads, devices)
        traffic = Traffic.of(loads, given, devices, task.batch_size, task.topology.fast_links)
        if self._fixed_times is None:
            return times, traffic
        return times.plus(self._fixed_times), replace(traffic, size_bytes=traffic.size_bytes + self.fixed.sent_bytes)

    @cached_property
    def _fixed_times(self) -> KernelTimes | None:
        """The predicted kernel times of the row-wise and data-parallel tables, which have fixed places on the devices.
        None if there are no such tables, or if only an estimate of their load is known.
        """
        loads = self.fixed.loads
        return None if loads is None else self.simulator.kernel_times(loads, len(loads))


def _taken(shards: ShardTable, kept: BoolArray) -> ShardTable:
    """Return a shard table of only the items for which `kept` (I,) is True; the costs of these items stay the same."""
    rows, width = kept[shards.item], shards.full_width[kept]
    return ShardTable(
        _taken_rules(shards.rules, kept),
        np.concatenate([[0], (width + 1).cumsum()[:-1]]),
        shards.size_bytes[rows],
        shards.state_bytes[rows],
        shards.sent_units[rows],
        shards.vectors[rows],
        shards.cost_ms[rows],
        shards.least_score[rows],
    )


def _taken_rules(rules: PlacementRules, kept: BoolArray) -> PlacementRules:
    """Return the placement rules of only the items for which `kept` (I,) is True. The rivals of an item are the items
    that may not share a device with the item. The caller must keep all rivals of each kept item; the function does not
    check this.
    """
    place, count = kept.cumsum() - 1, np.diff(rules.rival_first)
    return PlacementRules(
        rules.allowed[kept],
        rules.min_shards[kept],
        rules.max_shards[kept],
        rules.min_width[kept],
        np.concatenate([[0], count[kept].cumsum()]),
        place[rules.rivals[np.repeat(kept, count)]],
    )
