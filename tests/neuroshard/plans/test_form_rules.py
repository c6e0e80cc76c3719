"""Rules over tables in rows and copies: what a plan breaks, and rules that contradict each other."""

from dataclasses import replace

import pytest

from neuroshard.layouts import in_copies, in_rows
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule, constraints
from neuroshard.tasks.task import Task, Topology
from neuroshard.words.form import Form
from neuroshard.words.placement import Placement, Shard

TABLES = tuple(Table(name, 100, 16, 2.0, (1.0, *(0.0,) * 16)) for name in "abc")
TASK = Task(TABLES, Topology(4, 1 << 20, devices_per_host=2), 64)


def _on(table, device):
    return Placement(Shard(table, 0, 16, 0, 100), device)


def _broken(rules, *placements):
    return Plan(replace(TASK, constraints=rules), placements).violations


ROWS = (*in_rows(TASK, 0, range(4)), _on(1, 0), _on(2, 1))
HOST = (*in_rows(TASK, 0, [2, 3]), _on(1, 0), _on(2, 1))
COPIES = (*in_copies(TASK, 0), _on(1, 0), _on(2, 1))
BOTH = (*in_copies(TASK, 0), *in_copies(TASK, 1), _on(2, 1))


def _rule(**limits):
    return Constraints((TableRule("a", **limits),))


@pytest.mark.parametrize(
    ("rules", "placements", "message"),
    [
        (Constraints(), ROWS, None),
        (Constraints(), COPIES, None),
        (_rule(forms=("rows",)), ROWS, None),
        (_rule(forms=("columns", "rows")), COPIES, "'a' must not lie in copies, only in columns or rows"),
        (_rule(forms=("copies",)), ROWS, "'a' must not lie in rows, only in copies"),
        (_rule(devices=(2, 3)), HOST, None),
        (_rule(devices=(1, 2, 3)), ROWS, "'a' must not lie on device 0"),
        (_rule(devices=(0,)), COPIES, "'a' must not lie on device 1"),
        (_rule(max_shards=2), HOST, None),
        (_rule(max_shards=2), ROWS, "'a' is on 4 devices, not on 1 to 2"),
        (_rule(min_shards=4), ROWS, None),
        (_rule(min_shards=3), HOST, "'a' is on 2 devices, not on 3 to"),
        (_rule(max_shards=1), COPIES, None),
        (_rule(min_shards=2), COPIES, "'a' is on 4 devices, in copies, which count as one shard, not on 2 to"),
        (_rule(min_dim=16), (*in_rows(TASK, 0, [0, 1], (0, 8)), *in_rows(TASK, 0, [2, 3], (8, 16)), *ROWS[4:]), "of 8"),
        (_rule(min_dim=16), ROWS, None),
        (Constraints(pinned=(PinnedShard("a", 16, (0,)),)), COPIES, "pinned shards of table 'a'"),
        (Constraints(pinned=(PinnedShard("a", 16, (0,)),)), ROWS, "pinned shards of table 'a'"),
        (Constraints(together=(("a", "b"),)), COPIES, "tables a, b are not together"),
        (Constraints(together=(("a", "b"),)), BOTH, None),
        (Constraints(together=(("a", "b"),)), (*in_rows(TASK, 0, range(4)), *in_rows(TASK, 1, range(4)), _on(2, 0)),
         "'a' is on 4 devices, not on 1 to 1"),
        (Constraints(apart=(("a", "b"),)), COPIES, "a, b are both on device 0"),
        (Constraints(apart=(("a", "b"),)), HOST, None),
    ],
)  # fmt: skip
def test_what_plans_break(rules, placements, message):
    found = _broken(rules, *placements)
    assert (not found) if message is None else (message in found[0])


def test_forms_survive_files_and_intersect():
    rules = constraints(rules=[{"tables": "*", "forms": ["rows", "columns"]}, {"tables": "a", "forms": ["columns"]}])
    task = replace(TASK, constraints=rules)
    assert Task.from_json(task.to_json()) == task
    assert rules.limits(TABLES[0], 4).forms == {Form.COLUMNS}
    assert rules.limits(TABLES[1], 4).forms == {Form.COLUMNS, Form.ROWS}
    assert Constraints().limits(TABLES[0], 4).forms == set(Form)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TableRule("a", forms=("row",)), "unknown form 'row'; did you mean 'rows'"),
        (lambda: constraints(rules=[{"tables": "a", "forms": ["row"]}]), "unknown form .row.; did you mean .rows."),
        (lambda: replace(TASK, constraints=Constraints((TableRule("*", forms=("rows",)),
            TableRule("a", forms=("copies",))))), "'a' leave no form"),
        (lambda: replace(TASK, constraints=Constraints((TableRule("a", forms=("rows",)),),
            (PinnedShard("a", 16, (0,)),))), "'a' is pinned, but its rules don't let it lie in columns"),
        (lambda: replace(TASK, constraints=_rule(forms=("copies",), devices=(0, 1))),
         "'a' may lie in copies only, which every device has, and only on 2 of 4 devices"),
        (lambda: replace(TASK, constraints=Constraints((TableRule("a", forms=("rows",)),), (), (("a", "b"),))),
         "a, b are kept together and may lie in no form besides rows"),
    ],
)  # fmt: skip
def test_rules_that_contradict_each_other_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_more_shards_than_columns_make_are_possible_in_rows():
    narrow = (replace(TABLES[0], dim=4), *TABLES[1:])
    rules = Constraints((TableRule("a", forms=("rows",), min_shards=4),))
    task = Task(narrow, TASK.topology, 64, constraints=rules)
    assert Plan(task, (*in_rows(task, 0, range(4)), *ROWS[4:])).violations == ()
