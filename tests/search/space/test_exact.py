"""Plans are found wherever there are any; that there is none is said only where all tries agree."""

import os
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize

from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.ablations import NoCommunication, WithModels
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.space import exact, packing
from neuroshard.stages.search.space.base import Base, device_memory
from neuroshard.stages.search.space.exact import keeps, pack_exactly
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.packing import pack, packed
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE, constrained_task, linear_models
from tests.kit.exhaustive import checked_plan, tiny_task

SPLITTING = (
    BeamSearch(max_splits=2),
    NeuroShard(max_splits=2, improvement=Improvement(shakes=2)),
    WithModels(BeamSearch(max_splits=1), NoCommunication()),
)


def _sizes(task):
    return Sizes.of(Items.of(Base.empty(task)))


TRIES = int(os.environ.get("NEUROSHARD_FUZZ", "80"))
SEVERAL = pytest.mark.parametrize("tasks", [TRIES, pytest.param(250, marks=pytest.mark.slow)])


@SEVERAL
@pytest.mark.parametrize("searcher", SPLITTING, ids=lambda searcher: type(searcher).__name__)
def test_impossible_is_said_of_what_is_impossible_only(searcher, tasks):
    found = refused = impossible = 0
    for seed in range(tasks):
        tiny = tiny_task(seed)
        try:
            task = tiny.task()
            plan = searcher.find(task, Simulator(linear_models(task.topology.num_devices))).plan
        except InfeasibleError as error:
            assert "budget" not in str(error), seed  # so small a task is always decided
            assert not tiny.has_plan(), (seed, str(error))
            impossible += 1
        except UserError as error:
            assert not tiny.has_plan(), (seed, str(error))
            refused += 1
        else:
            assert plan.violations == (), seed
            assert tiny.has_plan(), seed
            found += 1
    assert min(found, refused, impossible) > tasks / 8


@SEVERAL
@pytest.mark.parametrize("most_rows", [1 << 20, 1 << 40])
def test_large_numbers_make_no_wrong_answers(most_rows, tasks):
    """They may leave it open, where a fit to the last byte is all that there is."""
    searcher, found = SPLITTING[0], 0
    for seed in range(tasks):
        found += checked_plan(searcher, tiny_task(seed, most_rows), seed) is not None
    assert found > tasks / 8


@SEVERAL
def test_sequence_tables_have_plans_wherever_there_are_any(tasks):
    found, simulator = 0, Simulator(CostModels.load("roofline:h100"))
    for seed in range(tasks):
        tiny = tiny_task(seed, pooled=(True, False))
        try:
            plan = SPLITTING[0].find(tiny.task(), simulator).plan
        except UserError as error:
            assert not tiny.has_plan(), (seed, str(error))
        else:
            found += 1
            assert plan.violations == (), seed
            assert tiny.has_plan(), seed
    assert found > tasks / 8


@SEVERAL
@pytest.mark.parametrize("pooled", [(True,), (True, False)])
def test_exact_answers_agree_with_trying_all(pooled, tasks):
    decided = 0
    for seed in range(1000, 1000 + tasks):
        tiny = tiny_task(seed, pooled=pooled)
        try:
            task = tiny.task()
        except UserError:
            continue
        answer, sizes = pack_exactly(_sizes(task), device_memory(task)), _sizes(task)
        if answer.held is None:
            assert answer.proven
            assert not tiny.has_plan()
        else:
            decided += 1
            assert sizes.items.plan(answer.held).violations == ()
    assert decided > tasks / 8


@pytest.mark.parametrize("first", [0, 1])
def test_pins_in_any_order_have_a_plan(first):
    pins = PinnedShard("t", 4, (0, 1)), PinnedShard("t", 4, (0,))
    rules = Constraints(pinned=(pins[first], pins[1 - first]))
    task = Task((Table("t", 10, 8, 1.0, ONCE),), Topology(2, 1 << 30), 256, constraints=rules)
    for searcher in SPLITTING:
        assert searcher.find(task, Simulator(linear_models(2))).plan.violations == ()


