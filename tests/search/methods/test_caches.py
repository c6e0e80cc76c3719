"""Searches keep narrow and wide cached tables apart, because a cache's rows are as wide as its widest table."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard import Constraints, InfeasibleError, MemoryUse, TableRule, Task, Topology
from neuroshard.plans.caches import cut_to, on_own_devices, shared_caches, width_classes
from neuroshard.plumbing.configs import choices
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.stages.search.options.tier_changes import fix_tiers
from neuroshard.stages.search.space.search_space import SearchSpace
from neuroshard.testing.toys import cached_task
from neuroshard.words.placement import Tier
from tests.kit.messages import refused
from tests.kit.plans import laid_out, tables
from tests.kit.searches import H100, found, ms_of
from tests.kit.tasks import hot_table, plain_tables
from tests.search.methods.test_searchers import PEERS, _searcher

MIB = 1 << 20
QUICKLY = NeuroShard(improvement=Improvement(perturbations=3))
WHOLE = {"max_shards": 1, "sharding_types": ("column_wise",)}
# Of their own: `narrow` 10 MiB of cache, `wide` 8 MiB; in one cache `narrow` would take 160.
SHAPES = [16, 256], [1_000_000, 40_000]


def _task(memory_mib, devices=2, shapes=SHAPES, pipeline=None, **rule):
    topology = Topology(devices, int(memory_mib * MIB), host_memory_bytes=1 << 40)
    rules = (TableRule("*", **{"tiers": ("uvm_caching",), "cache_load_factor": 0.2} | rule),)
    return Task(plain_tables(*shapes), topology, 4096, MemoryUse("sgd", 0, pipeline), Constraints(rules))


def _hot(memory_mib, pipeline=None, tiers=("uvm_caching", "uvm")):
    """Two tables in host memory with few hot rows, so that caches lower the cost."""
    shapes = zip("ab", *reversed(SHAPES), strict=True)
    topology = Topology(1, int(memory_mib * MIB), host_memory_bytes=1 << 40)
    hot, rules = tuple(hot_table(*shape, 20.0, 4096) for shape in shapes), (TableRule("*", tiers=tiers),)
    return Task(hot, topology, 4096, MemoryUse("sgd", 0, pipeline), Constraints(rules))


KNOWS_NO_CACHES = ("autoshard", "dreamshard", "with_other_models", "without_augmentation", "replan")
EVERY = [name for name in choices("searcher") if name not in KNOWS_NO_CACHES]


@pytest.mark.parametrize(
    "name", [name for name in EVERY if name not in PEERS]
)  # TorchRec's planner knows no such rules
def test_searchers_separate_caches_of_two_widths_if_nothing_else_fits(name):
    task = _task(42, shapes=[shape * 2 for shape in SHAPES], **WHOLE)
    apart = (0, 1, 0, 1), (1, 0, 1, 0)
    fitting = [places for places in product(range(2), repeat=4) if laid_out(task, *places).fits]
    assert sorted(fitting) == sorted(apart)
    plan = found(_searcher(name), task)
    assert tuple(placed.device for (placed,) in plan.by_table) in apart


@pytest.mark.parametrize("name", EVERY)
def test_every_searcher_refuses_a_shared_cache_that_exceeds_the_only_device(name):
    by_torchrec = name.startswith("torchrec")
    code = "torchrec-search-breaks-constraints" if by_torchrec else "tables-exceed-devices"
    with refused(code, names=["cache_load_factor" if by_torchrec else "210 MiB"], kind=InfeasibleError):
        _searcher(name).find(_task(60, 1, **WHOLE), H100)
    found(_searcher(name), _task(60, 1, pipeline="prefetch", **WHOLE))


def test_searchers_split_wide_cached_tables_if_nothing_else_fits():
    task = _task(70, 4, ([16, 64], [1_000_000, 2_000_000]), sharding_types=("column_wise",))
    everywhere = task.with_rules((TableRule("t0", min_shards=4),))
    fours, halves = dict.fromkeys(range(4), 16), {0: 32, 1: 32}
    assert laid_out(everywhere, dict.fromkeys(range(4), 4), fours).violations == ()
    assert not laid_out(everywhere, dict.fromkeys(range(4), 4), halves).fits
    for searcher in (Greedy("size"), QUICKLY):
        assert {placed.shard.dim for placed in found(searcher, everywhere).by_table[1]} == {16}


def test_search_places_cached_tables_of_three_widths_on_separate_devices():
    task = _task(60, 6, ([8, 32, 128] * 2, [2_000_000, 800_000, 200_000] * 2), **WHOLE)
    plan = found(QUICKLY, task)
    held = [{placed.shard.dim for placed in plan.placements if placed.device == device} for device in range(6)]
    assert all(len(widths) == 1 for widths in held if widths)


def test_search_finds_smaller_caches_on_one_device_if_rules_allow():
    task = _hot(60)
    plan = found(QUICKLY, task)
    assert Tier.UVM_CACHING in {home.tier for home in plan.tier_assignments}
    on_host = replace(task, constraints=Constraints((TableRule("*", tiers=("uvm",)),)))
    assert ms_of(plan) < ms_of(found(QUICKLY, on_host))


def test_caches_of_unequal_widths_are_larger_if_prefetching_gives_each_width_its_own():
    apart, shared = (found(QUICKLY, _hot(100, pipeline, ("uvm_caching",))) for pipeline in ("prefetch", "semi_sync"))
    assert ms_of(apart) < ms_of(shared)
    assert not replace(apart, task=shared.task).fits


def test_search_costs_no_more_than_a_plan_with_a_device_for_each_width():
    task = _task(200, 2)
    assert ms_of(found(QUICKLY, task)) <= ms_of(laid_out(task, 0, 1)) * 1.001


def test_replan_of_a_task_with_shared_caches_breaks_no_limit():
    task = _task(30, **WHOLE)
    start = laid_out(task, 1, 0)
    kept = found(Replan(start, improvement=Improvement(perturbations=3)), task)
    assert kept.violations == ()
    larger = replace(task, tables=tuple(replace(table, pooling_factor=9.0) for table in task.tables))
    found(Replan(start, improvement=Improvement(perturbations=3)), larger)


@given(st.integers(0, 1000), st.integers(0, 1 << 20))
@settings(max_examples=60, deadline=None)
def test_shard_bytes_add_up_to_no_less_than_the_device_bytes_of_plans(seed, placing):
    """Whole or split cached tables on random devices."""
    task, rng = cached_task(seed), np.random.default_rng(placing)
    space = SearchSpace.of_task(task)
    held = np.zeros((space.shards.num_items, task.topology.num_devices), dtype=np.int64)
    for item, width in enumerate(space.shards.full_width.tolist()):
        first, second = rng.choice(task.topology.num_devices, 2, replace=False)
        part = int(rng.integers(0, width)) if rng.random() < 0.5 else 0
        held[item, [first, second]] = width - part, part
    plan = space.plan(held)
    assert (space.shards.device_bytes(held) >= plan.device_bytes).all()


@given(st.integers(0, 1000), st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_width_classes_take_the_fewest_cache_bytes(seed, count):
    rng = np.random.default_rng(seed)
    dims = rng.choice([4, 8, 16, 32, 64, 128], 8)
    task = _task(1 << 20, 4, (dims, rng.integers(1, 100_000, 8)))
    cached = shared_caches(task)
    ways = width_classes(task, cached)
    assert [len(edges) for edges in ways] == list(range(2, min(4, len(set(dims.tolist()))) + 1))
    rooms = np.ceil(task.loads.rows * 0.2)

    def columns(edges):
        """Return the number of elements of all caches."""
        return (rooms * np.array(edges)[np.searchsorted(edges, dims)]).sum()

    widths = sorted(set(dims.tolist()))
    for edges in (edges for edges in ways if len(edges) == 2):
        assert columns(edges) == min(columns((width, widths[-1])) for width in widths[:-1])


@given(st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_plan_with_fixed_tiers_fits_the_upper_bounds_of_caches(seed):
    """With fixed tiers, the bytes that a search adds up are no more than the bytes of the plan."""
    task, rng = cached_task(seed), np.random.default_rng(seed)
    devices = task.topology.num_devices
    free = laid_out(task, *rng.integers(devices, size=len(task.tables)).tolist())
    received = task.topology.device_memory[0] - task.shard_memory[0]
    memory = tuple(max(size + received, 1) for size in free.device_bytes)
    plan = fix_tiers(replace(free, task=replace(task, topology=replace(task.topology, memory_bytes=memory))))
    assert plan.violations == ()
    space = SearchSpace.of_task(plan.task)
    held = SearchSpace.of_task(plan.task).widths(plan)
    assert (space.shards.device_bytes(held) <= plan.device_bytes).all()


def test_width_rules_that_contradict_rules_of_the_task_are_left_out():
    narrow, wide = tables("ab", 1000, 16), tables("cd", 1000, 64)
    cached = TableRule("*", tiers=("uvm_caching",))
    topology = Topology(2, 1 << 20, host_memory_bytes=1 << 30)
    bound = Constraints((cached, TableRule("a", devices=(0,)), TableRule("c", devices=(0,))))
    task = Task((*narrow, *wide), topology, 64, constraints=bound)
    assert on_own_devices(task, shared_caches(task), (16, 64)) is None
    whole = replace(task, constraints=Constraints((replace(cached, max_shards=1),)))
    assert cut_to(whole, shared_caches(whole), 16) is None
    kept = replace(task, constraints=Constraints((cached,), together=(("a", "c"),)))
    apart = on_own_devices(kept, shared_caches(kept), (16, 64))
    assert [len(its.devices) for its in apart.limits] == [1] * 4
    assert len({apart.limits[table].devices for table in (0, 2, 3)}) == 1


def test_shard_bytes_of_cached_tables_of_one_width_are_exact():
    task = _task(100, 2, ([64] * 4, 100_000))
    space = SearchSpace.of_task(task)
    alone = task.memory.device_bytes(task.loads)
    assert space.shards.size_bytes[space.shards.whole].tolist() == alone.tolist()
    assert (np.diff(space.shards.size_bytes[space.shards.first[0] : space.shards.first[1]])[1:] > 0).all()
