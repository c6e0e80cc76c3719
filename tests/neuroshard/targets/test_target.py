"""Rules that keep a task's plans to what a target can express."""

from dataclasses import replace

import pytest

from neuroshard.layouts import in_columns, in_copies, in_rows
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.targets.target import TARGETS, constrained, target_named
from neuroshard.tasks.constraints import Constraints, TableRule, constraints
from neuroshard.tasks.task import Task, Topology
from neuroshard.words.form import Form
from neuroshard.words.placement import Home, Tier

TABLE = Table("a", 100, 16, 2.0, (1.0, *(0.0,) * 16))
TASK = Task((TABLE, replace(TABLE, name="b")), Topology(4, 1 << 30, 0, 2, 1 << 30), 64)


def _cut(*widths):
    return lambda task: in_columns(task, [(0, width, device) for device, width in enumerate(widths)])


def _at(home):
    return lambda task: [replace(placed, home=home) for placed in in_columns(task, [(0, 16, 0)])]


LAYOUTS = {
    "whole": _cut(16),
    "halves": _cut(8, 8),
    "quarters": _cut(4, 4, 4, 4),
    "unequal": _cut(4, 12),
    "rows": lambda task: in_rows(task, 0, range(4)),
    "host": lambda task: in_rows(task, 0, [2, 3]),
    "grid": lambda task: in_rows(task, 0, [0, 1], (0, 8)) + in_rows(task, 0, [2, 3], (8, 16)),
    "copies": lambda task: in_copies(task, 0),
    "hosted": _at(Home(Tier.HOST)),
    "cached": _at(Home(Tier.CACHED, 1.0)),
}
KEPT = {
    "sok": {"whole", "rows", "hosted", "cached"},
    "hugectr": {"whole", "halves", "rows", "host", "grid", "copies"},
    "torchrec": set(LAYOUTS),
    "json": set(LAYOUTS),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", KEPT)
def test_plans_that_keep_the_rules_are_those_that_can_be_expressed(target, layout):
    task = target_named(target).constrained(TASK)
    plan = Plan(task, (*LAYOUTS[layout](task), *in_columns(task, [(1, 16, 1)])))
    assert (plan.violations == ()) == (layout in KEPT[target]), plan.violations
    if plan.violations == ():
        target_named(target).check(plan)
    elif (target, layout) != ("hugectr", "quarters"):  # which HugeCTR has, and searches leave out
        with pytest.raises(UserError, match="'a'"):
            target_named(target).check(plan)


def test_tasks_are_as_they_are_without_a_target_and_where_it_has_words_for_everything():
    assert constrained([TASK], None) == (TASK,)
    for name in ("torchrec", "json"):
        assert target_named(name).constrained(TASK) is TASK


def test_a_task_keeps_its_own_rules():
    task = replace(TASK, constraints=Constraints((TableRule("b", forms=("columns",)),), apart=(("a", "b"),)))
    for target in map(target_named, TARGETS):
        found = target.constrained(task).constraints
        assert found.rules[0] == task.constraints.rules[0]
        assert found.apart == (("a", "b"),)


@pytest.mark.parametrize(
    ("target", "task", "message"),
    [
        ("sok", replace(TASK, constraints=Constraints((TableRule("a", min_shards=2),))),
         "target=sok: constraints: table 'a' (16 columns, 4 device(s)) needs 2 shards, but can have 1"),
        ("sok", replace(TASK, constraints=Constraints((TableRule("a", forms=("copies",)),))),
         "target=sok: constraints: the rules for table 'a' leave no form"),
        ("hugectr", replace(TASK, constraints=Constraints((TableRule("a", min_shards=3),))),
         "target=hugectr: constraints: table 'a' (16 columns, 4 device(s)) needs 3 shards, but can have 1"),
        ("sok", replace(TASK, tables=(TABLE, replace(TABLE, name="s[1]", pooled=False)),
                        constraints=Constraints((TableRule("s*", forms=("columns",)),))),
         "target=sok: constraints: the rules for table 's[1]' leave no form"),
        ("hugectr", replace(TASK, tables=(replace(TABLE, name="half", bytes_per_element=2),)),
         "table 'half' has 2 bytes per element, and HugeCTR stores 4"),
    ],
)  # fmt: skip
def test_what_a_target_can_not_serve_is_refused(target, task, message):
    with pytest.raises(UserError) as refused:
        constrained([task], target)
    assert message in str(refused.value)


def test_sequence_tables_lie_in_rows():
    tables = (TABLE, replace(TABLE, name="s[1]", pooled=False))
    for name in ("sok", "hugectr"):
        found = target_named(name).constrained(replace(TASK, tables=tables)).constraints
        assert found.limits(tables[1], 4).forms == {Form.ROWS}
        assert Form.COLUMNS in found.limits(tables[0], 4).forms


def _limits(table=TABLE, **rule):
    return Constraints((TableRule("a", **rule),)).limits(table, 4)


def test_tables_of_equal_widths_are_whole_or_in_equal_parts():
    assert (_limits().min_dim, _limits().max_shards) == (4, 4)
    halves, quarters = _limits(equal_widths=True), _limits(equal_widths=True, min_shards=4)
    assert (halves.min_dim, halves.min_shards, halves.max_shards) == (8, 1, 2)
    assert (quarters.min_dim, quarters.min_shards, quarters.max_shards) == (4, 4, 4)
    odd = _limits(replace(TABLE, dim=12), equal_widths=True)
    assert (odd.min_dim, odd.max_shards) == (12, 1)
    thirds = _limits(replace(TABLE, dim=12), equal_widths=True, min_shards=3)
    assert (thirds.min_dim, thirds.max_shards) == (4, 3)


def test_blocks_of_rows_have_limits_of_their_own():
    task = replace(TASK, constraints=Constraints((TableRule("a", min_blocks=4),)))
    rest = in_columns(task, [(1, 16, 1)])
    assert Plan(task, (*in_rows(task, 0, range(4)), *rest)).violations == ()
    assert Plan(task, (*in_columns(task, [(0, 16, 0)]), *rest)).violations == ()
    broken = Plan(task, (*in_rows(task, 0, [0, 1]), *rest)).violations
    assert broken == ("table 'a' is on 2 devices, not on 4 to 4096",)
    assert _limits(min_shards=2).min_blocks == 2
    with pytest.raises(UserError, match=r"min_blocks=0 of 'a' must be a whole number"):
        TableRule("a", min_blocks=0)


def test_rules_survive_files_and_those_that_say_nothing_leave_no_trace():
    rules = constraints(rules=[{"tables": "a", "min_blocks": 2, "equal_widths": True}, {"tables": "*"}])
    task = replace(TASK, constraints=rules)
    assert Task.from_json(task.to_json()) == task
    named = [set(rule) for rule in task.to_json()["constraints"]["rules"]]
    assert {"min_blocks", "equal_widths"} <= named[0]
    assert not {"min_blocks", "equal_widths", "tiers", "cached"} & named[1]
    assert rules.limits(TABLE, 4).forms == set(Form)
