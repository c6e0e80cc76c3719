"""Constraints are checked before anything is searched, and found broken where a plan breaks them."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard.plans.plan import assemble
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule, constraints, load_constraints
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE

TABLES = tuple(Table(name, 100, dim, 2.0, ONCE) for name, dim in (("user_a", 16), ("user_b", 16), ("item", 32)))


def _task(rules):
    return Task(TABLES, Topology(3, 1 << 30), 64, constraints=rules)


WHOLE = ((0, 16, 0), (1, 16, 1), (2, 32, 2))


USERS = ((0, 16, 0), (1, 16, 0))  # both on one device
PINS = PinnedShard("item", 16, (0, 1)), PinnedShard("item", 16, (0,))


@pytest.mark.parametrize(
    ("rules", "placed", "broken"),
    [
        (Constraints((TableRule("user_*", devices=(0, 1)),)), WHOLE, None),
        (Constraints((TableRule("user_*", devices=(0, 2)),)), WHOLE, "'user_b' must not lie on device 1"),
        (Constraints((TableRule("*", max_shards=1),)), WHOLE, None),
        (
            Constraints((TableRule("item", max_shards=1),)),
            (*USERS, (2, 16, 0), (2, 16, 1)),
            "on 2 devices, not on 1 to 1",
        ),
        (Constraints((TableRule("item", min_shards=2),)), WHOLE, "'item' is on 1 devices, not on 2 to 8"),
        (
            Constraints((TableRule("item", min_dim=10),)),
            (*USERS, (2, 24, 0), (2, 8, 1)),
            "'item' has a shard of 8 columns, fewer than 12",
        ),
        (Constraints(pinned=(PinnedShard("item", 32, (1, 2)),)), WHOLE, None),
        (Constraints(pinned=(PinnedShard("item", 8, (2,)),)), WHOLE, "pinned shards of table 'item'"),
        (Constraints(pinned=PINS), (*USERS, (2, 16, 0), (2, 16, 1)), None),
        (Constraints(pinned=PINS[::-1]), (*USERS, (2, 16, 0), (2, 16, 1)), None),
        (Constraints(pinned=PINS), (*USERS, (2, 16, 1), (2, 16, 2)), "pinned shards of table 'item'"),
        (Constraints(together=(("user_a", "item"),)), WHOLE, "user_a, item are not together"),
        (Constraints(apart=(("user_a", "user_b", "item"),)), WHOLE, None),
        (Constraints(apart=(("user_a", "user_b"),)), (*USERS, (2, 32, 1)), "user_a, user_b are both on device 0"),
    ],
)
def test_broken_constraints_are_named(rules, placed, broken):
    found = assemble(_task(rules), placed).violations
    if broken is None:
        assert found == ()
    else:
        assert len(found) == 1
        assert broken in found[0]


def test_many_pins_of_one_table_are_checked_at_once():
    """Of 24 that want the same width, one can't be met: trying all orders would never end."""
    table = Table("wide", 100, 100, 2.0, ONCE)
    pins = tuple(PinnedShard("wide", 4, tuple(range(25))) for _ in range(23))
    task = Task(
        (table,), Topology(26, 1 << 30), 64, constraints=Constraints(pinned=(*pins, PinnedShard("wide", 8, (25,))))
    )
    plan = assemble(task, [(0, 8, 25), *((0, 4, device) for device in range(23))])
    assert plan.violations == ()
    assert "pinned shards" in assemble(task, [(0, 8, 24), *((0, 4, device) for device in range(23))]).violations[0]


