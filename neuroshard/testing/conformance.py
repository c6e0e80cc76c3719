"""Tests that every implementation of an interface must pass, such as every search method or every cost model.
The tests are methods of base classes. A test class for an implementation is derived from one of these classes.

Example:
    class TestMine(SearcherConformance):
        def make(self) -> Searcher:
            return Mine()
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets, Traffic
from neuroshard.models import CommModel, ComputeModel, CostModels, SumModel
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.plumbing.schema import MAX_SHARD_DIM
from neuroshard.tables import Table
from neuroshard.tables.reuse import MEAN_COUNTS
from neuroshard.targets.target import TARGETS, target_named
from neuroshard.tasks.task import Task
from neuroshard.testing.toys import (
    OpaqueCompute,
    cached_task,
    constrained_task,
    linear_models,
    random_models,
    sequence_task,
    shared_task,
    toy_tables,
    toy_task,
)
from neuroshard.words.collective import Collective
from neuroshard.words.form import COLUMN_WISE_CALL, FORMS
from neuroshard.words.placement import Tier, TierAssignment
from neuroshard.words.topology import Topology

if TYPE_CHECKING:
    from neuroshard.searching.searcher import Searcher

_ROUNDING = 1e-5  # relative error of single precision
_MOST_SAMPLES = 2048  # maximum batch size


class SearcherConformance:
    """Tests that every search method must pass.

    For slow methods, set a smaller `most_tasks`: the maximum number of random seeds of tasks in each test.
    """

    most_tasks = 12

    def make(self) -> "Searcher":
        """Return the searcher under test."""
        raise NotImplementedError

    def _seeds(self, count: int) -> range:
        return range(min(count, self.most_tasks))

    def test_covers_every_column_within_memory(self) -> None:
        """Check that plans cover all columns and fit in memory, for several tasks and numbers of devices."""
        for num_devices in (1, 2, 4):
            for seed in self._seeds(5):
                task = toy_task(3 + 5 * seed, num_devices, seed=seed)
                plan = self.make().find(task, Simulator(random_models(num_devices, seed))).plan
                assert plan.task == task
                assert sum(plan.device_dims) == task.output_columns
                assert plan.fits

    def test_serves_tables_of_several_features(self) -> None:
        """Check that plans for tables of several features are valid, and that a repeated call returns an equal plan."""
        for seed in self._seeds(3):
            count, num_devices = 5 + 4 * seed, 2 + seed
            task, simulator = shared_task(count, num_devices, seed), Simulator(linear_models(num_devices))
            plan = self.make().find(task, simulator).plan
            assert sum(plan.device_dims) == task.output_columns
            assert plan.violations == ()
            assert plan == self.make().find(task, simulator).plan

    def test_serves_sequence_tables_or_refuses(self) -> None:
        """Check that a search with sequence tables returns the same valid plan in two calls, or raises an error."""
        simulator = Simulator(CostModels.load("roofline:h100"))
        for task in (sequence_task(), sequence_task(7, 3, 1), sequence_task(5, 2, 2, pooled=False)):
            found, again = (_error_of(self.make(), task, simulator) for _ in range(2))
            if isinstance(found, Plan):
                assert found.violations == ()
                assert found == again

    def test_repeats_exactly(self) -> None:
        """Check that two searches for a plan of the same task return equal plans."""
        task, simulator = toy_task(20), Simulator(random_models())
        assert self.make().find(task, simulator).plan == self.make().find(task, simulator).plan

    def test_candidate_plans_keep_limits_and_repeat(self) -> None:
        """Check that candidate plans, which can be measured, are plans of the task that keep its limits. The plan that
        was found is one of them, there are at most as many as requested, and a repeated call returns equal plans.
        """
        task, simulator = constrained_task(1), Simulator(random_models(3, 1))
        found = _error_of(self.make(), task, simulator)
        if isinstance(found, Plan):
            plans, again = (self.make().candidate_plans(found, simulator, 3) for _ in range(2))
            assert len(plans) <= 3
            assert found.placements in [plan.placements for plan in plans]
            assert plans == again
            for plan in plans:
                _check_kept(plan, found.task)

    def test_respects_a_tight_cap(self) -> None:
        """Check that a task with little free memory gets a plan that fits, or an InfeasibleError."""
        for seed in self._seeds(10):
            loose = toy_task(16, seed=seed)
            cap = max(int(loose.size_bytes * 0.3), *(table.size_bytes for table in loose.tables))
            task = Task(loose.tables, Topology(4, cap), loose.batch_size)
            try:
                plan = self.make().find(task, Simulator(linear_models())).plan
            except InfeasibleError:
                continue
            assert plan.fits

    def test_refuses_what_cannot_fit(self) -> None:
        """Check that tables larger than the memory of all devices raise an InfeasibleError.
        The text of the error must have sizes with units, such as "3 GiB".
        """
        tables = toy_tables(8)
        task = Task(tables, Topology(2, sum(table.size_bytes for table in tables) // 3), 256)
        error = _error_of(self.make(), task, Simulator(linear_models(2)))
        assert isinstance(error, InfeasibleError)
        assert "iB" in str(error)

    def test_cuts_tables_that_are_wider_than_a_shard_may_be(self) -> None:
        """Check that no shard is wider than FBGEMM's kernels allow, even if the tables are wider than that."""
        for num_devices in (1, 3):
            tables = (replace(table, dim=dim) for table, dim in zip(toy_tables(4), (2048, 2052, 4096, 16), strict=True))
            task = Task(tuple(tables), Topology(num_devices, 1 << 32), 256)
            plan = self.make().find(task, Simulator(linear_models(num_devices))).plan
            assert plan.violations == ()
            assert max(placed.shard.dim for placed in plan.placements) <= MAX_SHARD_DIM

    def test_keeps_constraints_or_refuses(self) -> None:
        """Check that plans keep all constraints, or that the search method raises an InfeasibleError."""
        for seed in self._seeds(12):
            task, num_devices = constrained_task(seed), 2 + seed % 3
            found = _error_of(self.make(), task, Simulator(random_models(num_devices, seed)))
            if isinstance(found, Plan):
                _check_kept(found, task)
            else:
                assert isinstance(found, InfeasibleError)

    def test_serves_compute_models_of_any_form_or_refuses(self) -> None:
        """Check searches with a compute model that is not a sum over tables.
        For each task, two searches must return equal plans or raise an error. The plans must keep memory limits and
        constraints.
        """
        models = linear_models().with_compute(OpaqueCompute())
        for task in (toy_task(5), constrained_task(2, 8)):
            self._keeps_limits_or_refuses(task, Simulator(models))

    def test_keeps_constraints_under_models_that_know_every_form(self) -> None:
        """Check searches with cost models that support all sharding types.
        For each task, two searches must return equal plans or raise an error. The plans must keep memory limits and
        constraints.
        """
        simulator = Simulator(CostModels.load("roofline:h100"))
        for seed in self._seeds(4):
            self._keeps_limits_or_refuses(constrained_task(seed), simulator)

    def test_caches_as_wide_as_their_widest_table_fit(self) -> None:
        """Check that a search with cached tables of unequal widths returns the same valid plan twice, or raises an
        error.
        """
        simulator = Simulator(CostModels.load("roofline:h100"))
        for seed in self._seeds(6):
            task = cached_task(seed)
            found, again = (_error_of(self.make(), task, simulator) for _ in range(2))
            if isinstance(found, Plan):
                _check_kept(found, task)
                assert found == again

    def test_plans_for_a_target_are_in_its_words(self) -> None:
        """Check plans for each target, which is a system that trains with the plans, such as TorchRec. A plan must keep
        the rules of the target, and pass the checks before an export to the target. Two searches for the same task must
        return equal plans. Instead of returning a plan, a search may raise an InfeasibleError, or an error that names a
        model.
        """
        simulator = Simulator(CostModels.load("roofline:h100"))
        for target in map(target_named, TARGETS):
            for seed in self._seeds(2):
                task = target.constrained(toy_task(8, 2 + seed, seed=seed))
                if isinstance(found := self._keeps_limits_or_refuses(task, simulator), Plan):
                    target.check(found)

    def _keeps_limits_or_refuses(self, task: Task, simulator: Simulator) -> UserError | Plan:
        """Search twice for a plan of the task, and return the plan or the error of the first search.
        Check that the plan keeps the memory limits and constraints of the task, and that the second plan is equal.

        The error must be an InfeasibleError, or name a model.
        """
        found, again = (_error_of(self.make(), task, simulator) for _ in range(2))
        if isinstance(found, Plan):
            _check_kept(found, task)
            assert found == again
        else:
            assert isinstance(found, InfeasibleError) or "model" in str(found)
        return found

    def test_one_table(self) -> None:
        """Check that a plan for fewer tables than devices covers all columns."""
        plan = self.make().find(toy_task(1), Simulator(linear_models())).plan
        assert sum(plan.device_dims) == plan.task.tables[0].dim


