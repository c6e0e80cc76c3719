"""The sharding types that every table of a task may have, and choices of sharding types (one type for each table) that
are likely to be cheap.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import isinf

import numpy as np

from neuroshard.cost.loads import LoadSets
from neuroshard.layouts import LAYOUTS
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.stages.search.local.starts import Start
from neuroshard.stages.search.options.choices import (
    ChangedChoices,
    Choices,
    Costs,
    TypeChoices,
    rank_changes,
    search_choices,
)
from neuroshard.stages.search.options.estimates import CostEstimates, StepCounts
from neuroshard.stages.search.options.settings import SETTINGS
from neuroshard.stages.search.options.sharding_types import (
    BLOCKS,
    COLUMNS,
    OTHERS,
    SpreadPlacements,
    leaders,
    rows_for_one_host,
)
from neuroshard.stages.search.options.tiers import is_ample
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.fixed_load import FixedLoad, device_memory
from neuroshard.stages.search.space.memory_checks import check_total, shortage
from neuroshard.stages.search.space.search_space import SearchSpace, narrowest_shards
from neuroshard.tasks.task import Task
from neuroshard.words.form import FORMS
from neuroshard.words.placement import Placement


@dataclass(frozen=True, eq=False)
class OptionTable:
    """Finds choices of sharding types that are likely to be cheap. A choice gives one sharding type to each table of a
    task. Choices are compared by an estimated cost, and by the cost of a quickly made plan.

    An option table is for one variant of a task: the task itself, or the task with changed rules, such as rules that
    put tables into host memory or that split tables into finer equal parts.

    Attributes:
        task: the variant.
        simulator: costs plans.
        may_have: (T, F) sharding types that the constraints and the models allow for each table.
        quick: start that places column-wise tables quickly.
        asked: the task that plans are made for, which has the same tables.
    """

    task: Task
    simulator: Simulator
    may_have: BoolArray
    quick: Start
    asked: Task

    @cached_property
    def allowed(self) -> BoolArray:
        """A mask (T, F) of the sharding types that each of T tables may have. An entry is True if the table may have a
        type of one of F families (column-wise, row-wise, data-parallel).

        The mask is `may_have` with one change: a table is not column-wise if even the narrowest shard of the table fits
        on no device. The change is left out for tables that may have no other type.
        """
        allowed = self.may_have.copy()
        if self._uncosted is not None:
            _, least, room = narrowest_shards(self._uncosted)
            too_large = [table for item in np.flatnonzero(least > room) for table, _ in self._uncosted.items[item]]
            allowed[too_large, COLUMNS] = False
            allowed[:, COLUMNS] |= ~allowed.any(axis=1)  # the search raises an error about tables that fit nowhere
        return allowed

    @property
    def has_choice(self) -> bool:
        """True if some table may be row-wise or data-parallel."""
        return bool(np.delete(self.may_have, COLUMNS, axis=1).any())

    @cached_property
    def leaders(self) -> IntArray:
        """The index of each table's leader, (T,). Tables that are kept together have the same leader: the first table
        of their group. Every other table is its own leader. A table always has the sharding type of its leader.
        """
        return leaders(self.task)

    @cached_property
    def spread(self) -> SpreadPlacements:
        """An object that returns the placements, over all devices, of row-wise and data-parallel tables."""
        return SpreadPlacements(self.task)

    @cached_property
    def _uncosted(self) -> SearchSpace | None:
        """The search space of the tables that may be column-wise, before the costs of shards are predicted. None if no
        table may be column-wise.
        """
        may = np.flatnonzero(self.may_have[:, COLUMNS])
        return SearchSpace.of(FixedLoad.empty(self.task, may)) if len(may) else None

    @cached_property
    def space(self) -> CostedSpace | None:
        """The search space of the tables that may be column-wise: all possible shards of these tables, with predicted
        costs. None if no table may be column-wise.
        """
        if self._uncosted is None:
            return None
        return CostedSpace.costed(self._uncosted, self.simulator, self.simulator.compute_for(self.task))

    @cached_property
    def estimates(self) -> CostEstimates:
        """The object that estimates the cost of a choice of sharding types, before any table is placed."""
        return CostEstimates.of(self.task, self.simulator, self.may_have, self.space)

    @property
    def fits_easily(self) -> bool:
        """True if all tables fit easily in device memory, so that host memory is not needed.

        In this case, all tables are in device memory and fill at most half of it (the smallest of
        `ChoiceSettings.memory_shares`). No table that may be column-wise is too large for this, and the tables fit in a
        quick plan of the first choice of sharding types.
        """
        as_allowed = bool((self.allowed[:, COLUMNS] == self.may_have[:, COLUMNS]).all())
        return is_ample(self.task) and as_allowed and not isinf(self.quick_ms(self.first))

    @property
    def first(self) -> IntArray:
        """The first choice of sharding types, (T,): each table is column-wise if allowed, else
        row-wise, else data-parallel.
        """
        first: IntArray = self.allowed.argmax(axis=1)
        return first

    @property
    def first_choice(self) -> "Choice":
        """The first choice of sharding types, in which each table is column-wise if allowed. The costs of this choice
        are not computed (NaN).
        """
        return Choice(self, self.first)

    def fixed_load(self, types: IntArray) -> FixedLoad:
        """Return the memory, the compute time and the traffic that the row-wise and data-parallel tables take on each
        device. `types` (T,) has the sharding type of each of T tables.

        Raises:
            InfeasibleError: the tables take more memory than the devices have.
        """
        return FixedLoad.of(self.task, self.spread.others(types), self.simulator.compute_for(self.task))

    def fixed_load_on_hosts(self, types: IntArray) -> FixedLoad | None:
        """Return the load of `fixed_load`, but with the rows of every row-wise table on the devices of one host, if the
        rules of `asked` allow this; None if no table may be on one host. This load needs less memory, because each
        device with rows of a table has buffers for the samples of all devices that look up these rows.

        The largest table goes first, each to the host with the most free memory.

        Raises:
            InfeasibleError: the tables take more memory than the devices have.
        """
        layouts = [LAYOUTS[FORMS[form]] for form in types.tolist()]
        movable = rows_for_one_host(self.asked, layouts, self.simulator.models)
        if not movable:
            return None
        task, hosts, placed = self.task, self.task.topology.domains, list[Placement]()
        shares = [layouts[table].share(task.loads.take(np.array([table])), len(hosts[0])) for table in movable]
        size_bytes = [int(task.memory.device_bytes(share)[0]) for share in shares]
        free_bytes = device_memory(task).reshape(len(hosts), -1).min(axis=1)
        for size, table in sorted(zip(size_bytes, movable, strict=True), reverse=True):
            host = int(free_bytes.argmax())
            free_bytes[host] -= size
            placed += layouts[table].over(task, table, hosts[host])
        left = types.copy()
        left[movable] = COLUMNS
        return FixedLoad.of(task, [*placed, *self.spread.others(left)], self.simulator.compute_for(task))

    def quick_ms(self, types: IntArray) -> float:
        """Return the cost, in ms, of a quick plan in which the tables have the sharding types `types` (T,). In a quick
        plan, a fast method places the column-wise tables.

        The cost is infinite if the tables do not fit. Row-wise and data-parallel tables are placed one by one only if
        row-wise tables have uneven lookups; else all devices have the same load of these tables.
        """
        try:
            fixed = self._quick_load(types)
            if fixed.free_bytes.min() < 0:
                return float("inf")
            compute_ms, units = np.zeros((2, 1, len(fixed.free_bytes)))
            if self.space is not None and len(fixed.column_wise):
                space = self.space.take(fixed)
                if (widths := self.quick.first_widths(space)) is None:
                    return float("inf")
                compute_ms = space.model.predict(space.device_loads(widths))[None]
                units = space.shards.device_units(widths)[None]
        except InfeasibleError:
            return float("inf")
        ready_ms = fixed.step(self.simulator, compute_ms, units)[1].max(axis=1)
        return float((ready_ms + self.simulator.waited_ms(self.task, ready_ms, *self._work(types)))[0])

    def _quick_load(self, types: IntArray) -> FixedLoad:
        """Return the load of each device from row-wise and data-parallel tables: the memory, the compute time and the
        traffic. A quick plan starts with this load, before it places the column-wise tables. `types` (T,) has the
        sharding type of each of T tables. The compute time also includes the parts of a step other than kernels and
        exchanges.

        The load of one device stands for all devices, unless lookups of row-wise tables are uneven.

        Raises:
            InfeasibleError: the tables take more memory than the devices have.
        """
        if not self._uneven[np.isin(types, BLOCKS)].any():
            return self.estimates.fixed_load(types)
        fixed = self.fixed_load(types)
        return replace(fixed, compute_ms=fixed.compute_ms + self.simulator.shared_ms(self.task, *self._work(types)))

    def _work(self, types: IntArray) -> StepCounts:
        return self.estimates.step_inputs.work(self.simulator, TypeChoices(types[None]))

    @cached_property
    def _uneven(self) -> BoolArray:
        """A mask (T,): True for each of T tables whose rows have unequal numbers of lookups."""
        return np.array([bool(table.row_lookups) for table in self.task.tables])

    def likely(self, tries: int) -> list["Choice"]:
        """Return one to three promising choices of sharding types, the best choice first. Choices are compared by two
        costs: the cost of a quick plan, in which a fast method places the column-wise tables, and a cost that is
        estimated before any table is placed.

        Quick plans have faults that later steps would mend, above all if memory is tight. So among the choices with
        nearly the cheapest quick plans, the choice with the lowest sum of both costs comes first, then the cheapest by
        quick plan, then the best choice that lacks a sharding type of the first. With 0 `tries`, `first` is listed.
        """
        if not tries:
            return [self.first_choice]
        tried = self._tried(tries)
        best = min(tried, key=lambda choice: choice.quick_ms)
        most_ms = best.quick_ms * SETTINGS.near_best
        near = sorted((choice for choice in tried if choice.quick_ms <= most_ms), key=lambda choice: choice.both_ms)
        without = [choice for choice in near if not np.isin(near[0].types, choice.types).all()]
        return list(dict.fromkeys((near[0], best, *without[:1])))

    def _tried(self, tries: int) -> list["Choice"]:
        """Make quick plans for about `tries` promising choices of sharding types, and return these choices with their
        costs. In a quick plan, a fast method places the column-wise tables.

        The first are ends of local searches, the cheapest first, until the next end is estimated to cost more than the
        best quick plan; then changes of the best choice, as long as they help. A quarter of the tries is left for ends
        that are estimated to cost little more, because estimates have errors of that size. If memory is too tight for
        the first choice, as many further tries change the choice with the fewest large row-wise tables that fits: ends
        of local searches rarely fit then.
        """
        tried = dict[bytes, tuple[IntArray, float]]()
        candidates, most = self.candidates, -(-3 * tries // 4)
        estimated = list(zip(candidates, self.estimates.costs(TypeChoices(candidates))[0].tolist(), strict=True))

        def tried_ms(types: IntArray) -> float:
            """Return the cost in ms of the quick plan with the sharding types `types` (T,). The first call for these
            types makes the quick plan; later calls return the same cost.
            """
            if (key := types.tobytes()) not in tried:
                tried[key] = (types, self.quick_ms(types))
            return tried[key][1]

        def mended(best: IntArray, most: int) -> IntArray:
            """Improve the choice `best` of sharding types by local search, and return the improved choice. Each step
            makes quick plans for several changes of one table's sharding type, and takes the change with the cheapest
            quick plan.

            The search ends if no change makes the quick plan cheaper, or if `most` quick plans were made, including the
            quick plans from before the search.
            """
            while len(tried) < most:
                others = [types for types in self._neighbours(best) if types.tobytes() not in tried]
                better = min(others[: most - len(tried)], key=tried_ms, default=best)
                if not tried_ms(better) < tried_ms(best):
                    break
                best = better
            return best

        best: IntArray = candidates[0]
        for types, estimate_ms in estimated:
            if len(tried) < most and (not tried or estimate_ms < tried_ms(best)):
                best = min(best, types, key=tried_ms)
        best = mended(best, most)
        if isinf(tried.get(self.first.tobytes(), (self.first, 0.0))[1]):
            fitting = next((types for types in self.more_row_wise() if not isinf(tried_ms(types))), best)
            best = min(best, mended(fitting, len(tried) + most), key=tried_ms)
            tries += len(tried) - most
        for types, estimate_ms in estimated:
            if len(tried) < tries and estimate_ms < tried_ms(best) * SETTINGS.near_estimate:
                tried_ms(types)
        return self._costed(list(tried.values()))

    def first_tried(self) -> "Choice":
        """Return the first choice of sharding types with two costs; in this choice, each table is column-wise if
        allowed. `quick_ms` is the cost of a quick plan, in which a fast method places the column-wise tables.
        `estimate_ms` is a cost that is estimated before any table is placed.
        """
        return self._costed([(self.first, self.quick_ms(self.first))])[0]

    def _costed(self, tried: Sequence[tuple[IntArray, float]]) -> list["Choice"]:
        """Compute the estimated cost of each choice of sharding types in `tried`, and return a `Choice` for each. An
        entry of `tried` has the sharding types (T,), and the cost of the quick plan in ms.
        """
        estimate_ms = self.estimates.costs(TypeChoices(np.array([types for types, _ in tried])))[0].tolist()
        return [Choice(self, types, quick_ms, ms) for (types, quick_ms), ms in zip(tried, estimate_ms, strict=True)]

    def search_choices(self, first: IntArray, costs: Costs, allowed: BoolArray | None = None) -> list[IntArray]:
        """Improve the choice `first` (T,) of sharding types by local search, until no step lowers the cost or the
        maximum number of steps is reached. Return the list of choices: `first`, and then the choice (T,) after each
        step.

        Tables that are kept together change as one.

        Steps stay within `allowed` (T, F); None stands for all sharding types that the tables may have.
        """
        leading = self._leading(self.allowed if allowed is None else allowed)
        path = search_choices(first, leading, lambda some: costs(self._followed(some)))
        return [types[self.leaders] for types in path]

    @property
    def least_ms(self) -> float:
        """The lowest estimated cost of any promising choice of sharding types, in ms. The estimate assumes that all
        devices share the work of the column-wise tables evenly.
        """
        return float(self.estimates.costs(TypeChoices(self.candidates))[1].min())

    @cached_property
    def candidates(self) -> IntArray:
        """Promising choices of sharding types, (n, T), each once, in order of estimated cost.

        The cheapest choice of every set of sharding types comes before all other choices.

        All row-wise tables share one exchange, so one row-wise table alone may cost more than the table saves, while
        several together pay. So local searches start from the first choice, and from the first choice with the most
        expensive tables in another sharding type. They search once among all sharding types, and once without each
        type: fewer types may cost less than estimated choices of more types, because choices with more types are harder
        to place. Estimates of column-wise tables are too low, because column-wise tables are still to be placed, above
        all if memory is tight. So other searches start with all tables row-wise or data-parallel and avoid column_wise
        if possible: the costs of the ends of these searches are real. Finally, all tables that may have one sharding
        type are given this type, and the other tables stay as in the first choice.
        """
        costs, others = self.estimates.costs, [form for form in OTHERS if (self.allowed[:, form]).any()]
        without = self._without(COLUMNS)
        pure = [np.where(self.allowed[:, form], form, without.argmax(axis=1)) for form in others]
        ends = [self.search_choices(types, costs, without)[-1] for types in pure]
        ends += [np.where(self.allowed[:, form], form, self.first) for form in others]
        nested = [(form, types) for form in others for types in self._nested_in(form)]
        for left_out in (None, *others):
            allowed = self.allowed if left_out is None else self._without(left_out)
            starts = [self.first, *(types for form, types in nested if form != left_out)]
            ends += [types for start in starts for types in self.search_choices(start, costs, allowed)[-2:]]
        candidates = np.unique([*ends, *(types for _, types in nested)], axis=0)
        sets = [tuple(np.unique(types)) for types in candidates]
        by_cost = np.argsort(costs(TypeChoices(candidates))[0], kind="stable").tolist()
        cheapest = {sets[number]: number for number in reversed(by_cost)}
        return candidates[sorted(by_cost, key=lambda number: cheapest[sets[number]] != number)]

    def _without(self, form: int) -> BoolArray:
        """Return the mask `allowed` (T, F) without the sharding type `form`. An entry is True if the table may have the
        sharding type. Tables that may have only `form` keep it.
        """
        allowed = self.allowed.copy()
        allowed[np.delete(self.allowed, form, axis=1).any(axis=1), form] = False
        return allowed

    def _neighbours(self, types: IntArray) -> IntArray:
        """Return the n most promising choices of sharding types, (n, T), that are one change away from the choice
        `types` (T,). A change gives another sharding type to one table. Changes are ranked by estimated cost, and n is
        at most `ChoiceSettings.neighbours`.

        Tables that are kept together change as one.
        """
        movable = self._leading(self.allowed)
        near, _ = rank_changes(types, movable, lambda some: self.estimates.costs(self._followed(some)))
        return self._followed(ChangedChoices(types, near[: SETTINGS.neighbours])).types

    def _followed(self, choices: Choices) -> Choices:
        """Return the choices of sharding types, changed so that each table has the sharding type of the table's leader.
        The leader of tables that are kept together is the first of these tables; every other table is its own leader.

        Without groups of tables, the choices themselves are returned, because a copy may be large.
        """
        return TypeChoices(choices.types[:, self.leaders]) if self._has_groups else choices

    @cached_property
    def _has_groups(self) -> bool:
        return len(np.unique(self.leaders)) < len(self.leaders)

    def _leading(self, allowed: BoolArray) -> BoolArray:
        """Return a copy of the mask `allowed` (T, F) in which all values of a table are False if the table is not its
        own leader. The mask has a value for each of T tables and each of F families of sharding types.

        In a group of tables that are kept together, the first table is the leader. The other tables always have the
        sharding type of the leader, so the search changes only the leader.
        """
        leading: BoolArray = allowed & (self.leaders == np.arange(len(self.leaders)))[:, None]
        return leading

    def _nested_in(self, form: int) -> IntArray:
        """Return the cheapest choice of sharding types in which the k most expensive tables have the sharding type
        `form`, for k = 1, 2, 4, 8, ... The shape is (1, T). Only tables that may change to `form` count. If no table
        may change to `form`, the result is an empty array, (0, T).

        The choices are compared by estimated cost. All other tables have the sharding types of the first choice of the
        option table.

        For data_parallel, the tables with the highest cost per byte count as the most expensive tables.
        """
        compute, tables, whole = self.simulator.compute_for(self.task), self.task.tables, form not in BLOCKS

        def worth(moved: IntArray) -> FloatArray:
            """Return a priority for each of t tables, (t,). Tables with higher priorities change to the sharding type
            `form` first. `moved` (t,) has the indices of the tables.

            The priority is the kernel time, in ms, of the whole table alone on a device. If `form` is data-parallel,
            this time is divided by the bytes of the table.
            """
            share = np.array([1 / tables[table].size_bytes if whole else 1.0 for table in moved])
            value: FloatArray = compute.predict(LoadSets.alone(self.task.loads.take(moved))) * share
            return value

        nested = self._more_in(form, worth)[:-1]
        return nested[self.estimates.costs(TypeChoices(nested))[0].argmin()][None] if len(nested) else nested

    def more_row_wise(self) -> Iterator[IntArray]:
        """Yield choices of sharding types (T,) with more and more row-wise tables: the largest table, the 2 largest
        tables, the 4 largest tables, and so on. Only tables that may change to row-wise are counted.

        All other tables have the sharding types of the first choice.
        """
        size_bytes = np.array([table.size_bytes for table in self.task.tables])
        for form in BLOCKS:
            yield from self._more_in(form, lambda tables: size_bytes[tables])

    def _more_in(self, form: int, value: Callable[[IntArray], FloatArray | IntArray]) -> IntArray:
        """Return n choices of sharding types for T tables, (n, T). The first choice gives the sharding type `form` to
        the table with the highest `value`, the second choice to the 2 tables with the highest values, then to 4, 8, ...
        tables.

        All other tables have the sharding types of the first choice. The last choice changes all tables that may
        change. The function `value` returns the value (t,) of changing tables (t,).
        """
        movable = np.flatnonzero(self._leading(self.allowed)[:, form] & (self.first == COLUMNS))
        if not len(movable):
            return np.zeros((0, len(self.leaders)), dtype=np.int64)
        ordered = movable[np.argsort(-value(movable), kind="stable")]
        nested = np.repeat(self.first[None], len(ordered).bit_length() + 1, axis=0)
        for power, types in enumerate(nested):
            types[ordered[: 1 << power]] = form
        return nested[:, self.leaders]

    def fewer_column_wise(self) -> Iterator[IntArray]:
        """Yield choices of sharding types (T,) with fewer and fewer column-wise tables. The tables that save the most
        bytes with another sharding type change first.

        Tables that are kept together change as one.
        """
        size = np.zeros(self.allowed.shape)
        np.add.at(size, self.leaders, self._bytes_by_type())
        size[~self._leading(self.allowed)] = np.inf
        others = size.copy()
        others[:, COLUMNS] = np.inf
        movable = np.flatnonzero(np.isfinite(others.min(axis=1)))
        saved = size[movable, COLUMNS] - others[movable].min(axis=1)
        ordered = movable[np.argsort(-saved, kind="stable")]
        fewest = max(int(np.isinf(saved).sum()), 1)  # these may not be column-wise
        for count in np.unique(np.linspace(fewest, len(ordered), SETTINGS.scarce_choices).astype(np.int64)):
            types, moved = self.first.copy(), ordered[:count]
            types[moved] = others[moved].argmin(axis=1)
            yield types[self.leaders]

    def for_scarce_memory(self) -> Iterator["Choice"]:
        """Yield choices of sharding types to try if memory is scarce: the first choice, then choices with large
        row-wise tables, then choices with fewer column-wise tables.
        """
        yield self.first_choice
        if self.has_choice:
            yield from (Choice(self, types) for types in chain(self.more_row_wise(), self.fewer_column_wise()))

    def _bytes_by_type(self) -> IntArray:
        """Return the bytes of device memory that each table takes with each sharding type, as an array (T, F) for T
        tables and F families of sharding types. The bytes of a table are the total over all devices.
        """
        devices, size_of = self.task.topology.num_devices, self.task.memory.device_bytes
        shared = (LAYOUTS[FORMS[form]].share(self.task.loads, devices) for form in OTHERS)
        others = [size_of(loads) * devices for loads in shared]
        return np.stack([size_of(self.task.loads), *others], axis=1)[:, np.argsort([COLUMNS, *OTHERS])]

    def shortage(self, error: UserError) -> UserError:
        """Return the error to raise if no plan was found: the given `error`, or an error about the memory for the
        tables.

        If some table may not be column-wise, the result is `error`. Otherwise, if sums of bytes prove that the tables
        do not fit in memory as column-wise tables, the result is an error with these bytes. If the sums prove nothing,
        the result is `error` if all tables are column-wise in the first choice; if not, it is a new error, which may
        name an amount of memory for each device that suffices for column-wise tables.
        """
        if not self.may_have[:, COLUMNS].all():
            return error
        space = SearchSpace.of_task(self.task)
        try:
            check_total(space)
        except InfeasibleError as short:
            return short
        return error if (self.first == COLUMNS).all() else shortage(space)


@dataclass(frozen=True, eq=False)
class Choice:
    """A choice of sharding types (one type per table), with the cost of a quickly made plan and with an estimated cost.

    Attributes:
        options: the options from which the sharding types are chosen.
        types: (T,) sharding types.
        quick_ms: cost of the quick plan; infinite if the column-wise tables did not fit.
        estimate_ms: estimated cost of the choice.
    """

    options: OptionTable
    types: IntArray
    quick_ms: float = float("nan")
    estimate_ms: float = float("nan")

    @property
    def is_first(self) -> bool:
        """True if every table has the same sharding type as in the option table's first choice (column-wise if
        allowed).
        """
        return bool((self.types == self.options.first).all())

    @property
    def both_ms(self) -> float:
        """The sum of the quick plan's cost and the estimated cost, ms, by which choices are ranked."""
        return self.quick_ms + self.estimate_ms

    def quick_plan(self) -> Plan | None:
        """Return a plan in which the tables have the sharding types of this choice, and a fast method places the
        column-wise tables. Return None if the tables do not fit in memory.
        """
        options = self.options
        try:
            fixed = options.fixed_load(self.types)
            if options.space is None or not len(fixed.column_wise):
                return fixed.plan()
            space = options.space.take(fixed)
            widths = options.quick.first_widths(space)
        except InfeasibleError:
            return None
        return None if widths is None else space.plan(widths)
