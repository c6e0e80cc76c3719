"""Tables read from TorchRec modules, on the meta device: nothing is materialised."""

from fnmatch import fnmatchcase

import pytest
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.planner import ParameterConstraints
from torchrec.types import DataType

from neuroshard.plumbing.errors import UserError
from neuroshard.tasks.constraints import TableRule
from neuroshard.torchrec import find_tables
from neuroshard.words.form import Form
from tests.kit.torchrec_models import META, bag, bags


class _Model(nn.Module):
    """Two collections, one of them deeper down."""

    def __init__(self):
        super().__init__()
        self.users = EmbeddingBagCollection([bag("id", 10**9, 128), bag("age", 100, 8)], device=META)
        self.sparse = nn.ModuleDict({"bought": bags("sku", rows=500, features=("sku_0", "sku_1"))})
        self.over = nn.Linear(4, 1)


def test_collections_are_found_wherever_they_are():
    places = [(found.path, found.name) for found in find_tables(_Model())]
    assert places == [("users", "id"), ("users", "age"), ("sparse.bought", "sku")]
    assert find_tables(bags("id"))[0].qualified_name == "id"
    assert find_tables(nn.Linear(2, 2)) == ()


def test_tables_have_the_configs_sizes():
    table = find_tables(_Model())[0].table("users.id", 64, 2)
    assert (table.name, table.rows, table.dim, table.pooling_factor) == ("users.id", 10**9, 128, 1.0)
    (half,) = find_tables(bags("narrow", data_type=DataType.FP16))
    assert half.table("narrow", 64, 2).bytes_per_element == 2
    (brain,) = find_tables(bags("brain", data_type=DataType.BF16))
    assert brain.table("brain", 64, 2).bytes_per_element == 2


@pytest.mark.parametrize(
    ("given", "lookups"),
    [
        ({}, 2.0),
        ({"pooling_factors": [3.0]}, 6.0),
        ({"pooling_factors": [3.0, 5.0]}, 8.0),
        ({"pooling_factors": [3.0, 5.0], "num_poolings": [2.0, 1.0]}, 11.0),
        ({"pooling_factors": [3.0, 5.0], "batch_sizes": [64, 32]}, 5.5),
    ],
)
def test_all_features_of_a_table_count(given, lookups):
    found = find_tables(_Model(), constraints={"sku": ParameterConstraints(**given)})[2]
    assert found.table("sku", 64, 2).pooling_factor == lookups


def test_numbers_for_too_few_features_are_refused():
    found = find_tables(_Model(), constraints={"sku": ParameterConstraints(pooling_factors=[1.0, 2.0, 3.0])})[2]
    with pytest.raises(UserError, match=r"its 2 feature\(s\)"):
        found.table("sku", 64, 2)


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
def test_limits_on_splits_become_rules(given, rule):
    assert find_tables(_Model(), constraints={"sku": ParameterConstraints(**given)})[2].split_rule("sku") == rule


def test_tables_may_lie_in_the_forms_that_constraints_name_or_in_all():
    given = ({}, {"sharding_types": ["column_wise", "row_wise", "data_parallel"]}, {"sharding_types": ["column_wise"]})
    parameters = [find_tables(_Model(), constraints={"sku": ParameterConstraints(**some)})[2] for some in given]
    assert [set(found.forms) for found in parameters] == [set(Form), set(Form), {Form.COLUMNS}]
    assert [found.form_rule("b*") for found in parameters] == [None, None, TableRule("b[*]", forms=("columns",))]


def test_constraints_for_other_tables_are_warned_about(caplog):
    assert len(find_tables(_Model(), constraints={"skew": ParameterConstraints()})) == 3
    assert "'skew' that no collection of the model has" in caplog.text


def test_names_are_no_patterns():
    rule = find_tables(bags("a*", "ab"), constraints={"a*": ParameterConstraints(min_partition=8)})[0].split_rule("a*")
    assert fnmatchcase("a*", rule.tables)
    assert not fnmatchcase("ab", rule.tables)


def _sequences():
    config = EmbeddingConfig(name="s", num_embeddings=400, embedding_dim=8, feature_names=["f", "g"])
    return EmbeddingCollection([config], device=META)


def test_tables_of_embedding_collections_are_sequence_tables():
    given = {"s": ParameterConstraints(pooling_factors=[20.0, 3.0])}
    (found,) = find_tables(nn.Sequential(_sequences()), constraints=given)
    table = found.table("0.s", 64, 2)
    assert (found.path, table.pooled, table.pooling_factor, table.features) == ("0", False, 23.0, 2)
    assert find_tables(_Model())[0].table("id", 64, 2).pooled


def test_sequence_tables_lie_in_columns_and_rows_where_constraints_allow_it():
    given = ({}, {"sharding_types": ["table_wise", "data_parallel"]}, {"sharding_types": ["table_wise", "row_wise"]})
    parameters = [find_tables(_sequences(), constraints={"s": ParameterConstraints(**some)})[0] for some in given]
    assert [found.forms for found in parameters] == [("columns", "rows"), ("columns",), ("columns", "rows")]
    assert [found.form_rule("t") for found in parameters] == [None, TableRule("t", forms=("columns",)), None]
    assert [found.name for found in find_tables(nn.Sequential(_sequences(), _Model()))] == ["s", "id", "age", "sku"]
