"""Which tables can't load their optimizer state under another plan, and rules that keep them loading."""

from dataclasses import replace
from itertools import permutations

import pytest

from neuroshard import Constraints, MemoryUse, PinnedShard, TableRule, Task, Topology
from neuroshard.plans.checkpoints import checkpoint_remark, with_types_of
from tests.kit.messages import check
from tests.kit.plans import DATA_PARALLEL, laid_out, tables

PLACES = {
    "whole": 1,
    "halves": {0: 8, 3: 8},
    "quarters": dict.fromkeys(range(4), 4),
    "row-wise": range(4),
    "data-parallel": DATA_PARALLEL,
}
SHARDS = {"halves": 2, "quarters": 4}


def _task(names="ab", devices=4, optimizer="rowwise_adagrad", constraints=None, memory=1 << 20):
    topology = Topology(devices, memory)
    return Task(tables(names, 100, 16), topology, 64, MemoryUse(optimizer), constraints or Constraints())


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad", "partial_rowwise_adam", "adam"])
@pytest.mark.parametrize(("one", "other"), permutations(PLACES, 2))
def test_checkpoint_remark_names_tables_whose_state_does_not_load(one, other, optimizer):
    """As tried in `tests/neuroshard/torchrec/test_checkpoints.py`."""
    task = _task(optimizer=optimizer)
    remark = checkpoint_remark(laid_out(task, PLACES[one], 0), laid_out(task, PLACES[other], 3))
    by_row = optimizer in ("rowwise_adagrad", "partial_rowwise_adam")
    never = by_row and SHARDS.get(one, 1) != SHARDS.get(other, 1)
    dense = "data-parallel" in (one, other) and not never
    assert (remark is not None) is (never or dense)
    if remark:
        check(remark, "checkpoint-state-lost", where="checkpoints", names=["keep_types=true"])
        assert remark.limit.count("a: ") == 1  # the only table of which one of the two is said
        assert ("data_parallel_optimizer" in remark.limit) is dense


def test_checkpoint_remark_is_none_for_added_removed_and_column_wise_tables():
    before, after = _task("ab"), _task("bc")
    assert checkpoint_remark(laid_out(before, DATA_PARALLEL, {0: 8, 1: 8}), laid_out(after, {1: 8, 2: 8}, 0)) is None


@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
def test_with_types_of_restricts_a_table_to_its_type_and_number_of_shards(where):
    before = laid_out(_task(), where, 1)
    held = with_types_of(before, _task("xba"))
    assert laid_out(held, 0, 2, where).violations == ()
    for other in PLACES.values():
        assert (laid_out(held, 0, 2, other).violations == ()) is (other == where)
    assert held.limits[0] == _task("xba").limits[0]


def test_with_types_of_adds_nothing_that_contradicts_rules_of_the_task():
    before = laid_out(_task("abcd"), {0: 8, 1: 8}, range(4), dict.fromkeys(range(4), 4), 3)
    own = Constraints(
        (TableRule("a", max_shards=1), TableRule("b", sharding_types=("column_wise",)), TableRule("c", min_dim=8)),
        pinned=(PinnedShard("d", 8, (0,)),),
    )
    held = with_types_of(before, _task("abcd", constraints=own))
    assert laid_out(held, 0, 0, {0: 8, 1: 8}, {0: 8, 1: 8}).violations == ()
    fewer = with_types_of(before, _task("abcd", devices=2))
    assert laid_out(fewer, {0: 8, 1: 8}, range(2), 0, 1).violations == ()


FORBIDDEN = {
    "row-wise tables too wide for a shard": (range(4), {"dim": 4096}, {}),
    "row-wise tables on one device only": (range(4), {}, {"max_shards": 1}),
    "data-parallel tables on some devices only": (DATA_PARALLEL, {}, {"devices": (0, 1)}),
    "types that rules leave out": (range(4), {}, {"sharding_types": ("column_wise", "data_parallel")}),
}


@pytest.mark.parametrize(("where", "shape", "limits"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_with_types_of_ignores_types_that_rules_or_shapes_forbid(where, shape, limits):
    after = replace(_task(memory=1 << 30), constraints=Constraints((TableRule("a", **limits),)))
    after = replace(after, tables=(replace(after.tables[0], **shape), after.tables[1]))
    held = with_types_of(laid_out(_task(), where, 1), after)
    assert held.limits[0] == after.limits[0]
    assert held.limits[1] != after.limits[1]


@pytest.mark.parametrize("columns", [{0: 4096}, {0: 2048, 1: 2048}, {0: 2560, 1: 1536}, {0: 4096, 1: 4096}])
def test_plan_of_a_table_too_wide_for_a_shard_is_kept_on_any_number_of_devices(columns):
    """Such a table has several shards on a device: fewer devices than shards."""
    wide, small = _task(devices=2, memory=1 << 30).tables
    task = Task((replace(wide, dim=sum(columns.values())), small), Topology(2, 1 << 30), 64)
    plan = laid_out(task, columns, 1)
    assert plan.violations == ()
    assert laid_out(with_types_of(plan, task), columns, 1).violations == ()
