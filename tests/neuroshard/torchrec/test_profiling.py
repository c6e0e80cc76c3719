"""Statistics of tables profiled from TorchRec's tensors, compared with plain lookups, and used by the planner."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torchrec import EmbeddingCollection, JaggedTensor, KeyedJaggedTensor
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import ShardingPlan
from torchrec.types import DataType

import neuroshard as ns
from neuroshard.torchrec import profile
from tests.kit.messages import check, logged, refused
from tests.kit.torchrec_models import META, bags, planner, sequence, shaped_bags
from tests.kit.training import drawn_lookups

SHAPES = {"user": (40, 8), "item": (300, 8)}
FEATURES = {"user": ("user_id",), "item": ("seen", "bought")}
MODEL = shaped_bags(SHAPES, FEATURES)
NARROW = bags("a", "b", rows=100, dim=8, data_type=DataType.FP16)
REUSE = (*(0.0,) * 16, 1.0)


def _drawn(samples, seed):
    """Draw the lookups of each feature."""
    rows = {feature: SHAPES[table][0] for table, features in FEATURES.items() for feature in features}
    return drawn_lookups(rows, samples, seed, step=0).to_dict()


def _tensor(drawn, *features):
    """A KeyedJaggedTensor of some of the features, in this order."""
    return KeyedJaggedTensor.from_jt_dict({feature: drawn[feature] for feature in features})


def _plain(batches, size):
    """Count the same lookups by `ns.tables_from_batches`, with the lookups of all features of a table together."""
    shapes = [ns.TableShape(name, *shape) for name, shape in SHAPES.items()]
    given = []
    for drawn in batches:
        values = {table: torch.cat([drawn[one].values() for one in its]).numpy() for table, its in FEATURES.items()}
        # The first sample has all lookups of the batch: samples are counted, not what each has.
        given.append({table: (its, np.array([0] + [len(its)] * 16)) for table, its in values.items()})
    return ns.tables_from_batches(shapes, given, size)


def _statistics(found):
    """Return the counted statistics without the fields that come from the model."""
    return [
        (table.name, table.rows, table.dim, table.pooling_factor, table.reuse, table.row_lookups)
        for table in found.tables
    ]


DRAWN = [_drawn(16, seed) for seed in range(6)]
KEYS = ("bought", "user_id", "seen")
BATCHES = [_tensor(drawn, *KEYS) for drawn in DRAWN]


@pytest.mark.parametrize(
    ("settings", "size", "batches"),
    [({"world_size": 3}, 48, 2), ({"world_size": 1}, 16, 6), ({"global_batch_size": 16}, 16, 6)],
)
def test_profiles_of_tensors_and_plain_lookups_are_equal(settings, size, batches):
    """Local batches of all devices make up a global batch; both features of a shared table count."""
    found, plain = profile(MODEL, BATCHES, **settings), _plain(DRAWN, size)
    assert _statistics(found) == _statistics(plain)
    assert {table.reuse_batch_size for table in found.tables} == {size}
    assert (found.batch_size, found.batches, found.left_out) == (size, batches, 0)
    assert found.counted[1].lookups == {
        feature: sum(len(drawn[feature].values()) for drawn in DRAWN) for feature in FEATURES["item"]
    }
    assert [counted.rows_kept for counted in found.counted] == [counted.rows_kept for counted in plain.counted]
    assert ns.Task(found.tables, ns.Topology(size // 16, "1GiB"), batch_size=size).warnings == ()


TIMES = KeyedJaggedTensor(["time"], torch.arange(40), lengths=torch.ones(40).int())  # no table reads it


@dataclass
class _Batch:
    """A batch as a data loader yields it."""

    dense: torch.Tensor
    sparse: KeyedJaggedTensor


@pytest.mark.parametrize(
    ("made", "features"),
    [
        (lambda drawn: {"users": _tensor(drawn, "user_id"), "items": _tensor(drawn, "seen", "bought")}, None),
        (lambda drawn: [_tensor(drawn, "user_id"), _tensor(drawn, "seen", "bought")], None),
        (lambda drawn: [_tensor(drawn, *KEYS), TIMES, TIMES], None),
        (lambda drawn: _Batch(torch.ones(16, 2), _tensor(drawn, *KEYS)), lambda batch: batch.sparse),
        (lambda drawn: (torch.ones(16), _tensor(drawn, *KEYS)), lambda batch: batch[1]),
        (lambda drawn: (torch.ones(16), {"all": _tensor(drawn, *KEYS)}), lambda batch: batch[1]),
    ],
    ids=["dict", "list", "list with others", "object", "tuple", "tuple of dict"],
)
def test_profile_extracts_tensors_from_batches_by_features(made, features):
    batches = (made(drawn) for drawn in DRAWN)
    assert profile(MODEL, batches, features, world_size=2) == profile(MODEL, BATCHES, world_size=2)


def test_profile_names_tables_as_plans_name_them():
    """Both collections have a table of the same name."""
    users, narrow = {"user": SHAPES["user"]}, {"data_type": DataType.FP16}
    model = nn.ModuleDict({"one": shaped_bags(users, FEATURES), "other": shaped_bags(SHAPES, FEATURES, **narrow)})
    found = profile(model, BATCHES, world_size=2)
    assert [table.name for table in found.tables] == ["one.user", "other.user", "item"]
    assert [table.bytes_per_element for table in found.tables] == [4, 2, 2]
    assert found.tables[0].reuse == found.tables[1].reuse
    plan = planner(models="roofline:h100", cap=1 << 24, tables=found).plan(model)
    ours = planner(models="roofline:h100", cap=1 << 24, tables=found, given=ShardingPlan({"one": plan.plan["one"]}))
    assert [table.name for table in ours.search(model).task.tables] == ["other.user", "item"]
    assert ours.last_plan.task.tables[0].pooling_factor == found.tables[1].pooling_factor


def test_profile_takes_the_number_of_devices_from_the_process_group(group):
    assert profile(MODEL, BATCHES).batch_size == 16


def test_tables_without_lookups_are_warned_about():
    none = JaggedTensor(torch.zeros(0, dtype=torch.int64), lengths=torch.zeros(16, dtype=torch.int64))
    drawn = DRAWN[0] | {"user_id": none}
    with pytest.warns(ns.NeuroShardWarning) as seen:
        assert profile(MODEL, [_tensor(drawn, *KEYS)], world_size=1).tables[0].pooling_factor == 1 / 16
    (message,) = (one for one in seen[0].message.messages if one.code == "tables-never-looked-up")
    check(message, "tables-never-looked-up", names=["'user'"])
    assert seen[0].filename == __file__


def _with(feature, value):
    its = DRAWN[0][feature]
    changed = JaggedTensor(torch.full_like(its.values(), value), lengths=its.lengths())
    return _tensor(DRAWN[0] | {feature: changed}, *KEYS)


@pytest.mark.parametrize(
    ("batch", "code", "where", "names"),
    [
        (_tensor(DRAWN[0], "user_id", "seen"), "profile-feature-missing", "batch 1, table 'item'",
         ["'bought'", "seen, user_id"]),
        (_with("seen", 300), "lookups-index-outside", "batch 1, table 'item', feature 'seen'", [300, 0, 299]),
        (_with("user_id", -1), "lookups-index-outside", "batch 1, table 'user', feature 'user_id'", [-1, 0, 39]),
        (torch.ones(3), "profile-batch-type", "", ["Tensor", "features="]),
        ([BATCHES[0], BATCHES[1]], "profile-key-twice", "", ["'bought'"]),
        (
            [_tensor(DRAWN[0], "user_id"), _tensor(_drawn(5, 0), "seen", "bought")],
            "batch-sample-counts", "batch 1, table 'item', feature 'seen'", [5, 16, "'user'"],
        ),
        (
            KeyedJaggedTensor(
                ["user_id", "seen"], torch.arange(3), lengths=torch.ones(3).int(), stride_per_key_per_rank=[[2], [1]]
            ),
            "profile-batch-variable", "", [],
        ),
    ],
)  # fmt: skip
def test_profiling_an_invalid_batch_names_the_batch(batch, code, where, names):
    with refused(code, where=where, names=names):
        profile(MODEL, [BATCHES[0], batch], world_size=1)


@pytest.mark.parametrize(
    ("arguments", "code", "names"),
    [
        ((nn.Linear(2, 2), BATCHES), "profile-model-without-tables", ["sharders="]),
        ((MODEL, BATCHES), "profile-devices-unknown", ["world_size", "init_process_group()"]),
        ((MODEL, [], None, None, 2), "profile-first-batch-empty", ["global_batch_size"]),
        ((MODEL, [], None, 16), "batches-no-samples", []),
        ((MODEL, BATCHES[0], None, 16), "profile-single-batch", ["KeyedJaggedTensor", "[batch]"]),
        ((MODEL, BATCHES, None, 0), "value-outside-limits", ["global_batch_size", 0]),
        ((MODEL, BATCHES, None, None, 0), "value-outside-limits", ["world_size", 0]),
    ],
)
def test_profile_refuses_invalid_arguments(arguments, code, names):
    with refused(code, names=names):
        profile(*arguments)


def _planned(known, constraints=None, model=NARROW, **settings):
    """Return the tables that the planner counts for a model."""
    ours = planner(constraints=constraints, tables=known, **settings)
    ours.plan(model)
    return ours.last_plan.task.tables


def test_planner_uses_profiled_statistics_of_pooled_and_sequence_tables(tmp_path):
    """Statistics of pooled and of sequence tables."""
    configs = [sequence(name, *shape, FEATURES[name]) for name, shape in SHAPES.items()]
    followed = EmbeddingCollection(configs, device=META)
    pooled, sequences = (profile(model, BATCHES, world_size=2) for model in (MODEL, followed))
    assert [table.pooled for table in (*pooled.tables, *sequences.tables)] == [True, True, False, False]
    assert _statistics(pooled) == _statistics(sequences)
    path = tmp_path / "tables.parquet"
    for model, found in ((MODEL, pooled), (followed, sequences)):
        found.save(path)
        asked = {"model": model, "models": "roofline:h100", "batch_size": 16}
        assert all(_planned(known, **asked) == found.tables for known in (found, found.tables, path))
        assert _planned(None, **asked) != found.tables


def _table(name="b", rows=100, dim=8):
    return ns.Table(name, rows, dim, 7.5, REUSE, 4, 8, row_lookups=(0.25, 0.75))


def test_planner_matches_tables_statistics_by_name():
    guessed, known = _planned([_table()], {"b": ParameterConstraints(pooling_factors=[2.0])})
    assert guessed.pooling_factor == 1.0
    assert known == replace(_table(), bytes_per_element=2)  # what the weights are is the model's to say
    assert known.reuse_batch_size == 8


PROFILE = "neuroshard.torchrec.profile(model, batches)"
NONE_OF_A = ("statistics-lookups-assumed", ["1 of 2", "(a)", f"tables={PROFILE}"])
NONE = ("statistics-lookups-assumed", ["2 of 2", "(a, b)", f"tables={PROFILE}"])
SAID = ParameterConstraints(pooling_factors=[2.0])


@pytest.mark.parametrize(
    ("known", "given", "warnings"),
    [
        (None, {}, [NONE]),
        (None, {"b": SAID}, [NONE_OF_A]),
        (None, {"b": ParameterConstraints(min_partition=4)}, [NONE]),
        (None, {name: ParameterConstraints(pooling_factors=[1.0]) for name in "ab"}, []),
        (None, {name: ParameterConstraints(pooling_factors=[1], min_partition=4) for name in "ab"}, []),
        (None, {name: ParameterConstraints(num_poolings=[3.0], min_partition=4) for name in "ab"}, []),
        ([_table()], {"a": SAID}, [("statistics-tables-missing", ["1 of 2", "'a'", PROFILE])]),
        (
            [_table(), _table("elsewhere")],
            {"b": SAID},
            [("statistics-table-not-planned", ["'elsewhere'"]), NONE_OF_A],
        ),
        ([_table("a"), _table("b")], {}, []),
    ],
)
def test_planner_warns_once_of_tables_without_statistics(known, given, warnings, caplog, path):
    caplog.set_level("WARNING", logger="neuroshard.torchrec.planner")  # whatever level earlier tests left
    _planned(known, given, keep=path)
    messages = logged(caplog)
    assert len(messages) == len(caplog.records)
    for message, (code, names) in zip(messages, [*warnings, ("costs-lack-framework", [])], strict=True):
        check(message, code, names=names)


def test_planner_reads_table_statistics_from_a_file(tmp_path):
    path = tmp_path / "tables.csv"
    path.write_text("name,rows,dim,pooling_factor\na,100,8,3.5\n")
    assert [table.pooling_factor for table in _planned(path)] == [3.5, 1.0]
    assert [table.pooling_factor for table in _planned(str(path))] == [3.5, 1.0]
    assert _planned(path)[0].reuse_batch_size == 8


def test_planner_uses_statistics_of_a_table_that_grew_with_a_warning(caplog):
    """Statistics are matched by name, so that a saved profile can be used after a table grew."""
    known = _table(rows=90, dim=4)
    (planned,) = (table for table in _planned([known]) if table.name == "b")
    assert (planned.pooling_factor, planned.reuse) == (known.pooling_factor, known.reuse)
    assert (planned.rows, planned.dim) == (100, 8)
    (changed,) = (message for message in logged(caplog) if message.code == "statistics-shapes-changed")
    check(changed, "statistics-shapes-changed", names=["(b: 90 x 4 -> 100 x 8)"])


def test_planner_refuses_statistics_of_more_rows_mappings_and_repeated_names():
    with refused("statistics-more-rows", names=["'b'", 101, 100]):
        _planned([_table(rows=101)])
    with refused("statistics-mapping", names=["tables="]):
        _planned({"b": _table()})
    with refused("table-name-shared", names=["'b'"]):
        _planned([_table(), _table()])
