"""Tables read from TorchRec modules, on the meta device: nothing is materialised."""

from fnmatch import fnmatchcase

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.planner import ParameterConstraints
from torchrec.types import DataType

from neuroshard.errors import UserError
from neuroshard.tasks.constraints import TableRule
from neuroshard.torchrec import find_bags
from neuroshard.torchrec.bags import form_rules

META = torch.device("meta")


def _config(name, rows=10**9, dim=128, features=1, data_type=DataType.FP32):
    names = [f"{name}_{i}" for i in range(features)]
    return EmbeddingBagConfig(
        name=name, num_embeddings=rows, embedding_dim=dim, feature_names=names, data_type=data_type
    )


class _Model(nn.Module):
    """Two collections, one of them deeper down."""

    def __init__(self):
        super().__init__()
        self.users = EmbeddingBagCollection([_config("id"), _config("age", 100, 8)], device=META)
        self.sparse = nn.ModuleDict(
            {"bought": EmbeddingBagCollection([_config("sku", 500, 16, features=2)], device=META)}
        )
        self.over = nn.Linear(4, 1)


def test_collections_are_found_wherever_they_are():
    bags = find_bags(_Model())
    assert [(bag.path, bag.name) for bag in bags] == [("users", "id"), ("users", "age"), ("sparse.bought", "sku")]
    assert find_bags(EmbeddingBagCollection([_config("id")], device=META))[0].qualified_name == "id"
    assert find_bags(nn.Linear(2, 2)) == ()


def test_tables_have_the_configs_sizes():
    table = find_bags(_Model())[0].table("users.id", 64, 2)
    assert (table.name, table.rows, table.dim, table.pooling_factor) == ("users.id", 10**9, 128, 1.0)
    (half,) = find_bags(EmbeddingBagCollection([_config("narrow", data_type=DataType.FP16)], device=META))
    assert half.table("narrow", 64, 2).bytes_per_element == 2
    (brain,) = find_bags(EmbeddingBagCollection([_config("brain", data_type=DataType.BF16)], device=META))
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
    bag = find_bags(_Model(), constraints={"sku": ParameterConstraints(**given)})[2]
    assert bag.table("sku", 64, 2).pooling_factor == lookups


def test_numbers_for_too_few_features_are_refused():
    bag = find_bags(_Model(), constraints={"sku": ParameterConstraints(pooling_factors=[1.0, 2.0, 3.0])})[2]
    with pytest.raises(UserError, match=r"its 2 feature\(s\)"):
        bag.table("sku", 64, 2)


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
    assert find_bags(_Model(), constraints={"sku": ParameterConstraints(**given)})[2].rule("sku", 1 << 60) == rule


def test_forms_besides_columns_must_be_named():
    given = ({}, {"sharding_types": ["column_wise", "row_wise", "data_parallel"]}, {"sharding_types": ["column_wise"]})
    bags = [find_bags(_Model(), constraints={"sku": ParameterConstraints(**some)})[2] for some in given]
    assert [bag.forms for bag in bags] == [("columns",), ("columns", "rows", "copies"), ("columns",)]
    assert form_rules({"sku": bags[0], "b": bags[2]}, {"sku": 1, "b": 1}) == (TableRule("*", forms=("columns",)),)
    assert form_rules({"s*": bags[1], "b": bags[2]}, {"s*": 1, "b": 1}) == (
        TableRule("s[*]", forms=("columns", "rows", "copies")),
        TableRule("b", forms=("columns",)),
    )


def test_constraints_for_other_tables_are_warned_about(caplog):
    assert len(find_bags(_Model(), constraints={"skew": ParameterConstraints()})) == 3
    assert "'skew' that no collection of the model has" in caplog.text


def test_names_are_no_patterns():
    config = EmbeddingBagCollection([_config("a*"), _config("ab")], device=META)
    rule = find_bags(config, constraints={"a*": ParameterConstraints(min_partition=8)})[0].rule("a*", 1 << 60)
    assert fnmatchcase("a*", rule.tables)
    assert not fnmatchcase("ab", rule.tables)


def _sequences():
    config = EmbeddingConfig(name="s", num_embeddings=400, embedding_dim=8, feature_names=["f", "g"])
    return EmbeddingCollection([config], device=META)


def test_tables_of_embedding_collections_are_sequence_tables():
    given = {"s": ParameterConstraints(pooling_factors=[20.0, 3.0])}
    (bag,) = find_bags(nn.Sequential(_sequences()), constraints=given)
    table = bag.table("0.s", 64, 2)
    assert (bag.path, table.pooled, table.pooling_factor, table.features) == ("0", False, 23.0, 2)
    assert find_bags(_Model())[0].table("id", 64, 2).pooled


def test_sequence_tables_lie_in_rows_where_they_are_named_or_no_half_fits():
    given = ({}, {"sharding_types": ["table_wise", "data_parallel"]}, {"sharding_types": ["table_wise", "row_wise"]})
    bags = [find_bags(_sequences(), constraints={"s": ParameterConstraints(**some)})[0] for some in given]
    half, pooled = bags[0].table("s", 64, 2).size_bytes // 2, find_bags(_Model())[0]
    for memory, unasked in ((half, ("columns",)), (half - 1, ("columns", "rows"))):
        assert [bag.forms_on(memory) for bag in bags] == [unasked, ("columns",), ("columns", "rows")]
    in_columns = TableRule("p", forms=("columns",))
    assert form_rules({"s": bags[0], "p": pooled}, {"s": half - 1, "p": half}) == (
        TableRule("s", forms=unasked),
        in_columns,
    )
    assert form_rules({"s": bags[0], "p": pooled}, {"s": half, "p": half}) == (TableRule("*", forms=("columns",)),)
    assert [bag.name for bag in find_bags(nn.Sequential(_sequences(), _Model()))] == ["s", "id", "age", "sku"]


def test_features_are_counted():
    assert [bag.num_features for bag in find_bags(_Model())] == [1, 1, 2]
