"""Constraints as the search sees them, allowed devices of shards, and items on devices compared with plans."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from neuroshard import Constraints, MemoryUse, PinnedShard, Simulator, TableRule, Task, Topology, search
from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.plans.moves import moved_between
from neuroshard.plans.plan import assemble
from neuroshard.stages.search.published.device_room import DeviceRoom, may_hold
from neuroshard.stages.search.rl.batch import TaskBatch
from neuroshard.stages.search.rl.cost_network import SimulatorCosts
from neuroshard.stages.search.rl.environment import Environment
from neuroshard.stages.search.space.fixed_load import device_memory
from neuroshard.stages.search.space.packing import pack
from neuroshard.stages.search.space.room import devices_with_room, keeps_rules, may_put, open_devices, put
from neuroshard.stages.search.space.search_space import SearchSpace
from neuroshard.testing import constrained_task, linear_models, random_models, toy_task
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out
from tests.kit.tasks import plain_task

SEEDS = pytest.mark.parametrize("seed", range(8))


def _space(*rules, **constraints):
    return SearchSpace.of_task(plain_task([16, 16, 32, 8], devices=3, constraints=Constraints(rules, **constraints)))


def _devices(space, item):
    return np.flatnonzero(space.shards.rules.allowed[item]).tolist()


def test_search_space_without_constraints_has_one_item_per_table():
    task = toy_task(7)
    space = SearchSpace.of_task(task)
    assert list(space.items) == [((i, t.dim // 4),) for i, t in enumerate(task.tables)]
    assert space.shards.rules.allowed.all()
    assert not space.shards.rules.confined.any()


def test_tables_kept_together_are_one_item_that_is_not_split():
    space = _space(TableRule("t1", devices=(0, 2)), TableRule("t3", devices=(1, 2)), together=(("t3", "t1"),))
    assert list(space.items) == [((0, 4),), ((1, 4), (3, 2)), ((2, 8),)]
    assert _devices(space, 1) == [2]
    assert space.shards.rules.max_shards[1] == 1
    plan = space.plan(np.array([[4, 0, 0], [0, 0, 6], [3, 5, 0]]))
    assert plan == assemble(space.task, [(0, 16, 0), (1, 16, 2), (3, 8, 2), (2, 12, 0), (2, 20, 1)])
    assert plan.violations == ()


def test_pinned_shards_are_items_apart_from_the_rest_of_their_table():
    space = _space(TableRule("t2", min_shards=3), pinned=(PinnedShard("t2", 8, (1,)),))
    assert list(space.items) == [((0, 4),), ((1, 4),), ((2, 2),), ((2, 6),), ((3, 2),)]
    rules = space.shards.rules
    assert _devices(space, 2) == [1]
    assert (rules.min_shards[3], rules.max_shards[3]) == (2, 6)
    assert rules.rivals_of(2).tolist() == [3]
    assert rules.rivals_of(3).tolist() == [2]


def test_items_of_tables_kept_apart_exclude_each_other():
    space = _space(apart=(("t0", "t1"), ("t1", "t3")), together=(("t2", "t3"),))
    assert [space.shards.rules.rivals_of(i).tolist() for i in range(3)] == [[1], [0, 2], [1]]


@pytest.mark.parametrize("seed", range(20))
def test_plan_converted_to_widths_and_back_is_unchanged(seed):
    task = constrained_task(seed)
    space = SearchSpace.of_task(task)
    held = pack(space, np.full(task.topology.num_devices, 1 << 40))
    plan = space.plan(held)
    assert space.plan(space.widths(plan)) == plan


def test_whole_table_may_be_pinned_and_kept_together():
    rules = Constraints(together=(("t0", "t1"),), pinned=(PinnedShard("t0", 12, devices=(1, 2)),))
    task = plain_task([12, 12], devices=4, constraints=rules)
    assert _devices(SearchSpace.of_task(task), 0) == [1, 2]
    plan = search(task, Simulator(linear_models()), searcher="dim_greedy")
    assert plan.violations == ()
    with refused("pin-splits-group", where="constraints", names=["'t0'", "`together`"]):
        replace(task, constraints=replace(rules, pinned=(PinnedShard("t0", 8, (1,)),)))


def test_tables_that_may_not_be_column_wise_are_refused():
    with refused("constraints-not-column-wise", where="constraints", names=["'t1'", "data_parallel or row_wise"]):
        _space(TableRule("t1", sharding_types=("row_wise", "data_parallel")))


def test_plans_with_row_wise_or_data_parallel_tables_are_not_items():
    task = toy_task(2)
    for where, form in ((range(4), "row_wise"), (DATA_PARALLEL, "data_parallel")):
        with refused("plan-sharding-type-unsupported", where="plan", names=["'toy0'", form]):
            SearchSpace.of_task(task).widths(laid_out(task, where, 0))


def _random_held(shards, rng):
    """Draw widths with every item on one to three devices, allowed or not."""
    held, most_shards = np.zeros(shards.rules.allowed.shape, dtype=np.int64), shards.rules.max_shards.tolist()
    for item, (most, width) in enumerate(zip(most_shards, shards.full_width.tolist(), strict=True)):
        devices = rng.permutation(held.shape[1])[: rng.integers(1, min(3, most, width, held.shape[1]) + 1)]
        cuts = np.sort(rng.choice(np.arange(1, width), size=len(devices) - 1, replace=False))
        held[item, devices] = np.diff([0, *cuts, width])
    return held


def _may_hold(rules, held, item, device, leaving):
    there = set(np.flatnonzero(held[:, device])) - {leaving}
    return bool(rules.allowed[item, device]) and not there.intersection(rules.rivals_of(item).tolist())


@SEEDS
def test_rules_of_items_agree_with_the_check_of_each_placement(seed):
    shards, rng = SearchSpace.of_task(constrained_task(seed)).shards, np.random.default_rng(seed)
    rules, answers = shards.rules, []
    for _ in range(10):
        held = _random_held(shards, rng)
        for item in range(shards.num_items):
            for leaving in (-1, *rules.rivals_of(item).tolist()):
                found = [may_hold(rules, held, item, d, leaving) for d in range(held.shape[1])]
                assert found == [_may_hold(rules, held, item, d, leaving) for d in range(held.shape[1])]
            answers += found
            assert open_devices(rules, held, item).tolist() == [
                _may_hold(rules, held, item, d, -1) for d in range(held.shape[1])
            ]
    assert {True, False} == set(answers)


@SEEDS
def test_widths_that_keep_rules_give_plans_without_broken_rules(seed):
    space, rng = SearchSpace.of_task(constrained_task(seed)), np.random.default_rng(seed)
    for _ in range(200):
        held = _random_held(space.shards, rng)
        if keeps_rules(space.shards.rules, held):
            broken = space.plan(held).violations
            assert not [line for line in broken if not line.startswith("device ")]


def test_keeps_rules_rejects_widths_that_break_any_rule():
    rules = Constraints((TableRule("t0", devices=(0, 1), min_shards=2), TableRule("t1", min_dim=8)))
    task = plain_task([32, 16], devices=3, constraints=rules)
    good = np.array([[7, 1, 0], [4, 0, 0]])
    limits = SearchSpace.of_task(task).shards.rules
    assert keeps_rules(limits, good)
    for row, held in ((0, [7, 0, 1]), (0, [8, 0, 0]), (1, [3, 0, 1]), (1, [0, 0, 0])):
        bad = good.copy()
        bad[row] = held
        assert not keeps_rules(limits, bad)
    apart = SearchSpace.of_task(replace(task, constraints=replace(rules, apart=(("t0", "t1"),)))).shards.rules
    assert not keeps_rules(apart, good)
    assert keeps_rules(apart, np.array([[7, 1, 0], [0, 0, 4]]))


def _room(task):
    space = SearchSpace.of_task(task)
    return space, DeviceRoom.empty(space.shards, device_memory(task))


@SEEDS
def test_device_room_is_the_memory_and_units_left(seed):
    """Place shards on random allowed devices, and recompute the allowed devices after each shard."""
    task, rng = constrained_task(seed), np.random.default_rng(seed)
    space, room = _room(task)
    room.free_units[:] = cap = int(space.shards.full_width.sum() * 0.6)
    limits = space.shards.rules
    for item in rng.permutation(space.shards.num_items).tolist():
        width = int(space.shards.full_width[item])
        for part in (width - width // 2, width // 2) if limits.max_shards[item] > 1 and width > 1 else (width,):
            expected = []
            for device in range(len(room.free_bytes)):
                after = room.widths[:, device].copy()
                after[item] += part
                fits = (
                    space.shards.size_bytes[space.shards.first + after].sum() <= device_memory(task)[device]
                    and after.sum() <= cap
                )
                meets = limits.min_shards[item] > 1 and room.widths[item, device] > 0
                expected.append(bool(fits) and not meets and _may_hold(limits, room.widths, item, device, -1))
            assert devices_with_room(space.shards, room, item, part).tolist() == expected
            assert [may_put(space.shards, room, item, part, device) for device in range(len(expected))] == expected
            if any(expected):
                put(space.shards, room, item, part, int(rng.choice(np.flatnonzero(expected))))


@pytest.mark.parametrize(("fewer_bytes", "fewer_units", "fits"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_shard_that_needs_the_last_byte_and_column_fits_exactly(fewer_bytes, fewer_units, fits):
    task = plain_task([16], 100, devices=1, memory_bytes=100 * 16 * 4 - fewer_bytes)
    space, room = _room(task)
    room.free_units[:] = 4 - fewer_units
    assert may_put(space.shards, room, 0, 4, 0) == fits


@SEEDS
def test_legal_actions_of_policies_are_the_devices_with_room(seed):
    """Legal actions, of whole tables, are the devices with room, for every task of a batch alike."""
    tasks = [_whole_tables(task) for task in (constrained_task(seed), constrained_task(seed + 3))]
    simulator = Simulator(random_models(tasks[0].topology.num_devices, seed))
    environment = Environment(TaskBatch.of(tasks, "test"), SimulatorCosts(simulator))
    rooms, state, rng = [_room(task) for task in tasks], environment.reset(), np.random.default_rng(seed)
    for items in environment.order.T.tolist():
        legal, actions = environment.legal(state), []
        for (space, room), item, row in zip(rooms, items, legal.tolist(), strict=True):
            width = int(space.shards.full_width[item])
            assert row == devices_with_room(space.shards, room, item, width).tolist()
            actions.append(int(rng.choice(np.flatnonzero(row) if any(row) else len(row))))
            put(space.shards, room, item, width, actions[-1])
        state = environment.step(state, legal, torch.tensor(actions))


def _whole_tables(task):
    """Return the task without rules that split tables and without pinned shards, so that tasks have equal items."""
    constraints = task.constraints
    rules = tuple(rule for rule in constraints.rules if (rule.min_shards or 1) == 1)
    roomy = Topology(task.topology.num_devices, sum(t.size_bytes for t in task.tables) * 4)
    return Task(task.tables, roomy, 256, constraints=Constraints(rules, (), constraints.together, constraints.apart))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_moved_bytes_are_those_of_plans_and_of_weights_alone_columns_times_rows(seed, optimizer):
    task, rng = replace(toy_task(6, seed=seed), memory=MemoryUse(optimizer)), np.random.default_rng(seed)
    space = SearchSpace.of_task(task)
    before, after = (rng.multinomial(space.shards.full_width, [0.4, 0.3, 0.2, 0.1]) for _ in range(2))
    moved = space.moved_bytes(before, after).tolist()
    assert moved == moved_between(space.plan(before), space.plan(after)).tolist()
    if optimizer == "sgd":
        more = np.maximum(after - before, 0).sum(axis=1) * 4
        row_bytes = [table.rows * table.bytes_per_element for table in task.tables]
        assert moved == (more * row_bytes).tolist()


def _sorted(sets):
    """Return the loads of each set as rows of numbers, sorted."""
    loads = [getattr(sets.loads, field.name) for field in fields(Loads)]
    rows = np.column_stack(loads)
    return [sorted(map(tuple, part.tolist())) for part in np.split(rows, sets.counts.cumsum()[:-1])]


@pytest.mark.parametrize("seed", range(12))
def test_device_loads_of_widths_equal_the_loads_of_the_plan(seed):
    """Tables kept together, pinned shards and splits among them."""
    task = constrained_task(seed)
    space = SearchSpace.of_task(task)
    held = pack(space, np.array(task.shard_memory))
    if held is None:
        pytest.skip("nothing fits")
    sets = space.device_loads(held)
    assert len(sets) == task.topology.num_devices
    assert _sorted(sets) == _sorted(space.plan(held).device_loads)


def test_device_loads_allow_any_number_of_empty_devices():
    space = SearchSpace.of_task(toy_task(3))
    contents = np.zeros((5, 3), dtype=np.int64)
    contents[1, 2], contents[3] = 1, space.shards.full_width
    sets = space.device_loads(contents.T)
    dims = np.array([4, *(table.dim for table in space.task.tables)])
    expected = LoadSets(space.task.loads.take(np.array([2, 0, 1, 2])).columns(dims), np.array([0, 1, 0, 3, 0]))
    assert sets.counts.tolist() == [0, 1, 0, 3, 0]
    assert _sorted(sets) == _sorted(expected)
    assert space.device_loads(contents[:1].T).counts.tolist() == [0]
