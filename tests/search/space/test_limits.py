"""Where a shard may lie: the compiled rule, beside what plans say of themselves and a plain one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from neuroshard.models.simulator import Simulator
from neuroshard.stages.search.rl.batch import TaskBatch
from neuroshard.stages.search.rl.cost_network import SimulatorCosts
from neuroshard.stages.search.rl.environment import Environment
from neuroshard.stages.search.space.base import Base, device_memory
from neuroshard.stages.search.space.items import Items, keeps_limits, may_lie, open_devices
from neuroshard.stages.search.space.sizes import Room, Sizes, devices_with_room, may_put, put
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import constrained_task, random_models, toy_task

SEEDS = range(8)


def _random_held(items, rng):
    """Every item on one to three devices, allowed there or not."""
    held = np.zeros(items.limits.allowed.shape, dtype=np.int64)
    for number, item in enumerate(items.items):
        devices = rng.permutation(held.shape[1])[
            : rng.integers(1, min(3, item.max_shards, item.width, held.shape[1]) + 1)
        ]
        cuts = np.sort(rng.choice(np.arange(1, item.width), size=len(devices) - 1, replace=False))
        held[number, devices] = np.diff([0, *cuts, item.width])
    return held


def _may_lie(items, held, item, device, leaving):
    there = set(np.flatnonzero(held[:, device])) - {leaving}
    return bool(items.limits.allowed[item, device]) and not there.intersection(items.rivals_of(item).tolist())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rule_is_that_of_items(seed):
    items, rng = Items.of(Base.empty(constrained_task(seed))), np.random.default_rng(seed)
    answers = []
    for _ in range(10):
        held = _random_held(items, rng)
        for item in range(len(items)):
            for leaving in (-1, *items.rivals_of(item).tolist()):
                found = [may_lie(items.limits, held, item, d, leaving) for d in range(held.shape[1])]
                assert found == [_may_lie(items, held, item, d, leaving) for d in range(held.shape[1])]
            answers += found
            assert open_devices(items.limits, held, item).tolist() == [
                _may_lie(items, held, item, d, -1) for d in range(held.shape[1])
            ]
    assert {True, False} == set(answers)


@pytest.mark.parametrize("seed", SEEDS)
def test_limits_are_kept_where_plans_break_none(seed):
    items, rng = Items.of(Base.empty(constrained_task(seed))), np.random.default_rng(seed)
    for _ in range(200):
        held = _random_held(items, rng)
        if keeps_limits(items.limits, held):
            broken = items.plan(held).violations
            assert not [line for line in broken if not line.startswith("device ")]


def test_every_limit_counts():
    tables = tuple(replace(table, dim=dim) for table, dim in zip(toy_task(2).tables, (32, 16), strict=True))
    task = Task(tables, Topology(3, 1 << 30), 256)
    rules = (TableRule(task.tables[0].name, devices=(0, 1), min_shards=2), TableRule(task.tables[1].name, min_dim=8))
    apart = ((task.tables[0].name, task.tables[1].name),)
    task = Task(task.tables, task.topology, task.batch_size, constraints=Constraints(rules))
    items = Items.of(Base.empty(task))
    wide, other = (item.width for item in items.items)
    good = np.array([[wide - 1, 1, 0], [other, 0, 0]])
    assert keeps_limits(items.limits, good)
    for row, held in ((0, [wide - 1, 0, 1]), (0, [wide, 0, 0]), (1, [other - 1, 0, 1]), (1, [0, 0, 0])):
        bad = good.copy()
        bad[row] = held
        assert not keeps_limits(items.limits, bad)
    bound = Task(task.tables, task.topology, task.batch_size, constraints=Constraints(rules, apart=apart))
    kept_apart = Items.of(Base.empty(bound))
    assert not keeps_limits(kept_apart.limits, good)
    assert keeps_limits(kept_apart.limits, np.array([[wide - 1, 1, 0], [0, 0, other]]))


def _room(task):
    sizes = Sizes.of(Items.of(Base.empty(task)))
    return sizes, Room.empty(sizes, device_memory(task))


@pytest.mark.parametrize("seed", SEEDS)
def test_room_is_what_is_left(seed):
    """Shards are put wherever they may be; what may be put is worked out anew each time."""
    task, rng = constrained_task(seed), np.random.default_rng(seed)
    sizes, room = _room(task)
    room.free_units[:] = cap = int(sizes.full_width.sum() * 0.6)
    limits = sizes.items.limits
    for item in rng.permutation(sizes.num_items).tolist():
        width = int(sizes.full_width[item])
        for part in (width - width // 2, width // 2) if limits.max_shards[item] > 1 and width > 1 else (width,):
            expected = []
            for device in range(len(room.free_bytes)):
                after = room.held[:, device].copy()
                after[item] += part
                fits = sizes.size_bytes[sizes.first + after].sum() <= device_memory(task)[device] and after.sum() <= cap
                meets = limits.min_shards[item] > 1 and room.held[item, device] > 0
                expected.append(bool(fits) and not meets and _may_lie(sizes.items, room.held, item, device, -1))
            assert devices_with_room(room, item, part).tolist() == expected
            assert [may_put(room, item, part, device) for device in range(len(expected))] == expected
            if any(expected):
                put(room, item, part, int(rng.choice(np.flatnonzero(expected))))


def test_the_last_byte_and_the_last_column_fit():
    task = toy_task(1, num_devices=1)
    size, width = task.tables[0].size_bytes, task.tables[0].dim // 4
    for memory_bytes, units, fits in ((size, width, True), (size - 1, width, False), (size, width - 1, False)):
        _, room = _room(Task(task.tables, Topology(1, memory_bytes), task.batch_size))
        room.free_units[:] = units
        assert may_put(room, 0, width, 0) == fits


@pytest.mark.parametrize("seed", SEEDS)
def test_policies_play_by_the_same_rule(seed):
    """Legal actions, of whole tables, are the devices with room, for every task of a batch alike."""
    tasks = [_whole_tables(task) for task in (constrained_task(seed), constrained_task(seed + 3))]
    simulator = Simulator(random_models(tasks[0].topology.num_devices, seed))
    environment = Environment(TaskBatch.of(tasks, "test"), SimulatorCosts(simulator))
    rooms, state, rng = [_room(task) for task in tasks], environment.reset(), np.random.default_rng(seed)
    for items in environment.order.T.tolist():
        legal, actions = environment.legal(state), []
        for (sizes, room), item, row in zip(rooms, items, legal.tolist(), strict=True):
            width = int(sizes.full_width[item])
            assert row == devices_with_room(room, item, width).tolist()
            actions.append(int(rng.choice(np.flatnonzero(row) if any(row) else len(row))))
            put(room, item, width, actions[-1])
        state = environment.step(state, legal, torch.tensor(actions))


def _whole_tables(task):
    """Without what wants tables split, and without the pinned shards, that make tasks differ in their items."""
    constraints = task.constraints
    rules = tuple(rule for rule in constraints.rules if (rule.min_shards or 1) == 1)
    roomy = Topology(task.topology.num_devices, sum(t.size_bytes for t in task.tables) * 4)
    return Task(task.tables, roomy, 256, constraints=Constraints(rules, (), constraints.together, constraints.apart))
