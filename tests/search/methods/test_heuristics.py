"""Heuristics halve tables that fit on no device, as few times as possible."""

import pytest

from neuroshard import Constraints, InfeasibleError, PinnedShard, Simulator, TableRule, Task, Topology, search
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy, Random
from neuroshard.testing import linear_models, sequence_task, toy_task
from neuroshard.words.form import Form
from tests.kit.messages import refused
from tests.kit.searches import H100, found
from tests.kit.tasks import plain_task

NAMES = ("random", *(f"{score}_greedy" for score in SCORES))
SIMULATOR = Simulator(linear_models(4))


def _task(dims, columns=1 << 30, **fields):
    """Tables of 1000 rows on 4 devices with room for so many columns each."""
    return plain_task(dims, lookups=5.0, devices=4, memory_bytes=1000 * columns * 4, **fields)


def _widths(plan, table):
    return sorted(placed.shard.dim for placed in plan.placements if placed.shard.table == table)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_larger_than_a_device_is_halved(name):
    task = _task([128, 16, 16, 16, 8], 76)
    plan = search(task, SIMULATOR, name)
    assert plan.violations == ()
    assert _widths(plan, 0) in ([64, 64], [32, 32, 64])  # a half of what another table left no room for
    assert all(len(_widths(plan, table)) == 1 for table in range(1, 5))
    with refused("searcher-no-device-with-room", names=["'t0'", "500 KiB"], kind=InfeasibleError):
        search(task, SIMULATOR, name, max_halvings=0)


def test_greedy_halves_a_table_at_most_max_halvings_times():
    task = _task([128, 4], 36)
    assert _widths(Greedy("dim").find(task, SIMULATOR).plan, 0) == [32] * 4
    assert _widths(Greedy("dim", max_halvings=2).find(task, SIMULATOR).plan, 0) == [32] * 4
    named = ["64 of 128 columns", "'t0'", "250 KiB"]
    with refused("searcher-no-device-with-room", names=named, kind=InfeasibleError):
        Greedy("dim", max_halvings=1).find(task, SIMULATOR)


@pytest.mark.parametrize("searcher", [Greedy("size"), Random()])
def test_heuristics_keep_tables_whole_if_devices_have_room(searcher):
    for seed in range(5):
        plan = searcher.find(toy_task(12, seed=seed), SIMULATOR).plan
        assert len(plan.placements) == 12


@pytest.mark.parametrize("rule", [TableRule("t0", max_shards=2), TableRule("t0", min_dim=64)])
def test_greedy_halves_tables_only_as_far_as_rules_allow(rule):
    limits = Constraints((rule,))
    assert _widths(Greedy("size").find(_task([128, 4], 68, constraints=limits), SIMULATOR).plan, 0) == [64, 64]
    with refused("table-exceeds-device", names=["'t0'", "64 columns"], kind=InfeasibleError):
        Greedy("size").find(_task([128, 4], 36, constraints=limits), SIMULATOR)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "limits",
    [
        Constraints(
            (TableRule("t1", devices=(0, 1)), TableRule("t2", devices=(0,))), apart=(("t0", "t1", "t2", "t3"),)
        ),
        Constraints(pinned=(PinnedShard("t0", 4, (0, 1)), PinnedShard("t0", 8, (0,)), PinnedShard("t0", 16, (2,)))),
    ],
)
def test_tables_with_the_fewest_allowed_devices_are_placed_first(name, limits):
    """Otherwise larger tables would fill the only allowed device of another table."""
    assert search(_task([64, 32, 16, 64], constraints=limits), SIMULATOR, name).violations == ()


@pytest.mark.parametrize("name", NAMES[1:])
def test_tables_kept_apart_from_every_device_raise_an_error(name):
    limits = Constraints(apart=tuple((f"t{number}", "t4") for number in range(4)))
    with refused("searcher-no-device-allowed", names=["greedy", "'t4'"], kind=InfeasibleError):
        search(_task([64, 64, 64, 64, 32], constraints=limits), SIMULATOR, name)


@pytest.mark.parametrize("max_halvings", [0, 3])
def test_heuristics_split_a_table_into_the_min_shards_of_a_rule(max_halvings):
    task = _task([64, 16, 16], constraints=Constraints((TableRule("t0", min_shards=3),)))
    for searcher in (Greedy("size", max_halvings), Random(0, max_halvings)):
        assert _widths(found(searcher, task, SIMULATOR), 0) == [20, 20, 24]


def test_sequence_tables_have_two_equal_halves_at_most():
    loose = sequence_task(1, 4, pooled=False)
    roomy, tight = (
        Task(loose.tables, Topology(4, int(loose.tables[0].size_bytes * share)), loose.batch_size)
        for share in (0.6, 0.3)
    )
    halved = found(Greedy("size"), roomy)
    assert halved.forms == (Form.COLUMN_WISE,)
    first, second = _widths(halved, 0)
    assert first == second
    with refused("table-exceeds-device", names=["'toy0'"], kind=InfeasibleError):
        Greedy("size").find(tight, H100)