def _error_of(searcher: "Searcher", task: Task, simulator: Simulator) -> UserError | Plan:
    """Return the plan that a searcher finds, or the error that the searcher raises."""
    try:
        return searcher.find(task, simulator).plan
    except UserError as error:
        assert error.code != "plan-breaks-limits"  # a plan that breaks limits is not a refusal
        return error


class ComputeModelConformance:
    """Tests that every compute model must pass. A compute model predicts the time of a device's embedding kernels."""

    def make(self) -> ComputeModel:
        """Return the model under test."""
        raise NotImplementedError

    def _tables(self) -> tuple[Table, ...]:
        return toy_tables(9)

    def test_costs_are_finite_and_not_negative(self) -> None:
        """Check that the costs of single tables, and of a set of tables, are finite and not negative."""
        tables = self._tables()
        cost = self.make().predict(LoadSets.of([*([table] for table in tables), tables], 256))
        assert cost.shape == (len(tables) + 1,)
        assert np.isfinite(cost).all()
        assert (cost >= 0).all()

    def test_repeats_exactly(self) -> None:
        """Check that the same tables cost exactly the same again, after other predictions and from a new model."""
        tables = self._tables()
        model, sets = self.make(), LoadSets.of([tables, tables[:3]], 256)
        cost = model.predict(sets)
        model.predict(LoadSets.of([tables[3:]], 128))
        assert (model.predict(sets) == cost).all()
        assert (self.make().predict(sets) == cost).all()

    def test_order_of_tables_does_not_matter(self) -> None:
        """Check that a set of tables costs the same in reverse order."""
        tables = self._tables()
        forward, backward = self.make().predict(LoadSets.of([tables, tables[::-1]], 256))
        assert np.isclose(forward, backward, rtol=1e-4)

    def test_every_form_that_it_knows_has_a_cost(self) -> None:
        """Check that the model supports column-wise tables.
        Check also that the model predicts valid costs for each type of kernel call that the model supports.

        Costs must be finite and not negative, and 0 for an empty set of loads.
        """
        model, loads = self.make(), Loads.of(self._tables(), 256)
        assert COLUMN_WISE_CALL in model.calls
        for call in model.calls:
            form, pooled = np.full(len(loads), FORMS.index(call.form)), np.full(len(loads), call.pooled)
            assignment = TierAssignment(call.tier, 0.25 if call.tier is Tier.UVM_CACHING else None)
            formed = replace(loads, form=form, pooled=pooled).at([assignment] * len(loads))
            cost = model.predict(LoadSets(formed, np.array([len(loads), 0])))
            assert np.isfinite(cost).all()
            assert cost[0] >= 0 == cost[1]

    def test_empty_set_costs_nothing(self) -> None:
        """Check that a device without tables costs 0, even if devices with tables come before and after it."""
        tables = self._tables()
        cost = self.make().predict(LoadSets.of([tables[:2], (), tables[2:]], 256))
        assert cost[1] == 0
        assert np.allclose(cost[[0, 2]], self.make().predict(LoadSets.of([tables[:2], tables[2:]], 256)))


