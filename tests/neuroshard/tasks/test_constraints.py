"""Constraints are checked before a search, and broken constraints of plans are reported."""

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard import Constraints, PinnedShard, TableRule, Task, Topology
from neuroshard.tasks.constraints import constraints, load_constraints
from neuroshard.words.form import Form
from neuroshard.words.placement import Tier
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, read_back, table

TABLES = tuple(table(name, dim=dim) for name, dim in (("user_a", 16), ("user_b", 16), ("item", 32)))
TASK = Task(TABLES, Topology(4, 1 << 30, devices_per_host=2), 64)
WHOLE, HALVES = (0, 1, 2), (0, 0, {0: 16, 1: 16})
ROWS, HOST, ONE_DATA_PARALLEL, BOTH = (
    (range(4), 0, 1),
    ([2, 3], 0, 1),
    (DATA_PARALLEL, 0, 1),
    (DATA_PARALLEL, DATA_PARALLEL, 1),
)
PINS = PinnedShard("item", 16, (0, 1)), PinnedShard("item", 16, (0,))


_COPIED_A = TableRule("user_a", sharding_types=("data_parallel",))


def _rule(tables, **limits):
    return Constraints((TableRule(tables, **limits),))


def _pin(name, dim, *devices):
    return Constraints(pinned=(PinnedShard(name, dim, devices),))


@pytest.mark.parametrize(
    ("rules", "places", "broken"),
    [
        (_rule("user_*", devices=(0, 1)), WHOLE, None),
        (_rule("user_*", devices=(0, 2)), WHOLE, (["'user_b'"], [1])),
        (_rule("*", max_shards=1), WHOLE, None),
        (_rule("item", max_shards=1), HALVES, (["'item'"], [2, 1])),
        (_rule("item", min_shards=2), WHOLE, (["'item'"], [1, 2, 4])),
        (_rule("item", min_dim=10), (0, 0, {0: 24, 1: 8}), (["'item'"], [8, 12])),
        (_pin("item", 32, 1, 2), WHOLE, None),
        (_pin("item", 8, 2), WHOLE, (["'item'"], [])),
        (Constraints(pinned=PINS), HALVES, None),
        (Constraints(pinned=PINS[::-1]), HALVES, None),
        (Constraints(pinned=PINS), (0, 0, {1: 16, 2: 16}), (["'item'"], [])),
        (Constraints(together=(("user_a", "item"),)), WHOLE, (["user_a, item"], [])),
        (Constraints(apart=(("user_a", "user_b", "item"),)), WHOLE, None),
        (Constraints(apart=(("user_a", "user_b"),)), (0, 0, 1), (["user_a, user_b"], [0])),
        (Constraints(), ROWS, None),
        (Constraints(), ONE_DATA_PARALLEL, None),
        (_rule("user_a", sharding_types=("row_wise",)), ROWS, None),
        (_rule("user_a", sharding_types=("column_wise", "row_wise")), ONE_DATA_PARALLEL,
         (["'user_a'", "data_parallel", "column_wise", "row_wise"], [])),
        (_rule("user_a", sharding_types=("data_parallel",)), ROWS,
         (["'user_a'", "row_wise", "data_parallel"], [])),
        (_rule("user_a", devices=(2, 3)), HOST, None),
        (_rule("user_a", devices=(1, 2, 3)), ROWS, (["'user_a'"], [0])),
        (_rule("user_a", devices=(0,)), ONE_DATA_PARALLEL, (["'user_a'"], [1])),
        (_rule("user_a", max_shards=2), HOST, None),
        (_rule("user_a", max_shards=2), ROWS, (["'user_a'"], [4, 1, 2])),
        (_rule("user_a", min_shards=4), ROWS, None),
        (_rule("user_a", min_shards=3), HOST, (["'user_a'"], [2, 3, 4])),
        (_rule("user_a", min_blocks=4), ROWS, None),
        (_rule("user_a", min_blocks=4), WHOLE, None),
        (_rule("user_a", min_blocks=4), HOST, (["'user_a'"], [2, 4])),
        (_rule("user_a", max_shards=1), ONE_DATA_PARALLEL, None),
        (_rule("user_a", min_shards=2), ONE_DATA_PARALLEL,
         (["'user_a'", "data_parallel"], [4, 1, 2, 4])),
        (_rule("user_a", min_dim=16), ({(0, 1): 8, (2, 3): 8}, 0, 1), (["'user_a'"], [8, 16])),
        (_rule("user_a", min_dim=16), ROWS, None),
        (_pin("user_a", 16, 0), ONE_DATA_PARALLEL, (["'user_a'"], [])),
        (_pin("user_a", 16, 0), ROWS, (["'user_a'"], [])),
        (Constraints(together=(("user_a", "user_b"),)), ONE_DATA_PARALLEL, (["user_a, user_b"], [])),
        (Constraints(together=(("user_a", "user_b"),)), BOTH, None),
        (Constraints(apart=(("user_a", "user_b"),)), ONE_DATA_PARALLEL, (["user_a, user_b"], [0])),
        (Constraints(apart=(("user_a", "user_b"),)), HOST, None),
    ],
)  # fmt: skip
def test_violations_name_the_broken_constraint(rules, places, broken):
    found = laid_out(replace(TASK, constraints=rules), *places).violations
    assert len(found) == (broken is not None)
    if broken is not None:
        names, numbers = broken
        assert [name for name in names if name not in found[0]] == []
        assert [int(number) for number in re.findall(r"\d+", found[0])] == numbers


