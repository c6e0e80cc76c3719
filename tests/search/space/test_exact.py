"""Packing: plans of small tasks are found if any exist, and errors name an amount of memory that suffices."""

import os
import re
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import optimize

from neuroshard import InfeasibleError, MemoryUse, Plan, Simulator, Table, Task, Topology, UserError
from neuroshard.plumbing.schema import readable_bytes_up, to_bytes
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.ablations import NoCommunication, WithModels
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.options.sharding_types import SpreadPlacements, allowed_types, known_calls
from neuroshard.stages.search.space.exact import keeps, pack_exactly
from neuroshard.stages.search.space.fixed_load import FixedLoad, device_memory
from neuroshard.stages.search.space.memory_checks import packed
from neuroshard.stages.search.space.packing import pack, smallest_factor
from neuroshard.stages.search.space.search_space import SearchSpace
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule
from neuroshard.testing import ONCE, constrained_task, linear_models, toy_task
from neuroshard.words.form import Form
from tests.kit.exhaustive import TinyTask, checked_plan, tiny_task
from tests.kit.messages import refused
from tests.kit.searches import H100, found
from tests.kit.tasks import plain_tables, plain_task

SPLITTING = (
    BeamSearch(max_splits=2),
    NeuroShard(max_splits=2, improvement=Improvement(perturbations=2)),
    WithModels(BeamSearch(max_splits=1), NoCommunication()),
)
QUICKLY = NeuroShard(max_splits=2, improvement=Improvement(perturbations=1), sharding_type_trials=1)
TRIES = int(os.environ.get("NEUROSHARD_FUZZ", "80"))
SEVERAL = pytest.mark.parametrize("tasks", [TRIES, pytest.param(250, marks=pytest.mark.slow)])
KIB = 1 << 10
UNEVEN = (6, 5, 5, 4, 4, 4, 4)  # rows of 32 slices on two devices of 16: 6 + 5 + 5 and 4 x 4 only


@SEVERAL
@pytest.mark.parametrize("searcher", SPLITTING, ids=lambda searcher: type(searcher).__name__)
def test_small_tasks_are_impossible_if_no_plan_is_found(searcher, tasks):
    outcomes = Counter(type(checked_plan(searcher, tiny_task(seed), seed, may_give_up=False)) for seed in range(tasks))
    assert outcomes.keys() == {Plan, InfeasibleError, UserError}
    assert min(outcomes.values()) > tasks / 8


@SEVERAL
@pytest.mark.parametrize(
    ("kind", "simulator", "may_give_up"),
    [
        ({"most_rows": 1 << 20}, None, True),  # where a fit to the last byte is all that there is
        ({"most_rows": 1 << 40}, None, True),
        ({"pooled": (True, False)}, H100, False),
    ],
    ids=["large", "huge", "sequences"],
)
def test_searches_with_large_numbers_or_sequence_tables_agree_with_all_plans(kind, simulator, may_give_up, tasks):
    outcomes = (checked_plan(SPLITTING[0], tiny_task(n, **kind), n, simulator, may_give_up) for n in range(tasks))
    assert sum(isinstance(outcome, Plan) for outcome in outcomes) > tasks / 8


@SEVERAL
@pytest.mark.parametrize("pooled", [(True,), (True, False)])
def test_pack_exactly_finds_a_packing_unless_there_is_no_plan(pooled, tasks):
    decided = 0
    for seed in range(1000, 1000 + tasks):
        tiny = tiny_task(seed, pooled=pooled)
        try:
            task = tiny.task()
        except UserError:
            continue
        space = SearchSpace.of_task(task)
        held = pack_exactly(space, device_memory(task))
        if held is None:
            assert not tiny.has_plan()
        else:
            decided += 1
            assert space.plan(held).violations == ()
    assert decided > tasks / 8


@pytest.mark.parametrize("first", [0, 1])
def test_searchers_find_a_plan_for_pins_in_any_order(first):
    pins = PinnedShard("t0", 4, (0, 1)), PinnedShard("t0", 4, (0,))
    task = plain_task([8], 10, 1.0, constraints=Constraints(pinned=(pins[first], pins[1 - first])))
    for searcher in SPLITTING:
        found(searcher, task, Simulator(linear_models(2)))


