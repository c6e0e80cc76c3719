"""Memory of caches: FBGEMM has one for all cached tables of a kernel call, with rows as wide as the widest of them."""

from collections import defaultdict
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard import Constraints, MemoryUse, Plan, TableRule, Task, Tier, TierAssignment, Topology
from neuroshard.cost.loads import LoadSets
from neuroshard.plans.carry_over import Carried
from neuroshard.stages.search.options.tier_changes import assign_tiers
from neuroshard.words.placement import ON_DEVICE
from tests.kit.messages import refused
from tests.kit.plans import laid_out, table, whole
from tests.kit.tasks import plain_tables

GIB = 1 << 30
CACHED = TierAssignment(Tier.UVM_CACHING, 0.2)
ALL_CACHED = Constraints((TableRule("*", tiers=("uvm_caching",), cache_load_factor=0.2),))


def _thin_and_wide(devices=1, pipeline=None):
    tables = table("thin", 200_000_000, 16), table("wide", 4_000_000, 512)
    return Task(
        tables,
        Topology(devices, 24 * GIB, host_memory_bytes=256 * GIB),
        8192,
        MemoryUse("sgd", 0, pipeline),
        ALL_CACHED,
    )


def _on_device(tables, homes):
    """Count the bytes of whole tables on a single device, each in its tier."""
    task = assign_tiers(Task(tables, Topology(1, GIB, host_memory_bytes=GIB), 64), homes)
    (size,) = whole(task, 0).device_bytes
    return size


def _cache(rows, room, columns, element_bytes=4):
    """Bytes of a cache for so many of a table's rows, and of the cache's lists."""
    return room * (columns * element_bytes + 16) + 4 * rows


def test_all_rows_of_a_cache_are_as_wide_as_the_widest_table():
    task = _thin_and_wide()
    plan = whole(task, 0)
    assert plan.device_bytes == (40_800_000 * (2048 + 16) + 4 * 204_000_000,)
    assert not plan.fits
    (broken,) = plan.violations
    assert "73.9 GiB of this" in broken
    assert "512 columns" in broken


def test_caches_on_different_devices_have_rows_as_wide_as_their_own_tables():
    task = _thin_and_wide(2)
    apart = laid_out(task, 0, 1)
    assert apart.device_bytes == (_cache(200_000_000, 40_000_000, 16), _cache(4_000_000, 800_000, 512))
    assert apart.violations == ()
    assert not laid_out(task, 0, 0).fits


def test_prefetching_pipeline_counts_a_separate_cache_for_each_width():
    task = _thin_and_wide(pipeline="prefetch")
    plain = task.memory.device_bytes(task.loads)
    assert whole(task, 0).device_bytes == (plain.sum(),)
    assert whole(_thin_and_wide(pipeline="sparse_dist"), 0).device_bytes > (plain.sum(),)


def test_cache_rows_are_as_wide_as_the_widest_column_shard_on_the_device():
    task = assign_tiers(Task(plain_tables([64, 16]), Topology(4, GIB, host_memory_bytes=GIB), 64), (CACHED, CACHED))
    plan = laid_out(task, {0: 16, 1: 48}, 1)
    narrow, widest = _cache(1000, 200, 16), _cache(1000, 200, 48)
    assert plan.device_bytes == (narrow, 2 * widest, 0, 0)
    assert laid_out(task, dict.fromkeys(range(4), 16), 0).device_bytes == (2 * narrow, *[narrow] * 3)


def test_row_wise_blocks_do_not_widen_the_cache_of_column_wise_tables():
    task = assign_tiers(Task(plain_tables([64, 16, 8]), Topology(2, GIB, host_memory_bytes=GIB), 64), (CACHED,) * 3)
    plan = laid_out(task, [0, 1], [0, 1], 0)
    blocks = 2 * _cache(500, 100, 64)
    assert plan.device_bytes == (blocks + _cache(1000, 200, 8), blocks)


@pytest.mark.parametrize("field", [{"bytes_per_element": 2}, {"pooled": False}])
def test_tables_of_another_kernel_call_have_a_separate_cache(field):
    narrow, wide = plain_tables([16, 64])
    other = replace(wide, **field)
    size = _cache(1000, 200, 16) + _cache(1000, 200, 64, other.bytes_per_element)
    assert _on_device((narrow, other), (CACHED,) * 2) == size


