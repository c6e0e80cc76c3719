"""Plans changed after tables came or went, or with other devices: what moves is little, and is said."""

import pytest
from torchrec.distributed.planner import ParameterConstraints

from neuroshard.plumbing.errors import UserError
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.memory import MemoryUse
from tests.kit.torchrec_models import bags, planner

ROWS, DIM = 100, 16
SIZE = ROWS * DIM * 4


def _planner(devices=2, cap=1 << 20, **settings):
    return planner(devices, cap=cap, memory=MemoryUse(), improvement={"shakes": 0}, **settings)


def _devices(plan):
    return {name: sorted(parameter.ranks) for name, parameter in plan.plan[""].items()}


def test_nothing_moves_where_nothing_may(tmp_path):
    ours = _planner()
    before = ours.search(bags("a", "b", "c", "d"))
    where = _devices(ours.plan(bags("a", "b", "c", "d")))
    changed = ours.replan(bags("b", "c", "d", "new"), previous=before, max_moved_bytes=0)
    after = _devices(changed.sharding_plan)
    assert {name: after[name] for name in ("b", "c", "d")} == {name: where[name] for name in ("b", "c", "d")}
    assert changed.moved_bytes == 0
    assert changed.plan == ours.last_plan
    told = {change.table: change for change in changed.changes}
    assert set(told) == {"a", "new"}
    assert (told["a"].after, told["new"].before, told["new"].size_bytes) == ((), (), SIZE)
    assert str(changed).startswith("0 bytes moved\ntable new: new, 6.25 KiB on device ")
    before.save(tmp_path / "plan.json")
    same = ours.replan(bags("b", "c", "d", "new"), previous=tmp_path / "plan.json", max_moved_bytes=0)
    assert same.plan == changed.plan


def test_what_is_found_is_kept(tmp_path):
    path = tmp_path / "plan.json"
    ours = _planner(keep=path)
    before = ours.plan(bags("a", "b"))
    changed = ours.replan(bags("a", "b", "c"), previous=path, max_moved_bytes=0)
    again = _planner(keep=path)
    assert _devices(again.plan(bags("a", "b", "c"))) == _devices(changed.sharding_plan)
    assert again.last_plan == changed.plan
    assert _devices(before).items() <= _devices(changed.sharding_plan).items()


def test_every_rank_gets_it(group):
    ours = _planner(1)
    before = ours.search(bags("a", "b"))
    changed = ours.collective_replan(bags("b", "c"), previous=before)
    assert {change.table for change in changed.changes} == {"a", "c"}
    assert ours.last_plan == changed.plan
    with pytest.raises(UserError, match="no plan at"):
        ours.collective_replan(bags("a"), previous="nowhere.json")


def test_what_may_move_moves_to_cost_less():
    crowded = {name: ParameterConstraints(pooling_factors=[9.0]) for name in ("a", "b", "c", "d")}
    before = _planner(searcher="neuroshard", max_splits=0).search(bags("a", "b", "c", "d"))
    ours = _planner(4, constraints=crowded)
    costs = []
    for limit in (0, SIZE, "1MiB"):
        changed = ours.replan(bags("a", "b", "c", "d"), previous=before, max_moved_bytes=limit)
        assert changed.moved_bytes <= (1 << 20 if limit == "1MiB" else limit)
        costs.append(ours.last_cost.total_ms)
    assert costs[0] >= costs[1] > costs[2]


def test_what_must_move_is_counted_before_what_may():
    """Of two devices, one goes away."""
    before = _planner().search(bags("a", "b", "c", "d"))
    gone = sum(placed.shard.dim * ROWS * 4 for placed in before.placements if placed.device == 1)
    with pytest.raises(UserError, match=f"max_moved_bytes=10: {gone} bytes are moved at least"):
        _planner(1).replan(bags("a", "b", "c", "d"), previous=before, max_moved_bytes=10)
    changed = _planner(1).replan(bags("a", "b", "c", "d"), previous=before, max_moved_bytes=gone)
    assert changed.moved_bytes == gone
    assert set(map(tuple, _devices(changed.sharding_plan).values())) == {(0,)}


def test_what_has_no_room_is_moved():
    """Of two devices with two tables each, which now hold one and a half, to four."""
    before = _planner(max_splits=0).search(bags("a", "b", "c", "d"))
    changed = _planner(4, SIZE * 3 // 2).replan(bags("a", "b", "c", "d"), previous=before)
    assert changed.plan.violations == ()
    assert 0 < changed.moved_bytes <= 4 * SIZE


def test_a_plan_that_cannot_stay_is_made_from_nothing(caplog):
    before = _planner(rules=Constraints((TableRule("a", min_shards=2),))).search(bags("a", "b"))
    whole = {"a": ParameterConstraints(sharding_types=["table_wise"])}
    changed = _planner(constraints=whole).replan(bags("a", "b"), previous=before)
    assert "the previous plan can't stay" in caplog.text
    assert len(changed.sharding_plan.plan[""]["a"].ranks) == 1


def test_settings_are_the_searchers():
    ours = _planner()
    before = ours.search(bags("a", "b"))
    with pytest.raises(UserError, match="nonsense"):
        ours.replan(bags("a", "b"), previous=before, nonsense=1)
    with pytest.raises(UserError, match="no plan at"):
        ours.replan(bags("a", "b"), previous="nowhere.json")