def test_rules_that_match_one_table_all_hold():
    rules = Constraints(
        (TableRule("user_*", (0, 1), 1, 2), TableRule("*_a", (1, 2), min_dim=6), TableRule("*", min_shards=1))
    )
    limits = rules.limits(TABLES[0], 3)
    assert (limits.devices, limits.min_shards, limits.max_shards, limits.min_dim) == ((1,), 1, 2, 8)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (Constraints((TableRule("usr_*"),)), "no table's name matches 'usr_\\*'"),
        (Constraints((TableRule("item", devices=(3,)),)), r"device 3 of 'item' must lie in 0\.\.2"),
        (Constraints((TableRule("item", devices=()),)), "no device may hold table 'item'"),
        (Constraints((TableRule("item", (0, 1)), TableRule("*", (2,)))), "no device may hold table 'item'"),
        (Constraints((TableRule("item", min_shards=4),)), "needs 4 shards, but can have 3"),
        (Constraints((TableRule("item", min_shards=2),), together=(("item", "user_a"),)), "being kept together"),
        (Constraints(pinned=(PinnedShard("itm", 4, (0,)),)), "did you mean 'item'"),
        (Constraints(pinned=(PinnedShard("item", 36, (0,)),)), "36 columns of 'item' are pinned, it has 32"),
        (Constraints((TableRule("item", max_shards=1),), (PinnedShard("item", 4, (0,)),)), "may have 1 shard"),
        (Constraints((TableRule("item", (0,)),), (PinnedShard("item", 32, (1,)),)), "that its rules forbid"),
        (Constraints((TableRule("item", min_shards=3, min_dim=16),)), "needs 3 shards, but can have 2"),
        (Constraints((TableRule("item", min_dim=16),), (PinnedShard("item", 8, (0,)),)), "make one of 8"),
        (Constraints((TableRule("user_a", min_shards=3),), (PinnedShard("user_a", 12, (1,)),)), "leave columns for 2"),
        (Constraints(together=(("item", "nobody"),)), "unknown table in the constraints 'nobody'"),
        (Constraints(together=(("item", "user_a"), ("user_b", "item"))), "'item' is kept together twice"),
        (Constraints(together=(("item", "user_a"),), apart=(("user_a", "item"),)), "both together and apart"),
        (Constraints((TableRule("item", min_shards=2),), apart=(("item", "user_a", "user_b"),)), "need 4 devices"),
        (
            Constraints(
                pinned=(PinnedShard("item", 8, (0, 1)), PinnedShard("item", 8, (1,)), PinnedShard("item", 8, (0,)))
            ),
            "shards of 'item', each on a device of its own, find no room",
        ),
        (
            Constraints((TableRule("item", (0, 1)),), tuple(PinnedShard("item", 8, (0, 1)) for _ in range(2))),
            "shards of 'item', each on a device of its own, find no room",
        ),
        (
            Constraints(
                (TableRule("user_a", (0,)),),
                (PinnedShard("item", 16, (0, 1)), PinnedShard("item", 16, (0, 1))),
                apart=(("user_a", "item"),),
            ),
            "user_a, item are kept apart, and find no room on the devices allowed to them",
        ),
        (
            Constraints((TableRule("item", (0,)), TableRule("user_a", (1,))), together=(("item", "user_a"),)),
            "no device may hold all of item, user_a",
        ),
    ],
)
def test_contradictions_are_refused_before_any_search(rules, message):
    with pytest.raises(UserError, match=message):
        _task(rules)


def test_impossible_rules_are_refused():
    with pytest.raises(UserError, match="max_shards=0"):
        TableRule("item", max_shards=0)
    with pytest.raises(UserError, match="dim=6"):
        PinnedShard("item", 6, (0,))


def test_constraints_come_from_files(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n- {tables: user_*, devices: [0, 1]}\npinned:\n- {table: item, dim: 8, devices: [2]}\n")
    expected = Constraints((TableRule("user_*", (0, 1)),), (PinnedShard("item", 8, (2,)),))
    assert load_constraints(str(path)) == expected
    assert Task.from_json(_task(expected).to_json()) == _task(expected)


@pytest.mark.parametrize("text", ["- 1", "rules: [{tabel: x}]", "ruls: []", "rules: [", "rules: 3"])
def test_malformed_files_are_refused(tmp_path, text):
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"rules\.yaml"):
        load_constraints(str(path))
    with pytest.raises(UserError, match="no constraints at"):
        load_constraints(str(tmp_path / "none.yaml"))


def test_only_what_concerns_some_tables():
    rules = constraints(
        rules=[{"tables": "item"}, {"tables": "user_a"}],
        together=[["item", "user_a", "user_b"]],
        apart=[["user_a", "user_b"]],
    )
    assert rules.of(TABLES[:1]) == Constraints((TableRule("user_a"),))
    assert rules.of(TABLES[1:]).together == (("item", "user_b"),)


@given(st.lists(st.sampled_from(["user", "user_*", "us?r", "item", "[ui]ser", "*", "item[*]"]), max_size=8))
def test_rules_hold_for_all_tables_that_their_pattern_matches(patterns):
    """However many rules there are for single names."""
    rules = tuple(TableRule(pattern, max_shards=2 + number) for number, pattern in enumerate(patterns))
    for name in ("user", "user_id", "item", "item*", "iser"):
        table = Table(name, 10, 64, 1.0, ONCE)
        most = [rule.max_shards for rule in rules if fnmatchcase(name, rule.tables)]
        assert Constraints(rules).limits(table, 4).max_shards == min(most, default=16)
