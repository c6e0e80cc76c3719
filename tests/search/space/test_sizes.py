"""Bytes that searches count as moved, against those of plans and numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

import neuroshard as ns
from neuroshard.plans.moves import moved_between
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.testing import toy_task


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
