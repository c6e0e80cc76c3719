"""What of a plan stays when tables come and go, or devices do."""

from dataclasses import replace

from neuroshard import Constraints, PinnedShard, TableRule, Task, Tier, TierAssignment, Topology
from neuroshard.layouts import ROWS
from neuroshard.plans.carry_over import carried_over
from neuroshard.stages.search.space.homes import homed
from neuroshard.words.placement import ON_DEVICE
from tests.kit.plans import COPIES, laid_out, tables


def _task(names, devices=4, memory=1 << 20, per_host=2, constraints=None, rows=10):
    topology = Topology(devices, memory, devices_per_host=per_host)
    return Task(tables(names, rows, 8), topology, 64, constraints=constraints or Constraints())


def _hosted(names, **fields):
    task = _task(names, **fields)
    return replace(task, topology=replace(task.topology, host_memory_bytes=1 << 20))


def test_tables_that_stay_stay_where_they_are():
    before = laid_out(_task("abc"), 0, {1: 4, 3: 4}, 2)
    carried = carried_over(before, _task("cxb"))
    assert carried.columns == ((2, 4, 1), (2, 4, 3), (0, 8, 2))
    assert carried.plan is None  # x has no place
    assert carried.pinned.constraints.pinned == (
        PinnedShard("b", 4, (1,)),
        PinnedShard("b", 4, (3,)),
        PinnedShard("c", 8, (2,)),
    )
    assert replace(carried.pinned, constraints=Constraints()) == _task("cxb")
    assert carried_over(before, _task("cb")).plan == laid_out(_task("cb"), 2, {1: 4, 3: 4})


def test_shards_of_devices_that_go_are_free():
    before = laid_out(_task("ab"), 3, {1: 4, 3: 4})
    assert carried_over(before, _task("ab", 2)).columns == ((1, 4, 1),)
    assert carried_over(before, _task("ab", 8)).plan == laid_out(_task("ab", 8), 3, {1: 4, 3: 4})


def test_row_wise_and_data_parallel_tables_stay_on_as_many_devices():
    task = _task("abcd")
    before = laid_out(task, range(4), [2, 3], COPIES, 1)
    assert sorted(carried_over(before, task).plan.placements) == sorted(before.placements)
    pinned = carried_over(before, _task("xabcd")).pinned
    assert pinned.constraints.rules == (
        TableRule("a", devices=(0, 1, 2, 3), sharding_types=ROWS.type_names),
        TableRule("b", devices=(2, 3), sharding_types=ROWS.type_names),
        TableRule("c", devices=(0, 1, 2, 3), sharding_types=("data_parallel",)),
    )
    for other in (_task("abcd", 8), _task("abcd", per_host=4)):
        carried = carried_over(before, other)
        assert (carried.columns, carried.others) == (((3, 8, 1),), ())


def test_tables_of_another_shape_are_others():
    assert carried_over(laid_out(_task("a"), 1), _task("a", rows=11)).columns == ()


def test_limits_come_first():
    before = laid_out(_task("ab"), 3, 1)
    for rule in (TableRule("a", devices=(0, 1)), TableRule("a", sharding_types=("row_wise",))):
        assert carried_over(before, _task("ab", constraints=Constraints((rule,)))).columns == ((1, 8, 1),)
    assert carried_over(before, _task("ab", memory=100)).plan is None
    own = Constraints(pinned=(PinnedShard("b", 8, (1,)),), together=(("a", "c"),))
    assert carried_over(before, _task("abc", constraints=own)).pinned.constraints == own


def test_the_largest_shards_are_held_first():
    carried = carried_over(laid_out(_task("abc"), 3, {0: 4, 1: 4}, 2), _task("abcx"))
    assert carried.largest(1).columns == ((0, 8, 3), (2, 8, 2), (1, 4, 0), (1, 4, 1))
    assert carried.largest(0.7).columns == ((0, 8, 3), (2, 8, 2))
    assert carried.largest(0).columns == ()


def test_the_smallest_shards_leave_devices_without_room():
    before = laid_out(_task("abcd"), 3, {0: 4, 1: 4}, 0, {0: 4, 3: 4})
    columns = carried_over(before, _task("abcd")).columns
    assert carried_over(before, _task("abcd", memory=640)).fitting.columns == columns
    assert set(columns) - set(carried_over(before, _task("abcd", memory=600)).fitting.columns) == {(3, 4, 0)}
    assert carried_over(before, _task("abcd", memory=100)).fitting.columns == ()


def test_tables_stay_in_host_memory_where_there_is_any():
    cached = TierAssignment(Tier.UVM_CACHING, 0.5)
    before = laid_out(homed(_hosted("ab"), (cached, ON_DEVICE)), 0, 1)
    carried = carried_over(before, _hosted("xa"))
    assert carried.tier_assignments == {1: cached}
    assert TableRule("a", tiers=(Tier.UVM_CACHING,), cache_load_factor=0.5) in carried.pinned.constraints.rules
    assert carried_over(before, _hosted("ab")).plan.tier_assignments == (cached, ON_DEVICE)
    assert carried_over(before, _task("ab")).columns == ((1, 8, 1),)
    never = Constraints((TableRule("a", tiers=(Tier.DEVICE,)),))
    assert carried_over(before, _hosted("ab", constraints=never)).columns == ((1, 8, 1),)
