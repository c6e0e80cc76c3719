"""Sharding types allowed by searches and rules: plans have only these types, named as in TorchRec."""

import pytest

from neuroshard import Constraints, TableRule, Task, Topology
from neuroshard.layouts.sharding_types import SHARDING_TYPES
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out
from tests.kit.searches import found
from tests.kit.tasks import hot_table

BATCH = 65536
WIDE, HOT = hot_table("wide", 1000, 1024, 60), hot_table("hot", 10_000_000, 128, 20)
SMALL = tuple(hot_table(f"small{number}", 2000, 16, 1) for number in range(4))
TABLES = (WIDE, HOT, hot_table("wider", 1000, 2048, 60), *SMALL)


def _task(rules=(), host=2, devices=4):
    topology = Topology(devices, "80GiB", devices_per_host=host)
    return Task(TABLES, topology, BATCH, constraints=Constraints(tuple(rules)))


def _searched(*types, task=None):
    searcher = NeuroShard(improvement=Improvement(perturbations=5), sharding_types=types, acceptance=None)
    plan = found(searcher, task or _task())
    assert not plan.violations
    return plan


def test_tables_are_split_by_columns_unless_only_table_wise_is_allowed():
    assert "column_wise" in _searched("column_wise").sharding_types
    assert set(_searched("table_wise").sharding_types) == {"table_wise"}
    rule = TableRule("wide", sharding_types=("table_wise",))
    split = _searched("column_wise", task=_task([rule])).sharding_types
    assert split[0] == "table_wise"
    assert split[2] == "column_wise"


@pytest.mark.parametrize(("host", "splits"), [(4, True), (2, False)])
def test_table_column_wise_splits_tables_on_one_host_only(host, splits):
    plan = _searched("table_column_wise", task=_task(host=host))
    assert ("column_wise" in plan.sharding_types) == splits


def test_rows_are_on_one_host_if_only_table_row_wise_is_allowed():
    """Allowed by the setting of the searcher, or by a rule for one table."""
    rows = [TableRule("hot", sharding_types=("row_wise", "table_row_wise"))]
    assert _searched("column_wise", "row_wise", task=_task(rows)).sharding_types[1] == "row_wise"
    assert _searched("column_wise", "table_row_wise", task=_task(rows)).sharding_types[1] == "table_row_wise"
    one = [TableRule("hot", sharding_types=("table_row_wise",))]
    types = "column_wise", "row_wise", "table_row_wise"
    assert _searched(*types, task=_task(one)).sharding_types[1] == "table_row_wise"
    assert _searched(*types, task=_task(one, host=4)).sharding_types[1] in ("row_wise", "table_row_wise")
    with refused("constraints-no-sharding-type", names=["'hot'", "table_row_wise", "searcher.sharding_types"]):
        _searched("column_wise", "row_wise", task=_task(one))


@pytest.mark.parametrize("name", SHARDING_TYPES)
def test_rule_on_a_sharding_type_allows_the_plans_of_torchrecs_type_of_that_name(name):
    """Each plan has one table, of another sharding type, on four devices of two hosts."""
    kinds = {
        "table_wise": 0,
        "column_wise": {0: 64, 2: 64},
        "table_column_wise": {2: 64, 3: 64},
        "row_wise": range(4),
        "table_row_wise": [2, 3],
        "grid_shard": {(0, 1): 64, (2, 3): 64},
        "data_parallel": DATA_PARALLEL,
    }
    cases = {
        "column_wise": {"column_wise", "table_column_wise", "table_wise"},
        "table_column_wise": {"table_wise"},  # on several hosts: plans have no rule that keeps shards on one
        "grid_shard": {"grid_shard", "table_row_wise"},
    }
    tables = Task((HOT,), Topology(4, "80GiB", devices_per_host=2), BATCH)
    task = Task((HOT,), tables.topology, BATCH, constraints=Constraints((TableRule("*", sharding_types=(name,)),)))
    allowed = {kind for kind, where in kinds.items() if not laid_out(task, where).violations}
    assert allowed == cases.get(name, {name})


def test_unknown_sharding_types_and_searchers_without_column_wise_are_refused():
    with refused("unknown-name", names=["'rows'"]):
        NeuroShard(sharding_types=("rows",))
    with refused("searcher-types-not-column-wise", names=["column_wise", "table_wise"]):
        NeuroShard(sharding_types=("row_wise",))
    with refused("unknown-name", names=["'copies'"]):
        TableRule("*", sharding_types=("copies",))