def test_tables_kept_together_are_violated_by_row_wise_placements():
    task = replace(TASK, constraints=Constraints(together=(("user_a", "user_b"),)))
    first, _ = laid_out(task, range(4), range(4), 0).violations
    assert "'user_a'" in first
    assert re.findall(r"\d+", first) == ["4", "1"]


def test_many_pins_of_one_table_are_checked_at_once():
    """Of 24 pins of equal width, one cannot be kept: trying all orders would never end."""
    pins = [PinnedShard("t", 4, tuple(range(25)))] * 23
    rules = Constraints(pinned=(*pins, PinnedShard("t", 8, (25,))))
    task = Task((table(dim=100),), Topology(26, 1 << 30), 64, constraints=rules)
    narrow = dict.fromkeys(range(23), 4)
    assert laid_out(task, narrow | {25: 8}).violations == ()
    (violation,) = laid_out(task, narrow | {24: 8}).violations
    assert "'t'" in violation


def test_row_wise_tables_may_have_more_shards_than_columns_allow():
    narrow = replace(TASK, tables=(table("user_a", dim=4), *TABLES[1:]))
    rules = _rule("user_a", sharding_types=("row_wise",), min_shards=4)
    assert laid_out(replace(narrow, constraints=rules), *ROWS).violations == ()


def test_several_rules_that_match_a_table_all_apply():
    rules = Constraints(
        (TableRule("user_*", (0, 1), 1, 2), TableRule("*_a", (1, 2), min_dim=6), TableRule("*", min_shards=1))
    )
    limits = rules.limits(TABLES[0], 3)
    assert (limits.devices, limits.min_shards, limits.max_shards, limits.min_dim) == ((1,), 1, 2, 8)