def test_keeps_agrees_with_violations_of_plans():
    for seed in range(20):
        task = constrained_task(seed)
        space = SearchSpace.of_task(task)
        held = pack(space, np.full(task.topology.num_devices, 1 << 40))
        rng = np.random.default_rng(seed)
        for _ in range(20):
            assert keeps(space.shards, held, device_memory(task)) == (space.plan(held).violations == ())
            item, (source, target) = int(rng.integers(len(held))), rng.integers(len(held[0]), size=2)
            if space.shards.rules.max_shards[item] > 1 and len(space.shards.rules.rivals_of(item)) == 0:
                units = int(rng.integers(held[item, source] + 1))
                held[item, source] -= units
                held[item, target] += units


def test_packing_uses_small_devices_beside_huge_ones_to_the_byte():
    task = plain_task([8, 8, 4], [1 << 30, 3, 3], 1.0, 3, (32 << 30, 96, 48))
    assert packed(SearchSpace.of_task(task)).tolist() == [[2, 0, 0], [0, 2, 0], [0, 0, 1]]
    with pytest.raises(InfeasibleError):
        packed(SearchSpace.of_task(replace(task, topology=Topology(3, (32 << 30, 96, 47)))))


def test_exact_solver_is_limited_by_a_node_count_only(monkeypatch):
    given_options, solve = [], optimize.milp
    monkeypatch.setattr(
        optimize, "milp", lambda *some, options, **more: given_options.append(options) or solve(*some, **more)
    )
    task = plain_task([8], 10, 1.0)
    assert pack_exactly(SearchSpace.of_task(task), device_memory(task)) is not None
    assert [list(options) for options in given_options] == [["node_limit"]]


def _toy_sizes(count, seed, num_devices):
    task = toy_task(count, num_devices, seed=seed)
    return task, SearchSpace.of_task(task)


@given(st.integers(1, 20), st.integers(0, 9), st.integers(1, 6), st.floats(0.8, 2.0))
def test_packings_place_every_column_within_the_memory_of_each_device(count, seed, num_devices, slack):
    task, space = _toy_sizes(count, seed, num_devices)
    caps = np.linspace(0.8, 1.2, num_devices) * slack * task.size_bytes / num_devices
    held = pack(space, caps.astype(np.int64))
    if held is None:
        return
    assert (held.sum(axis=1) == space.shards.full_width).all()
    assert (space.shards.device_bytes(held) <= caps).all()


@given(st.integers(1, 20), st.integers(0, 9), st.integers(1, 6))
def test_smallest_factor_gives_memory_that_suffices_and_is_near_the_lower_bound(count, seed, num_devices):
    task, space = _toy_sizes(count, seed, num_devices)
    cap = int(np.ceil(1000 * smallest_factor(space, np.full(num_devices, 1000))))
    assert pack(space, np.full(num_devices, cap)) is not None
    slice_bytes = int(space.shards.size_bytes[space.shards.first + 1].max())
    assert task.size_bytes / num_devices <= cap <= 1.01 * (task.size_bytes / num_devices + slice_bytes)


def test_exact_packing_finds_packings_that_filling_by_size_misses():
    task = plain_task(4, UNEVEN, 1.0, memory_bytes=16 * 16)
    space, memory = SearchSpace.of_task(task), np.array(task.shard_memory)
    assert pack(space, memory) is None
    assert space.plan(pack_exactly(space, memory)).fits
    assert pack_exactly(space, memory - 16) is None
    assert NeuroShard().find(task, Simulator(linear_models(2))).plan.fits


def test_packings_of_constrained_tasks_break_no_limit():
    kept = 0
    for seed in range(30):
        space = SearchSpace.of_task(constrained_task(seed))
        held = pack(space, np.array(space.task.shard_memory))
        if held is not None:
            kept += 1
            assert space.plan(held).violations == ()
    assert kept >= 20