class SumModelConformance(ComputeModelConformance):
    """Tests for compute models that add up vectors, as the cost model in the NeuroShard paper does.
    Such a model turns each table into a vector, and computes the time of a set of tables from the sum of the vectors.
    """

    def make(self) -> SumModel:
        """Return the model under test."""
        raise NotImplementedError

    def test_a_set_is_the_sum_of_its_vectors(self) -> None:
        """Check that the model can predict the cost of a set of tables from the sum of the tables' vectors. The method
        `embed` returns a vector for each table. The method `head`, called with the sum of these vectors, must return
        the cost that the method `predict` returns for the set.
        """
        model, tables = self.make(), self._tables()
        vectors = model.embed(Loads.of(tables, 256))
        assert np.allclose(model.head(vectors.sum(axis=0)), model.predict(LoadSets.of([tables], 256))[0], rtol=1e-4)


def _check_kept(plan: Plan, task: Task) -> None:
    """Assert that the plan is a plan of the task, and breaks none of the task's memory limits and constraints.

    The plan's task may have further rules only if a rule of the task has equal_widths.
    """
    added = plan.task.constraints.rules[len(task.constraints.rules) :]
    assert plan.task == task.with_rules(added)
    assert not added or any(limits.equal_widths for limits in task.limits)
    assert plan.violations == ()