@pytest.mark.parametrize(
    ("rules", "code", "names"),
    [
        (_rule("usr_*"), "rule-matches-no-table", ["'usr_*'"]),
        (_rule("item", devices=(4,)), "constraints-device-outside", ["device 4", "'item'", "0 to 3"]),
        (_rule("item", devices=()), "table-no-device", ["'item'"]),
        (Constraints((TableRule("item", (0, 1)), TableRule("*", (2,)))), "table-no-device", ["'item'"]),
        (_rule("item", min_shards=5), "table-shard-counts", ["'item'", "5 shards", 4]),
        (_rule("item", min_shards=2, max_shards=1, sharding_types=("data_parallel",)),
         "table-shard-counts", ["'item'", "2 shards", 1]),
        (_rule("item", min_blocks=3, max_shards=2, sharding_types=("row_wise", "data_parallel"), min_shards=3),
         "table-shard-counts", ["'item'", "3 shards", 2]),
        (Constraints((TableRule("item", min_shards=2),), together=(("item", "user_a"),)),
         "table-shard-counts", ["'item'", "2 shards", 1, "together"]),
        (Constraints((TableRule("item", max_shards=1),), (PinnedShard("item", 4, (0,)),)),
         "pins-too-many-shards", ["'item'", "1 shard"]),
        (_pin("item", 36, 0), "pins-too-many-columns", ["'item'", 36, 32]),
        (Constraints((TableRule("item", (0,)),), (PinnedShard("item", 32, (1,)),)),
         "pin-devices-forbidden", ["'item'", "device 1", "device 0"]),
        (_rule("item", min_shards=3, min_dim=16), "table-shard-counts", ["'item'", "3 shards", 2]),
        (Constraints((TableRule("item", min_dim=16),), (PinnedShard("item", 8, (0,)),)),
         "pins-too-narrow", ["'item'", 8, 16]),
        (Constraints((TableRule("user_a", min_shards=3),), (PinnedShard("user_a", 12, (1,)),)),
         "pins-too-few-shards", ["'user_a'", "2 shards", "3 shards"]),
        (Constraints(together=(("item", "user_a"), ("user_b", "item"))), "together-twice", ["'item'"]),
        (Constraints(together=(("item", "user_a"),), apart=(("user_a", "item"),)),
         "together-and-apart", ["item, user_a"]),
        (Constraints((TableRule("item", min_shards=3),), apart=(("item", "user_a", "user_b"),)),
         "apart-too-few-devices", ["item, user_a, user_b", "5 devices", "4 devices"]),
        (Constraints(pinned=tuple(PinnedShard("item", 8, devices) for devices in ((0, 1), (1,), (0,)))),
         "pins-share-devices", ["'item'"]),
        (Constraints((TableRule("item", (0, 1)),), tuple(PinnedShard("item", 8, (0, 1)) for _ in range(2))),
         "pins-share-devices", ["'item'"]),
        (Constraints((TableRule("user_a", (0,)),), PINS[:1] * 2, apart=(("user_a", "item"),)),
         "apart-no-room", ["user_a, item"]),
        (Constraints((TableRule("item", (0,)), TableRule("user_a", (1,))), together=(("item", "user_a"),)),
         "together-no-device", ["item, user_a"]),
        (Constraints((TableRule("*", sharding_types=("row_wise",)), _COPIED_A)),
         "table-no-sharding-type", ["'user_a'"]),
        (Constraints((TableRule("user_a", sharding_types=("row_wise",)),), (PinnedShard("user_a", 16, (0,)),)),
         "pin-sharding-type", ["'user_a'", "column_wise"]),
        (_rule("user_a", sharding_types=("data_parallel",), devices=(0, 1)),
         "table-needs-all-devices", ["'user_a'", "data_parallel", "2 of 4 devices"]),
        (Constraints((TableRule("user_a", sharding_types=("row_wise",)),), together=(("user_a", "user_b"),)),
         "together-sharding-types", ["user_a, user_b", "row_wise"]),
        (Constraints((TableRule("item", tiers=("uvm",)), TableRule("*", tiers=("device",)))),
         "table-no-tier", ["'item'"]),
        (_rule("item", tiers=("uvm",), sharding_types=("data_parallel",)), "table-no-sharding-type", ["'item'"]),
        (Constraints((TableRule("item", cache_load_factor=0.1), TableRule("*", cache_load_factor=0.2))),
         "rules-cache-load-factors", ["'item'", 0.1, 0.2]),
    ],
)  # fmt: skip
def test_contradictions_are_refused_before_any_search(rules, code, names):
    with refused(code, where="constraints", names=names):
        replace(TASK, constraints=rules)


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        (_pin("itm", 4, 0), ["'itm'", "'item'"]),
        (Constraints(together=(("item", "nobody"),)), ["'nobody'", "item, user_a, user_b"]),
    ],
)
def test_constraints_on_unknown_tables_are_refused(rules, names):
    with refused("unknown-name", names=names):
        replace(TASK, constraints=rules)


def test_tables_in_host_memory_only_are_refused_without_host_memory():
    with refused("task-no-host-memory", where="task", names=["'item'", "topology.host_memory_bytes"]):
        replace(TASK, constraints=_rule("item", tiers=("uvm",)))


@pytest.mark.parametrize(
    ("rule", "code", "names"),
    [
        (partial(TableRule, max_shards=0), "rule-limit-too-small", ["max_shards", "'item'", 0]),
        (partial(TableRule, min_blocks=0), "rule-limit-too-small", ["min_blocks", "'item'", 0]),
        (partial(TableRule, sharding_types=("row",)), "unknown-name", ["'row'", "row_wise"]),
        (partial(TableRule, tiers=("disk",)), "unknown-name", ["'disk'", "device, uvm, uvm_caching"]),
        (partial(PinnedShard, dim=6, devices=(0,)), "pin-dim-not-multiple", ["'item'", 6, 4]),
    ],
)
def test_constraints_refuse_invalid_rules_and_pins(rule, code, names):
    with refused(code, names=names):
        rule("item")