def _tight(seed, most_devices=3, tables=(2, 3)):
    """Draw a task of a few small tables, with about the memory that some sharding types of them need."""
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(2, most_devices + 1))
    drawn = tuple(
        Table(f"t{i}", int(rng.integers(2, 60)), 4 * int(rng.integers(1, 4)), float(rng.uniform(0.5, 2)), ONCE)
        for i in range(int(rng.integers(tables[0], tables[1] + 1)))
    )
    task = Task(drawn, Topology(devices, 1 << 30), 64, MemoryUse("sgd", 1))
    received = (1 << 30) - task.shard_memory[0]
    memory = int(task.total_bytes / devices * rng.uniform(0.5, 1.15)) + received
    return replace(task, topology=Topology(devices, memory))


def _has_plan(task):
    """Return True if column-wise tables fit for some choice of sharding types, by trying all."""
    allowed = allowed_types(task, known_calls(H100.models))
    for forms in product(*(np.flatnonzero(row).tolist() for row in allowed)):
        try:
            base = FixedLoad.of(task, SpreadPlacements(task).others(np.array(forms)), H100.models.compute)
        except InfeasibleError:
            continue
        if not len(base.column_wise) or TinyTask(_columns_task(base), Constraints()).has_plan():
            return True
    return False


def _columns_task(base):
    """Return a task of the column-wise tables alone, with the memory that other tables leave, at least one byte."""
    task, tables = base.task, tuple(base.task.tables[table] for table in base.column_wise)
    columns, devices = sum(table.output_columns for table in tables), task.topology.num_devices
    received = task.memory.received_bytes(columns, task.batch_size, devices)
    memory = tuple((np.maximum(base.free_bytes, 1) + received).tolist())
    return Task(tables, Topology(devices, memory), task.batch_size, task.memory)


def test_small_tasks_have_no_plan_of_any_sharding_type_if_none_is_found():
    kept = otherwise = refused = 0
    for seed in range(16):
        task = _tight(seed)
        try:
            plan = found(QUICKLY, task)
        except InfeasibleError as error:
            assert not _has_plan(task), (seed, error)
            refused += 1
        else:
            kept += 1
            otherwise += set(plan.forms) != {Form.COLUMN_WISE}
    assert min(kept, otherwise, refused) > 1


@pytest.mark.parametrize("seed", [19, 67, 91, 238])
def test_search_changes_sharding_types_of_tables_until_all_fit(seed):
    """Tables fit neither all column-wise, nor with the largest table row-wise and the rest column-wise."""
    task = _tight(seed, most_devices=4, tables=(4, 8))
    with pytest.raises(InfeasibleError):
        BeamSearch(max_splits=1).find(task, H100)
    found(QUICKLY, task)


@pytest.mark.parametrize("together", [(), (("t0", "t1"),)])
def test_data_parallel_tables_that_fit_if_column_wise_ones_do_not_are_found(together):
    """Data-parallel tables have no output buffers of the global batch; tables kept together change together."""
    loose = plain_task([32, 32], 40, 1.0, memory=MemoryUse("sgd", 1))
    data_parallel = replace(loose, constraints=Constraints((TableRule("*", sharding_types=("data_parallel",)),)))
    plan = NeuroShard(improvement=Improvement(perturbations=0)).find(data_parallel, H100).plan
    memory = max(plan.device_bytes) + (1 << 30) - loose.shard_memory[0]
    task = replace(loose, topology=Topology(2, memory), constraints=Constraints(together=together))
    found(QUICKLY, task)
    with refused("tables-exceed-devices", kind=InfeasibleError):
        BeamSearch().find(task, Simulator(linear_models(2)))