def _exchange_ms(model: CommModel, dims: FloatArray, start_ms: FloatArray, batch_size: int) -> FloatArray:
    """Return the predicted exchange times of D devices in B exchanges, (B, D) ms.
    In each exchange, `dims` has the number of columns of each device, and `start_ms` has the start delay of each
    device.

    `dims` and `start_ms` are (B, D).
    """
    return model.predict(Traffic.of_columns(dims, batch_size), start_ms)


class CommModelConformance:
    """Tests that every communication model for 4 devices must pass.
    A communication model predicts the time that devices need for an exchange, such as the all-to-all of embeddings.
    """

    def make(self) -> CommModel:
        """Return the model under test."""
        raise NotImplementedError

    def _exchanges(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        return rng.integers(1, 200, size=(16, 4)) * 4.0, rng.uniform(0, 20, size=(16, 4))

    def test_costs_cover_the_wait(self) -> None:
        """Check that an exchange does not end on any device before the last device has started."""
        dims, starts = self._exchanges()
        cost = _exchange_ms(self.make(), dims, starts, 256)
        assert cost.shape == dims.shape
        assert np.isfinite(cost).all()
        assert (cost >= starts.max(axis=1, keepdims=True) - starts - 1e-9).all()

    def test_repeats_exactly(self) -> None:
        """Check that the same exchanges cost exactly the same again, after other predictions and from a new model."""
        dims, starts = self._exchanges()
        model = self.make()
        cost = _exchange_ms(model, dims, starts, 256)
        _exchange_ms(model, 2 * dims, starts, 128)
        assert (_exchange_ms(model, dims, starts, 256) == cost).all()
        assert (_exchange_ms(self.make(), dims, starts, 256) == cost).all()

    def test_devices_are_alike(self) -> None:
        """Check that all devices are treated alike.
        If devices swap their numbers of columns and their start delays, the costs must be swapped in the same way.
        """
        dims, starts = self._exchanges()
        order = np.array([2, 0, 3, 1])
        model = self.make()
        assert np.allclose(
            _exchange_ms(model, dims[:, order], starts[:, order], 256), _exchange_ms(model, dims, starts, 256)[:, order]
        )

    def test_only_differences_of_starts_count(self) -> None:
        """Check that costs stay the same if all devices start later by the same time."""
        dims, starts = self._exchanges()
        model = self.make()
        assert np.allclose(_exchange_ms(model, dims, starts + 7, 256), _exchange_ms(model, dims, starts, 256))

    def test_even_exchanges_cost_the_same_however_they_are_asked_for(self) -> None:
        """Check that both methods for predicting an exchange agree if all devices send equal bytes.
        The method `even_ms` predicts only exchanges with equal bytes, and the method `predict` predicts any exchange.
        The check is made for devices on one host and for devices on two hosts.
        """
        model, known = self.make(), [member for member in Collective if member in self.make().collectives]
        given = np.zeros((16, len(Collective)))
        given[:, known] = np.random.default_rng(0).integers(1, 200, size=(16, len(known))) * 4096.0
        for topology in (Topology(4, 1 << 30), Topology(4, 1 << 30, devices_per_host=2)):
            traffic = Traffic(np.repeat(given[:, None], 4, axis=1), np.full(16, 256), topology.fast_links)
            each_ms = model.predict(traffic, np.zeros((16, 4)))
            assert np.allclose(model.even_ms(given, 256, topology), each_ms.max(axis=1))


class PhysicalComputeConformance(SumModelConformance):
    """Tests for compute models that guarantee that more rows, columns, features or tables never cost less.
    Neural networks, such as the cost models in the NeuroShard paper, do not guarantee this.
    """

    def _pairs(self) -> list[tuple[list[Table], list[Table], int]]:
        """Return random cases, each as a tuple: a list of tables, a list with only one of these tables, and a batch
        size.
        """
        rng = np.random.default_rng(0)
        sets = [list(toy_tables(int(rng.integers(1, 12)), seed, 1_000_000)) for seed in range(60)]
        return [
            (tables, [tables[int(rng.integers(len(tables)))]], int(rng.choice([256, _MOST_SAMPLES]))) for tables in sets
        ]

    def _check_ordered(self, change: Callable[[Table], Table]) -> None:
        """Check that the model predicts no lower cost after a table is replaced by `change(table)`. The table that
        `change` returns must cause at least as much work as the original table.

        The check replaces all tables of a set, a single table that has a device to itself, and the same single table
        among the unchanged tables of the set.
        """
        model = self.make()
        for tables, alone, batch_size in self._pairs():
            changed = [[change(table) for table in some] for some in (tables, alone)]
            one_changed = [change(alone[0]), *(table for table in tables if table is not alone[0])]
            before = model.predict(LoadSets.of([tables, alone, tables], batch_size))
            after = model.predict(LoadSets.of([*changed, one_changed], batch_size))
            assert (after >= before * (1 - _ROUNDING)).all(), (before, after)

    def test_more_rows_cost_no_less(self) -> None:
        """Check that a table with more rows costs no less if the lookups stay the same.
        The reuse histogram of the table, which says how often a batch looks up the same row, is not changed.

        Tables with fewer rows than unique rows of their histogram are not changed.
        """

        def more_rows(table: Table) -> Table:
            """Return a copy of the table with four times as many rows. Return the table unchanged if its rows and its
            reuse histogram contradict each other: the histogram implies that a batch of `_MOST_SAMPLES` samples looks
            up more different rows than the table has.
            """
            unique = _MOST_SAMPLES * table.pooling_factor / (table.reuse @ MEAN_COUNTS)
            return replace(table, rows=4 * table.rows) if unique <= table.rows else table

        self._check_ordered(more_rows)

    def test_wider_tables_cost_no_less(self) -> None:
        """Check that a set of tables costs no less if all tables become wider: 32, 64, 96 and 128 columns are compared.
        These widths are multiples of 32, so that the rows of all tables are equally well aligned in memory.
        """
        model = self.make()
        for tables, _, batch_size in self._pairs():
            widths = [[table.with_dim(width) for table in tables] for width in (32, 64, 96, 128)]
            cost = model.predict(LoadSets.of(widths, batch_size))
            assert (cost[1:] >= cost[:-1] * (1 - _ROUNDING)).all()

    def test_more_features_cost_no_less(self) -> None:
        """Check that a table with 3 features costs no less than the same table with 1 feature and as many lookups."""
        self._check_ordered(lambda table: replace(table, features=3))

    def test_a_table_more_costs_no_less(self) -> None:
        """Check that a further table never reduces the cost of a device."""
        model = self.make()
        for tables, _, batch_size in self._pairs():
            growing = model.predict(LoadSets.of([tables[: n + 1] for n in range(len(tables))], batch_size))
            assert (np.diff(growing) >= -_ROUNDING * growing[:-1]).all()


class PhysicalCommConformance(CommModelConformance):
    """Tests for communication models that guarantee monotonic and continuous costs.
    Neural networks, such as the cost models in the NeuroShard paper, do not guarantee such costs.
    """

    def _cases(self) -> Iterator[tuple[FloatArray, FloatArray, int, np.random.Generator]]:
        """Yield random cases, each with B exchanges between 4 devices.
        A case is a tuple: the columns of each device, (B, 4), the start delays, (B, 4) in ms, the batch size, and a
        random generator.

        In half of the exchanges the devices start close together, as in plans of a search.
        """
        rng = np.random.default_rng(1)
        for batch_size in (256, 4096):
            dims = 4 * rng.integers(0, 400, size=(64, 4)).astype(np.float64)
            starts: FloatArray = rng.uniform(0, 1, size=(64, 4)) * rng.choice([0.0, 0.1, 2.0, 20.0], size=(64, 1))
            yield dims, starts, batch_size, rng

    def test_starting_later_ends_no_sooner(self) -> None:
        """Check how the predicted end times of an exchange change if one device starts later than before. No device may
        end earlier than before. No device may end later by more than the extra delay of this one device.
        """
        model = self.make()
        for dims, starts, batch_size, rng in self._cases():
            delay = rng.uniform(0, 2, size=(len(dims), 1)) * np.eye(4)[rng.integers(4, size=len(dims))]
            before, after = (_exchange_ms(model, dims, s, batch_size) + s for s in (starts, starts + delay))
            assert (after >= before - _ROUNDING * before).all()
            assert (after <= before + delay.max(axis=1, keepdims=True) + _ROUNDING * before).all()

    def test_costs_are_continuous_where_nobody_waits(self) -> None:
        """Check that predicted exchange times hardly change if the start delays change by less than 1e-12 ms. The start
        delay of a device is the time at which the device starts the exchange, in ms.
        """
        model = self.make()
        for dims, starts, batch_size, rng in self._cases():
            nudge = 1e-12 * rng.uniform(size=starts.shape)
            together = np.zeros_like(starts)
            for delays in (together, starts):
                before, after = (_exchange_ms(model, dims, s, batch_size) for s in (delays, delays + nudge))
                assert np.allclose(before, after, rtol=1e-9, atol=1e-9)

    def test_more_columns_take_no_less(self) -> None:
        """Check that, if one device has more columns, the exchange takes no less time on any device."""
        model = self.make()
        for dims, starts, batch_size, rng in self._cases():
            wider = dims + 64 * np.eye(4)[rng.integers(4, size=len(dims))]
            before, after = (_exchange_ms(model, d, starts, batch_size) for d in (dims, wider))
            assert (after >= before * (1 - _ROUNDING)).all()

    def test_a_larger_batch_takes_no_less(self) -> None:
        """Check that exchanging the same columns for twice the batch takes no less time."""
        model = self.make()
        for dims, starts, batch_size, _ in self._cases():
            small, large = (_exchange_ms(model, dims, starts, size) for size in (batch_size, 2 * batch_size))
            assert (large >= small * (1 - _ROUNDING)).all()
