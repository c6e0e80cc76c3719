"""Bytes that searches count as moved are those of plans, and devices' contents the loads that plans make of them."""

from dataclasses import fields, replace

import numpy as np
import pytest

import neuroshard as ns
from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.plans.moves import moved_between
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.packing import pack
from neuroshard.stages.search.space.sizes import DeviceLoads, Sizes
from neuroshard.testing import constrained_task, toy_task


@pytest.mark.parametrize("seed", range(4))
def test_plans_of_columns_count_as_searches_count_them(seed):
    task, rng = replace(toy_task(6, seed=seed), memory=ns.MemoryUse("rowwise_adagrad")), np.random.default_rng(seed)
    items = Items.of(Base.empty(task))
    sizes = Sizes.of(items)
    held = [rng.multinomial(sizes.full_width, [0.4, 0.3, 0.2, 0.1]) for _ in range(2)]
    expected = sizes.moved_bytes(*held)
    assert moved_between(*(items.plan(some) for some in held)).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_columns_times_rows_where_nothing_else_is_counted(seed):
    task, rng = toy_task(6, seed=seed), np.random.default_rng(seed)
    sizes = Sizes.of(Items.of(Base.empty(task)))
    before, after = (rng.multinomial(sizes.full_width, [0.25] * 4) for _ in range(2))
    more = np.maximum(after - before, 0).sum(axis=1) * 4
    expected = [
        int(columns) * table.rows * table.bytes_per_element for columns, table in zip(more, task.tables, strict=True)
    ]
    assert sizes.moved_bytes(before, after).tolist() == expected


def _sorted(sets):
    """Each set's loads as rows of numbers, in an order of their own."""
    loads = [getattr(sets.loads, field.name) for field in fields(Loads)]
    rows = np.column_stack(loads)
    return [sorted(map(tuple, part.tolist())) for part in np.split(rows, sets.counts.cumsum()[:-1])]


@pytest.mark.parametrize("seed", range(12))
def test_contents_are_the_loads_of_the_plan(seed):
    """Tables kept together, pinned shards and splits among them."""
    task = constrained_task(seed)
    items = Items.of(Base.empty(task))
    held = pack(Sizes.of(items), np.array(task.shard_memory))
    if held is None:
        pytest.skip("nothing fits")
    sets = DeviceLoads(items).sets(held.T)
    assert len(sets) == task.topology.num_devices
    assert _sorted(sets) == _sorted(items.plan(held).device_loads)


def test_devices_in_any_number_may_be_empty():
    items = Items.of(Base.empty(toy_task(3)))
    contents = np.zeros((5, 3), dtype=np.int64)
    contents[1, 2], contents[3] = 1, [item.width for item in items.items]
    sets = DeviceLoads(items).sets(contents)
    dims = np.array([4, *(table.dim for table in items.task.tables)])
    expected = LoadSets(items.task.loads.take(np.array([2, 0, 1, 2])).columns(dims), np.array([0, 1, 0, 3, 0]))
    assert sets.counts.tolist() == [0, 1, 0, 3, 0]
    assert _sorted(sets) == _sorted(expected)
    assert DeviceLoads(items).sets(contents[:1]).counts.tolist() == [0]