def _of_kib(sizes_kib, memory_bytes, use, reserved_bytes=0):
    tables = plain_tables(16, np.array(sizes_kib) * KIB // 64)
    return Task(tables, Topology(4, memory_bytes, reserved_bytes=reserved_bytes), 64, use)


@pytest.mark.parametrize("use", [MemoryUse(), MemoryUse("adam", 1)], ids=["weights", "training"])
@pytest.mark.parametrize("space", [[3000], [3500, 3500, 3500], [200] * 50, [200, 200, 200, 3, 7]])
def test_memory_named_by_an_error_suffices_for_the_tables(space, use):
    """Errors of one table whose narrowest shards fit on no device, and errors of several tables."""
    task = _of_kib(space, 160 * KIB, use, reserved_bytes=40 * KIB)
    for searcher in (QUICKLY, BeamSearch(max_splits=2)):
        with refused("tables-exceed-devices", names=["4 devices"], kind=InfeasibleError) as caught:
            searcher.find(task, H100)
        given_memory = _with_named_memory(task, caught.value)
        found(searcher, given_memory)
        assert given_memory.topology.memory_bytes < 1.2 * max(task.total_bytes / 4 + 160 * KIB, 1)


def test_error_on_unequal_devices_names_the_factor_of_memory_that_suffices():
    memory = (100 * KIB, 150 * KIB, 150 * KIB, 200 * KIB)
    task = _of_kib([300] * 5, memory, MemoryUse(), reserved_bytes=10 * KIB)
    with refused("tables-exceed-devices", kind=InfeasibleError) as caught:
        QUICKLY.find(task, H100)
    times = float(re.search(r"[\d.]+", caught.value.message.remedy)[0])
    more = tuple(int(size * times) + 1 for size in memory)
    given_memory = replace(task, topology=replace(task.topology, memory_bytes=more))
    found(QUICKLY, given_memory)


def _with_named_memory(task, error):
    """Return the task with the memory that an error advises; None if the error names no amount.

    An amount without a unit is a factor of the memory of each device.
    """
    named = re.search(r"([\d.]+)( \wiB| bytes)?", error.message.remedy)
    if named is None:
        return None
    amount, unit = named.groups()
    more = (
        tuple(int(size * float(amount)) for size in task.topology.device_memory)
        if unit is None
        else to_bytes(f"{amount}{unit.replace(' bytes', '')}", "named")
    )
    return replace(task, topology=replace(task.topology, memory_bytes=more))


def _suffices(searcher, task, simulator):
    try:
        searcher.find(task, simulator)
    except InfeasibleError as error:
        more = _with_named_memory(task, error)
        assume(more is not None)
        found(searcher, more, simulator)
    else:
        assume(False)


@given(st.integers(0, 1 << 20), st.sampled_from([30, 1 << 20]))
def test_memory_named_by_an_error_suffices_under_constraints(seed, most_rows):
    try:
        task = tiny_task(seed, most_rows).task()
    except UserError:
        assume(False)
    _suffices(BeamSearch(max_splits=1), task, Simulator(linear_models(task.topology.num_devices)))


def test_named_memory_suffices_if_buffers_fill_every_device():
    task = plain_task([32, 32], 40, 1.0, memory=MemoryUse("sgd", 1))
    buffers = (1 << 30) - task.shard_memory[0]
    full = replace(task, topology=Topology(2, buffers))
    assert set(full.shard_memory) == {0}
    with refused("tables-exceed-devices", names=["0 bytes"], kind=InfeasibleError) as caught:
        BeamSearch().find(full, Simulator(linear_models(2)))
    found(BeamSearch(), _with_named_memory(full, caught.value), Simulator(linear_models(2)))


@settings(max_examples=25)
@given(st.integers(0, 1 << 20))
def test_named_memory_suffices_for_tables_of_all_sharding_types(seed):
    _suffices(QUICKLY, _tight(seed), H100)


@pytest.mark.parametrize(
    "size", [1, 1023, 1025, 999.5 * KIB, 1.2345 * (1 << 30), 123.45 * (1 << 30), 12345 * (1 << 30)]
)
def test_readable_bytes_up_never_shows_less_than_the_size(size):
    text = readable_bytes_up(size)
    assert size <= to_bytes(text.replace(" bytes", ""), "size") <= size * 1.011 + 1


def test_errors_for_tables_that_must_be_row_wise_name_their_bytes():
    rules = Constraints((TableRule("*", sharding_types=("row_wise",)),))
    task = replace(_of_kib([1000, 600], 160 * KIB, MemoryUse()), constraints=rules)
    named = ["1.56 MiB", "4 devices of 160 KiB", "640 KiB"]
    with refused("tables-least-exceeds-devices", names=named, kind=InfeasibleError):
        QUICKLY.find(task, H100)
