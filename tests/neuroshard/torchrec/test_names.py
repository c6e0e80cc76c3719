"""Names of tables in constraints, rules and statistics: the plain name, or the path of the module and the name."""

from dataclasses import replace

import pytest
from torch import nn
from torchrec.distributed.planner import ParameterConstraints

from neuroshard import Constraints, PinnedShard, TableRule
from tests.kit.messages import logged_codes, refused
from tests.kit.torchrec_models import bags, places, planner

MODEL = nn.ModuleDict({"one": bags("user", "item"), "other": bags("user", "ad")})
ROW_WISE = ParameterConstraints(sharding_types=["row_wise"], pooling_factors=[3.0])


def _planner(**settings):
    return planner(models="roofline:h100", device="cuda", **settings)


PATHS = ("one.user", "one.item", "other.user", "other.ad")  # of the tables, in the order of the model


def _only_row_wise(ours):
    """Return the paths of the tables that may only be row-wise."""
    task = ours.search(MODEL).task
    pairs = zip(PATHS, task.tables, strict=True)
    return {path for path, table in pairs if task.constraints.limits(table, 2).sharding_types == {"row_wise"}}


@pytest.mark.parametrize(
    ("constraints", "found"),
    [
        ({"item": ROW_WISE}, {"one.item"}),
        ({"one.item": ROW_WISE}, {"one.item"}),
        ({"other.user": ROW_WISE}, {"other.user"}),
        ({"user": ROW_WISE}, {"one.user", "other.user"}),  # as in TorchRec
        ({"user": ROW_WISE, "one.user": ParameterConstraints(sharding_types=["table_wise"])}, {"other.user"}),
    ],
)
def test_constraints_find_tables_by_name_or_module_path(constraints, found, caplog):
    ours = _planner(constraints=constraints)
    assert _only_row_wise(ours) == found
    assert "constraints-table-unknown" not in logged_codes(caplog)
    tables = zip(PATHS, ours.last_plan.task.tables, strict=True)
    assert {path for path, table in tables if table.pooling_factor == 3} == found


def test_delegated_tables_take_constraints_by_path():
    """TorchRec's planner knows plain names alone."""
    ours = planner(device="cuda", constraints={"one.item": ROW_WISE})  # these models know no rows
    assert places(ours.plan(MODEL), "one")["item"][0] == "row_wise"
    assert [table.name for table in ours.last_plan.task.tables] == ["one.user", "other.user", "ad"]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("item", {"one.item"}),
        ("one.item", {"one.item"}),
        ("other.user", {"other.user"}),
        ("one.*", {"one.user", "one.item"}),
        ("us*", {"one.user", "other.user"}),
        ("*", {"one.user", "one.item", "other.user", "other.ad"}),
    ],
)
def test_rules_find_tables_by_name_or_module_path(written, found):
    rules = Constraints((TableRule(written, sharding_types=("row_wise",)),))
    assert _only_row_wise(_planner(rules=rules)) == found


def test_pins_and_groups_of_rules_accept_names_and_module_paths():
    pinned = (PinnedShard("one.item", 16, (1,)),)
    rules = Constraints(pinned=pinned, together=(("other.ad", "other.user"),), apart=(("item", "other.ad"),))
    plan = _planner(rules=rules).plan(MODEL)
    assert places(plan, "one")["item"] == ("table_wise", [1])
    assert places(plan, "other") == {"user": ("table_wise", [0]), "ad": ("table_wise", [0])}


def test_statistics_find_tables_by_name_or_module_path(caplog):
    task = _planner().search(MODEL).task
    known = [replace(table, pooling_factor=7.0) for table in task.tables]
    by_path = [replace(table, name=name) for table, name in zip(known, PATHS, strict=True)]
    for tables in (known, by_path):
        found = _planner(tables=tables).search(MODEL).task
        assert [table.pooling_factor for table in found.tables] == [7.0] * 4
        assert [table.name for table in found.tables] == [table.name for table in task.tables]
    assert "statistics-table-not-planned" not in logged_codes(caplog)


@pytest.mark.parametrize("kind", ["rules", "pinned", "together", "tables"])
def test_ambiguous_table_name_is_refused_with_the_candidates(kind):
    ours = _planner()
    table = replace(ours.search(MODEL).task.tables[0], name="user")
    settings = {
        "rules": {"rules": Constraints((TableRule("user", max_shards=1),))},
        "pinned": {"rules": Constraints(pinned=(PinnedShard("user", 16, (1,)),))},
        "together": {"rules": Constraints(together=(("user", "item"),))},
        "tables": {"tables": [table]},
    }
    where = "tables" if kind == "tables" else "rules"
    with refused("table-name-ambiguous", where=where, names=["'user'", "one.user", "other.user"]):
        _planner(**settings[kind]).plan(MODEL)


def test_planner_refuses_statistics_of_a_table_under_two_names():
    table = next(one for one in _planner().search(MODEL).task.tables if one.name == "item")
    with refused("statistics-same-table", where="tables", names=["'item'", "'one.item'"]):
        _planner(tables=[table, replace(table, name="one.item")]).plan(MODEL)


def test_rule_with_a_path_of_no_table_is_refused():
    with refused("rule-matches-no-table", where="constraints", names=["'one.ad'"]):
        _planner(rules=Constraints((TableRule("one.ad", max_shards=1),))).plan(MODEL)
