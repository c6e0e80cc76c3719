"""Tables read from TorchRec modules, on the meta device: nothing is materialised."""

from fnmatch import fnmatchcase

import pytest
from torch import nn
from torchrec.distributed.planner import ParameterConstraints
from torchrec.types import DataType

from neuroshard import TableRule
from neuroshard.torchrec import find_tables
from neuroshard.words.form import FORMS, Form
from tests.kit.messages import check, logged, refused
from tests.kit.torchrec_models import bags, planned, sequences, shaped_bags

# Two collections, one of them deeper down.
MODEL = nn.Module()
MODEL.users = shaped_bags({"id": (10**9, 128), "age": (100, 8)})
MODEL.sparse = nn.ModuleDict({"bought": bags("sku", rows=500, features=("sku_0", "sku_1"))})
MODEL.over = nn.Linear(4, 1)
FOLLOWED = nn.Sequential(sequences("s", rows=400, dim=8, features=("f", "g")))


def _sku(**given):
    """The table that two features read, with these constraints."""
    return find_tables(MODEL, constraints={"sku": ParameterConstraints(**given)})[2]


def test_find_tables_finds_collections_at_any_depth():
    places = [(found.path, found.name) for found in find_tables(MODEL)]
    assert places == [("users", "id"), ("users", "age"), ("sparse.bought", "sku")]
    assert find_tables(bags("id"))[0].qualified_name == "id"
    assert [found.name for found in find_tables(nn.Sequential(FOLLOWED, MODEL))] == ["s", "id", "age", "sku"]
    assert find_tables(nn.Linear(2, 2)) == ()


@pytest.mark.parametrize(("of", "size"), [(DataType.FP32, 4), (DataType.FP16, 2), (DataType.BF16, 2)])
def test_found_tables_have_rows_dim_and_element_bytes_of_the_config(of, size):
    (found,) = find_tables(bags("id", rows=10**9, dim=128, data_type=of))
    table = found.table("users.id", 64, 2)
    assert (table.name, table.rows, table.dim, table.pooling_factor) == ("users.id", 10**9, 128, 1.0)
    assert table.bytes_per_element == size
    assert table.pooled


@pytest.mark.parametrize(
    ("given", "lookups", "outputs"),
    [
        ({}, 2.0, 2),
        ({"pooling_factors": [3.0]}, 6.0, 2),
        ({"pooling_factors": [3.0, 5.0]}, 8.0, 2),
        ({"pooling_factors": [3.0, 5.0], "num_poolings": [2.0, 1.0]}, 11.0, 3),
        ({"pooling_factors": [3.0, 5.0], "batch_sizes": [64, 32]}, 5.5, 2),
        ({"num_poolings": [20.0]}, 40.0, 40),
        ({"num_poolings": [0.1]}, 0.2, 1),
        ({"num_poolings": [1.1, 0.9]}, 2.0, 2),
        ({"num_poolings": [2.0], "batch_sizes": [128]}, 8.0, 8),
    ],
)
def test_table_lookups_and_outputs_add_up_all_features(given, lookups, outputs):
    table = _sku(**given).table("sku", 64, 2)
    assert (table.pooling_factor, table.features) == (lookups, outputs)


@pytest.mark.parametrize("given", [{}, {"num_poolings": [20.0]}, {"batch_sizes": [5120]}])
def test_memory_of_outputs_follows_torchrec(given):
    """TorchRec counts number of poolings x batch size of the feature as outputs; NeuroShard also their gradients."""
    constraints = {"t": ParameterConstraints(sharding_types=["table_wise"], pooling_factors=[1.0], **given)}
    ours, _ = planned(bags("t", rows=1000, dim=128), batch_size=256, cap=1 << 30, constraints=constraints)
    (option,) = ours.get_selected_options()
    estimated = sum(shard.storage.ddr for shard in option.shards)
    assert estimated <= sum(ours.last_plan.device_bytes) <= 2 * estimated
    assert (estimated > 5e6) is bool(given)


def test_constraints_with_too_many_outputs_per_sample_are_refused():
    where, names = "constraints of table 'sku'", ["num_poolings", "batch_sizes", "1,026", "1,024"]
    with refused("constraints-outputs-too-many", where=where, names=names):
        _sku(num_poolings=[513.0]).table("sku", 64, 2)


def test_parameter_constraints_with_a_wrong_number_of_pooling_factors_are_refused():
    with refused("constraints-numbers-per-feature", where="constraints of table 'sku'", names=["pooling_factors", 2]):
        _sku(pooling_factors=[1.0, 2.0, 3.0]).table("sku", 64, 2)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({}, None),
        ({"pooling_factors": [2.0], "sharding_types": ["column_wise", "table_wise"]}, None),
        ({"sharding_types": ["table_wise"]}, TableRule("sku", max_shards=1)),
        ({"sharding_types": ["table_wise", "row_wise"]}, TableRule("sku", min_dim=16)),
        ({"sharding_types": ["column_wise"], "min_partition": 8}, TableRule("sku", min_dim=8)),
    ],
)
def test_parameter_constraints_on_splits_become_rules(given, rule):
    assert _sku(**given).split_rule("sku") == rule


@pytest.mark.parametrize(
    ("types", "forms", "rule"),
    [
        (None, set(Form), None),
        (["column_wise", "row_wise", "data_parallel"], set(Form), TableRule("b[*]", sharding_types=FORMS)),
        (["column_wise", "table_row_wise"], {Form.COLUMN_WISE}, TableRule("b[*]", sharding_types=("column_wise",))),
        (["column_wise"], {Form.COLUMN_WISE}, TableRule("b[*]", sharding_types=("column_wise",))),
    ],
)
def test_tables_may_have_the_sharding_types_that_constraints_name_or_all(types, forms, rule):
    found = _sku(sharding_types=types)
    assert set(found.forms) == forms
    assert found.type_rule("b*") == rule


def test_constraints_for_other_tables_are_warned_about(caplog):
    assert len(find_tables(MODEL, constraints={"skew": ParameterConstraints()})) == 3
    (unknown,) = logged(caplog)
    check(unknown, "constraints-table-unknown", where="constraints", names=["'skew'"])


def test_split_rule_matches_table_names_literally():
    rule = find_tables(bags("a*", "ab"), constraints={"a*": ParameterConstraints(min_partition=8)})[0].split_rule("a*")
    assert fnmatchcase("a*", rule.tables)
    assert not fnmatchcase("ab", rule.tables)


def test_tables_of_embedding_collections_are_sequence_tables():
    given = {"s": ParameterConstraints(pooling_factors=[20.0, 3.0])}
    (found,) = find_tables(FOLLOWED, constraints=given)
    table = found.table("0.s", 64, 2)
    assert (found.path, table.pooled, table.pooling_factor, table.features) == ("0", False, 23.0, 2)