def test_load_constraints_reads_rules_and_pins_from_yaml(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n- {tables: user_*, devices: [0, 1]}\npinned:\n- {table: item, dim: 8, devices: [2]}\n")
    expected = Constraints((TableRule("user_*", (0, 1)),), (PinnedShard("item", 8, (2,)),))
    assert load_constraints(str(path)) == expected


@pytest.mark.parametrize(
    ("text", "code", "names"),
    [
        ("- 1", "constraints-file-no-fields", ["[1]"]),
        ("rules: [{tabel: x}]", "unknown-name", ["'tabel'", "'tables'"]),
        ("ruls: []", "unknown-name", ["'ruls'", "'rules'"]),
        ("rules: 3", "value-outside-limits", ["rules", 3]),
    ],
)
def test_load_constraints_refuses_malformed_files(tmp_path, text, code, names):
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with refused(code, where=str(path), names=names):
        load_constraints(str(path))


def test_load_constraints_refuses_unreadable_files(tmp_path):
    path = tmp_path / "rules.yaml"
    with refused("file-missing", names=[path]):
        load_constraints(str(path))
    path.write_text("rules: [")
    with refused("yaml-unreadable", names=[path, "line 1"]):
        load_constraints(str(path))


def test_task_file_keeps_rules_and_omits_their_new_default_fields():
    given = (
        TableRule("user_*", (0, 1), min_blocks=2, equal_widths=True),
        TableRule("*", sharding_types=("row_wise", "column_wise")),
    )
    rules = Constraints(given, (PinnedShard("item", 8, (2,)),))
    task = replace(TASK, constraints=rules)
    assert read_back(task) == task
    said, others = (set(rule) for rule in task.to_json()["constraints"]["rules"])
    assert others == {"tables", "devices", "min_shards", "max_shards", "min_dim", "sharding_types"}
    assert said == others | {"min_blocks", "equal_widths"}


def test_sharding_types_of_all_rules_intersect():
    rules = constraints(
        rules=[
            {"tables": "*", "sharding_types": ["row_wise", "column_wise"]},
            {"tables": "user_a", "sharding_types": ["column_wise"]},
        ]
    )
    assert rules.limits(TABLES[0], 4).forms == {Form.COLUMN_WISE}
    assert rules.limits(TABLES[1], 4).forms == {Form.COLUMN_WISE, Form.ROW_WISE}
    for silent in (Constraints(), _rule("user_a", min_blocks=2, equal_widths=True)):
        assert silent.limits(TABLES[0], 4).forms == set(Form)
    with refused("unknown-name", where="constraints, rules[0]", names=["'row'"]):
        constraints(rules=[{"tables": "user_a", "sharding_types": ["row"]}])


@pytest.mark.parametrize(
    ("forms", "tiers"),
    [(("data_parallel",), {Tier.DEVICE}), (("row_wise", "data_parallel"), set(Tier)), (None, set(Tier))],
)
def test_tables_that_must_be_data_parallel_are_in_device_memory_only(forms, tiers):
    assert _rule("t", sharding_types=forms).limits(table(), 4).tiers == tiers


@pytest.mark.parametrize(
    ("dim", "rule", "min_dim", "shards"),
    [
        (16, {}, 4, (1, 4)),
        (16, {"equal_widths": True}, 8, (1, 2)),
        (16, {"equal_widths": True, "min_shards": 4}, 4, (4, 4)),
        (12, {"equal_widths": True}, 12, (1, 1)),
        (12, {"equal_widths": True, "min_shards": 3}, 4, (3, 3)),
    ],
)
def test_equal_widths_limit_tables_to_whole_or_equal_shards(dim, rule, min_dim, shards):
    limits = _rule("t", **rule).limits(table(dim=dim), 4)
    assert (limits.min_dim, (limits.min_shards, limits.max_shards)) == (min_dim, shards)


def test_min_shards_is_a_lower_limit_of_row_blocks_too():
    assert _rule("t", min_shards=2).limits(table(), 4).min_blocks == 2


def test_constraints_for_some_tables_drop_rules_of_other_tables():
    rules = constraints(
        rules=[{"tables": "item"}, {"tables": "user_a"}],
        together=[["item", "user_a", "user_b"]],
        apart=[["user_a", "user_b"]],
    )
    assert rules.of(TABLES[:1]) == _rule("user_a")
    assert rules.of(TABLES[1:]).together == (("item", "user_b"),)


@given(st.lists(st.sampled_from(["user", "user_*", "us?r", "item", "[ui]ser", "*", "item[*]"]), max_size=8))
def test_rule_applies_to_every_table_that_the_pattern_matches(patterns):
    """The lowest limit of all matching rules applies, of rules for patterns and of rules for single names."""
    rules = tuple(TableRule(pattern, max_shards=2 + number) for number, pattern in enumerate(patterns))
    for name in ("user", "user_id", "item", "item*", "iser"):
        most = [rule.max_shards for rule in rules if fnmatchcase(name, rule.tables)]
        assert Constraints(rules).limits(table(name, dim=64), 4).max_shards == min(most, default=16)
