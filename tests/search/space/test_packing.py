import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neuroshard.models.simulator import Simulator
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.exact import pack_exactly
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.packing import pack, smallest_factor
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE, constrained_task, linear_models, toy_task


def _sizes(count, seed, num_devices):
    task = toy_task(count, num_devices, seed=seed)
    return task, Sizes.of(Items.of(Base.empty(task)))


@given(st.integers(1, 20), st.integers(0, 9), st.integers(1, 6), st.floats(0.8, 2.0))
def test_packings_hold_every_column_within_every_cap(count, seed, num_devices, slack):
    task, sizes = _sizes(count, seed, num_devices)
    caps = np.linspace(0.8, 1.2, num_devices) * slack * task.size_bytes / num_devices
    held = pack(sizes, caps.astype(np.int64))
    if held is None:
        return
    assert (held.sum(axis=1) == sizes.full_width).all()
    assert (sizes.size_bytes[sizes.first[:, None] + held].sum(axis=0) <= caps).all()


@given(st.integers(1, 20), st.integers(0, 9), st.integers(1, 6))
def test_the_smallest_cap_is_enough_and_near_the_bound(count, seed, num_devices):
    task, sizes = _sizes(count, seed, num_devices)
    cap = int(np.ceil(1000 * smallest_factor(sizes, np.full(num_devices, 1000))))
    assert pack(sizes, np.full(num_devices, cap)) is not None
    slice_bytes = int(sizes.size_bytes[sizes.first + 1].max())
    assert task.size_bytes / num_devices <= cap <= 1.01 * (task.size_bytes / num_devices + slice_bytes)


def test_half_the_memory_is_not_enough():
    task, sizes = _sizes(6, 0, 2)
    assert pack(sizes, np.full(2, task.size_bytes // 4)) is None


def test_exact_packing_finds_what_filling_by_size_misses():
    rows = (6, 5, 5, 4, 4, 4, 4)  # 32 slices' worth on two devices of 16: 6 + 5 + 5 and 4 x 4 only
    tables = tuple(Table(f"t{i}", count, 4, 1.0, ONCE) for i, count in enumerate(rows))
    task = Task(tables, Topology(2, 16 * 16), 256)
    sizes, memory = Sizes.of(Items.of(Base.empty(task))), np.array(task.shard_memory)
    assert pack(sizes, memory) is None
    assert sizes.items.plan(pack_exactly(sizes, memory).held).fits
    less = pack_exactly(sizes, memory - 16)
    assert less.held is None
    assert less.proven
    assert NeuroShard().find(task, Simulator(linear_models(2))).plan.fits


def test_packings_keep_constraints():
    packed = 0
    for seed in range(30):
        task = constrained_task(seed)
        sizes = Sizes.of(Items.of(Base.empty(task)))
        held = pack(sizes, np.array(task.shard_memory))
        if held is not None:
            packed += 1
            assert sizes.items.plan(held).violations == ()
    assert packed >= 20