def test_what_is_kept_is_what_plans_keep():
    for seed in range(20):
        task = constrained_task(seed)
        sizes = _sizes(task)
        held = pack(sizes, np.full(task.topology.num_devices, 1 << 40))
        rng = np.random.default_rng(seed)
        for _ in range(20):
            assert keeps(sizes, held, device_memory(task)) == (sizes.items.plan(held).violations == ())
            item, (source, target) = int(rng.integers(len(held))), rng.integers(len(held[0]), size=2)
            if sizes.items.limits.max_shards[item] > 1 and len(sizes.items.rivals_of(item)) == 0:
                units = int(rng.integers(held[item, source] + 1))
                held[item, source] -= units
                held[item, target] += units


def test_a_budget_that_is_spent_proves_nothing(monkeypatch):
    """More than the solver takes on, and more than it may try: neither is a proof."""
    rng = np.random.default_rng(3)
    tables = tuple(
        Table(f"t{i}", int(rows), 64, 1.0, ONCE) for i, rows in enumerate(rng.integers(10**5, 10**6, size=30))
    )
    task = Task(tables, Topology(4, 1 << 50), 256, MemoryUse("rowwise_adagrad"))
    tight = replace(task, topology=Topology(4, int(task.total_bytes / 4 * 1.0001)))
    monkeypatch.setattr(exact, "_MOST_UNKNOWNS", 10)
    with pytest.raises(InfeasibleError, match="none found within the search's budget, though there may be a plan"):
        packed(_sizes(tight))
    monkeypatch.setattr(packing, "pack_exactly", lambda *_: exact.Packed(None, False))
    apart = Constraints((TableRule("t0", (0,)), TableRule("t1", (0,))), apart=(("t0", "t2"), ("t1", "t2")))
    monkeypatch.setattr(packing, "_pack_in_order", lambda *_: None)
    with pytest.raises(InfeasibleError, match="no plan found that keeps the constraints within the search's budget"):
        packed(_sizes(replace(task, constraints=apart)))


def test_a_proof_outlasts_rounding():
    """An exact fit of numbers too long for the solver: it must not be called impossible."""
    rng = np.random.default_rng(0)
    half = [int(rows) for rows in rng.integers(2**33, 2**34, size=8)]
    tables = tuple(Table(f"t{i}", rows, 4, 1.0, ONCE) for i, rows in enumerate(half + half))
    task = Task(tables, Topology(2, sum(half) * 16), 256)
    sizes = _sizes(task)
    assert keeps(sizes, np.repeat(np.eye(2, dtype=np.int64), 8, axis=0), device_memory(task))
    answer = pack_exactly(sizes, device_memory(task))
    assert answer.held is not None or not answer.proven


def test_small_devices_beside_huge_ones_are_used_to_the_byte():
    tables = (Table("large", 1 << 30, 8, 1.0, ONCE), Table("small", 3, 8, 1.0, ONCE), Table("least", 3, 4, 1.0, ONCE))
    task = Task(tables, Topology(3, (32 << 30, 96, 48)), 256)
    assert packed(_sizes(task)).tolist() == [[2, 0, 0], [0, 2, 0], [0, 0, 1]]
    less = replace(task, topology=Topology(3, (32 << 30, 96, 47)))
    with pytest.raises(InfeasibleError):
        packed(_sizes(less))


def test_the_solver_is_limited_by_counts_alone(monkeypatch):
    given = []
    solve = optimize.milp
    monkeypatch.setattr(optimize, "milp", lambda *some, options, **more: given.append(options) or solve(*some, **more))
    task = Task((Table("t", 10, 8, 1.0, ONCE),), Topology(2, 1 << 30), 256)
    assert pack_exactly(_sizes(task), device_memory(task)).held is not None
    assert [list(options) for options in given] == [["node_limit"]]