def test_uncached_tables_do_not_widen_a_cache():
    narrow, wide = plain_tables([16, 64])
    for home, size in ((TierAssignment(Tier.UVM), 0), (ON_DEVICE, wide.size_bytes)):
        assert _on_device((narrow, wide), (CACHED, home)) == _cache(1000, 200, 16) + size


def _tables_on_devices(draw_widths):
    """Draw (rows, dim, device, bytes per element, pooled, tier, share of the cache) of 1 to 8 tables on 3 devices."""
    one = st.tuples(
        st.integers(1, 5000), draw_widths, st.integers(0, 2), st.sampled_from([2, 4]), st.booleans(),
        st.sampled_from(Tier), st.floats(0.01, 1.0),
    )  # fmt: skip
    return st.lists(one, min_size=1, max_size=8)


def _plan_of(drawn, memory):
    tables = tuple(
        table(f"t{i}", rows, dim, bytes_per_element=size, pooled=pooled)
        for i, (rows, dim, _, size, pooled, _, _) in enumerate(drawn)
    )
    homes = tuple(TierAssignment(tier, share if tier is Tier.UVM_CACHING else None) for *_, tier, share in drawn)
    task = assign_tiers(Task(tables, Topology(3, GIB, host_memory_bytes=GIB), 64, memory), homes)
    return laid_out(task, *(device for _, _, device, *_ in drawn))


@given(_tables_on_devices(st.sampled_from([4, 8, 64])), st.sampled_from([None, "none", "semi_sync", "prefetch"]))
def test_device_bytes_of_a_plan_count_one_cache_for_each_kernel_call(drawn, pipeline):
    """Beside what a load takes if it is alone: every call's rows in caches, times what they are too narrow by."""
    plan = _plan_of(drawn, MemoryUse("rowwise_adagrad", pipeline=pipeline))
    alone, sets = plan.task.memory.device_bytes(plan.device_loads.loads), plan.device_loads
    expected, caches = sets.totals(alone).astype(int).tolist(), defaultdict(list)
    for rows, dim, device, size, pooled, tier, share in drawn:
        if tier is Tier.UVM_CACHING:
            caches[device, size, pooled or dim].append((ceil(rows * share), dim * size))
    for (device, *_), its in caches.items():
        widest = max(row_bytes for _, row_bytes in its)
        if pipeline != "prefetch":
            expected[device] += sum(room * (widest - row_bytes) for room, row_bytes in its)
    assert plan.device_bytes == tuple(expected)


@given(_tables_on_devices(st.just(16)))
def test_device_bytes_without_widened_caches_are_the_sum_over_tables(drawn):
    plan = _plan_of(drawn, MemoryUse("adagrad", 1))
    alone = plan.task.memory.device_bytes(plan.device_loads.loads)
    assert plan.device_bytes == tuple(plan.device_loads.totals(alone).astype(int).tolist())


def test_carried_shards_leave_out_caches_that_exceed_device_memory():
    task = _thin_and_wide()
    carried = Carried(task, ((0, 16, 0), (1, 512, 0)), (), dict.fromkeys(range(2), CACHED))
    assert carried.fitting.columns == ((1, 512, 0),)
    roomy = _thin_and_wide(2)
    apart = Carried(roomy, ((0, 16, 0), (1, 512, 1)), (), dict.fromkeys(range(2), CACHED))
    assert apart.fitting == apart


def test_plan_file_whose_cache_exceeds_memory_lists_the_violation(tmp_path):
    whole(_thin_and_wide(), 0).save(tmp_path / "plan.json")
    (broken,) = Plan.load(tmp_path / "plan.json").violations
    assert "different devices" in broken


def test_cache_bytes_above_2_to_the_60_are_refused():
    tables = (*(table(f"t{i}", 1 << 40, 4) for i in range(64)), table("wide", 4, 1 << 16))
    loads = assign_tiers(
        Task(tables, Topology(1, GIB, host_memory_bytes=1 << 59), 64), (TierAssignment(Tier.UVM_CACHING, 1.0),) * 65
    ).loads
    with refused("memory-caches-too-large", where="memory", names=["2^60"]):
        MemoryUse().bytes_with_caches(LoadSets(loads, np.array([65])))
