"""Spreading memory: more free memory on the fullest device, within the tolerance of the cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neuroshard as ns
from neuroshard import Task, Topology
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.local_search import LocalSearch
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.options.spread_memory import spread_memory
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.fixed_load import FixedLoad
from neuroshard.testing import constrained_task
from tests.kit.searches import H100, ms_of

QUICK = NeuroShard(improvement=Improvement(perturbations=10))


def _tables(count, rows, pooling_factor):
    return tuple(ns.Table(f"t{i}", rows, 64, pooling_factor, ns.zipf_reuse(rows, 4096)) for i in range(count))


def _fullest(plan):
    return max(used / memory for used, memory in zip(plan.device_bytes, plan.task.shard_memory, strict=True))


def _spread(space, widths, more):
    local = LocalSearch(space, widths)
    begun = local.costed(widths)
    return begun, spread_memory(space, local, begun, begun.cost_ms * (1 + more))


def test_tables_on_one_device_spread_evenly_if_any_cost_is_allowed():
    task = Task(_tables(16, 100_000, 10.0), Topology(4, "1GiB"), 4096)
    space = CostedSpace.checked(FixedLoad.empty(task), H100)
    widths = np.zeros((16, 4), dtype=np.int64)
    widths[:, 0] = 16
    _, plans = _spread(space, widths, 100.0)
    fullest = [int(space.shards.device_bytes(plan.widths).max()) for plan in plans]
    assert fullest == sorted(fullest, reverse=True)
    assert ((plans[-1].widths > 0).sum(axis=0) == 4).all()


def test_spreading_memory_keeps_tables_with_apart_rules_on_their_devices():
    task = constrained_task()
    space = CostedSpace.checked(FixedLoad.empty(task), H100)
    plan = QUICK.column_search.find(task, H100).plan
    before, plans = _spread(space, space.widths(plan), 10.0)
    bound = np.diff(space.shards.rules.rival_first) > 0
    assert bound.any()
    assert all((plan.widths[bound] == before.widths[bound]).all() for plan in plans)
    assert all(not space.plan(plan.widths).violations for plan in plans)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**16), st.integers(3, 12), st.sampled_from([2, 4, 8]), st.sampled_from([0.0, 0.005, 0.2]))
def test_spreading_memory_lowers_the_fullest_device_within_the_allowed_cost(seed, count, devices, more):
    rng = np.random.default_rng(seed)
    rows, pooling_factors = rng.integers(10, 10**6, count).tolist(), rng.uniform(1, 30, count).tolist()
    each = enumerate(zip(rows, pooling_factors, strict=True))
    tables = (ns.Table(f"t{i}", rows, 64, factor, ns.zipf_reuse(rows, 4096)) for i, (rows, factor) in each)
    task = Task(tuple(tables), Topology(devices, "4GiB"), 4096)
    space = CostedSpace.checked(FixedLoad.empty(task), H100)
    widths = np.zeros((count, devices), dtype=np.int64)
    widths[np.arange(count), rng.integers(0, devices, count)] = 16
    before, plans = _spread(space, widths, more)
    fullest = [int(space.shards.device_bytes(plan.widths).max()) for plan in plans]
    assert fullest == sorted(fullest, reverse=True)
    assert plans[0] is before
    assert all(plan.cost_ms <= before.cost_ms * (1 + more) for plan in plans)
    assert all((np.sort(plan.widths, axis=1) == np.sort(before.widths, axis=1)).all() for plan in plans)


@pytest.mark.parametrize("rows", [1_000, 4_000_000])
def test_the_default_search_leaves_the_fullest_device_more_free_memory_within_its_tolerance(rows):
    """Large tables with few lookups and small hot tables: the large tables may be on any device."""
    hot = tuple(replace(table, name=f"hot_{table.name}") for table in _tables(8, 100_000, 40.0))
    task = Task((*hot, *_tables(12, rows, 0.01)), Topology(4, "80GiB"), 4096)
    cheapest, plan = (replace(QUICK, tolerance=share).find(task, H100).plan for share in (0.0, 0.005))
    assert _fullest(plan) <= _fullest(cheapest)
    assert ms_of(plan) <= ms_of(cheapest) * 1.005
    assert max(plan.device_bytes) <= 1.4 * np.mean(plan.device_bytes)
