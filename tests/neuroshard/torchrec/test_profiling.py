"""Statistics of a model's tables from TorchRec's tensors, beside those from plain lookups."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.planner import Topology
from torchrec.types import DataType

import neuroshard as ns
from neuroshard.plumbing.errors import UserError
from neuroshard.tables.reuse import zipf_reuse
from neuroshard.torchrec import NeuroShardPlanner, find_tables, profile
from neuroshard.torchrec.known_tables import known_tables, warn_of_guesses, with_statistics
from tests.kit.torchrec_models import META, bag

ROWS = {"user": 40, "item": 300}
FEATURES = {"user": ("user_id",), "item": ("seen", "bought")}


def _collection(*names, rows=ROWS, data_type=DataType.FP32):
    configs = [bag(name, rows[name], 8, FEATURES[name], data_type=data_type) for name in names]
    return EmbeddingBagCollection(configs, device=META)


MODEL = _collection("user", "item")


def _lengths_and_values(samples, seed):
    """Of every feature."""
    rng, found = np.random.default_rng(seed), {}
    for table, features in FEATURES.items():
        for feature in features:
            lengths = rng.integers(0, 4, size=samples)
            found[feature] = (lengths, rng.integers(0, ROWS[table], size=lengths.sum()))
    return found


def _tensor(drawn, *features):
    """A KeyedJaggedTensor of some of the features, in this order."""
    lengths, values = (np.concatenate([drawn[feature][part] for feature in features]) for part in (0, 1))
    return KeyedJaggedTensor.from_lengths_sync(
        list(features), torch.from_numpy(values), torch.from_numpy(lengths).to(torch.int32)
    )


def _plain(batches, size):
    """The same lookups by `ns.tables_from_batches`: of every sample those of one feature after those of the other."""
    shapes = [ns.TableShape(name, rows, 8) for name, rows in ROWS.items()]
    given = [
        {
            table: (
                np.concatenate([drawn[feature][1] for feature in features]),
                # The first sample has all lookups of the batch: samples are counted, not what each has.
                np.array([0] + [sum(len(drawn[feature][1]) for feature in features)] * len(drawn["seen"][0])),
            )
            for table, features in FEATURES.items()
        }
        for drawn in batches
    ]
    return ns.tables_from_batches(shapes, given, size)


def _statistics(found):
    """What was counted, without what else a model knows of its tables."""
    return [
        (table.name, table.rows, table.dim, table.pooling_factor, table.reuse, table.row_lookups)
        for table in found.tables
    ]


DRAWN = [_lengths_and_values(16, seed) for seed in range(6)]
KEYS = ("bought", "user_id", "seen")
BATCHES = [_tensor(drawn, *KEYS) for drawn in DRAWN]


def test_tensors_say_what_plain_lookups_do():
    """Local batches of three devices make a global one; of shared tables, both features count."""
    found, plain = profile(MODEL, BATCHES, world_size=3), _plain(DRAWN, 48)
    assert _statistics(found) == _statistics(plain)
    assert {table.reuse_batch_size for table in found.tables} == {48}
    assert (found.batch_size, found.batches, found.left_out) == (48, 2, 0)
    assert found.counted[1].lookups == {
        feature: sum(len(drawn[feature][1]) for drawn in DRAWN) for feature in FEATURES["item"]
    }
    assert [counted.rows_kept for counted in found.counted] == [counted.rows_kept for counted in plain.counted]
    assert ns.Task(found.tables, ns.Topology(3, "1GiB"), batch_size=48).warnings == ()


def test_batches_may_be_global_already():
    found = profile(MODEL, BATCHES, global_batch_size=16)
    assert _statistics(found) == _statistics(_plain(DRAWN, 16))
    assert found.batches == 6
    assert profile(MODEL, BATCHES[:1], world_size=1).batch_size == 16


@dataclass
class _Batch:
    """As a data loader gives it."""

    dense: torch.Tensor
    sparse: KeyedJaggedTensor


@pytest.mark.parametrize(
    ("made", "features"),
    [
        (lambda drawn: {"users": _tensor(drawn, "user_id"), "items": _tensor(drawn, "seen", "bought")}, None),
        (lambda drawn: [_tensor(drawn, "user_id"), _tensor(drawn, "seen", "bought")], None),
        (lambda drawn: _Batch(torch.ones(16, 2), _tensor(drawn, *KEYS)), lambda batch: batch.sparse),
        (lambda drawn: (torch.ones(16), _tensor(drawn, *KEYS)), lambda batch: batch[1]),
        (lambda drawn: (torch.ones(16), {"all": _tensor(drawn, *KEYS)}), lambda batch: batch[1]),
    ],
    ids=["dict", "list", "object", "tuple", "tuple of dict"],
)
def test_tensors_are_taken_out_of_batches(made, features):
    batches = (made(drawn) for drawn in DRAWN)
    assert profile(MODEL, batches, features, global_batch_size=32) == profile(MODEL, BATCHES, global_batch_size=32)


class _TwoCollections(nn.Module):
    """Of which both have a table of one name."""

    def __init__(self):
        super().__init__()
        self.one, self.other = _collection("user"), _collection("user", "item", data_type=DataType.FP16)


def test_tables_are_named_as_plans_name_them():
    found = profile(_TwoCollections(), BATCHES, world_size=2)
    assert [table.name for table in found.tables] == ["one.user", "other.user", "item"]
    assert [table.bytes_per_element for table in found.tables] == [4, 2, 2]
    assert found.tables[0].reuse == found.tables[1].reuse


def test_the_process_group_knows_how_many_devices_there_are(group):
    assert profile(MODEL, BATCHES).batch_size == 16


def test_tables_without_lookups_are_warned_about():
    drawn = DRAWN[0] | {"user_id": (np.zeros(16, dtype=np.int64), np.zeros(0, dtype=np.int64))}
    with pytest.warns(UserWarning, match="such as 'user', are never looked up") as seen:
        assert profile(MODEL, [_tensor(drawn, *KEYS)], world_size=1).tables[0].pooling_factor == 1 / 16
    assert seen[0].filename == __file__


def _with(feature, value):
    lengths, values = DRAWN[0][feature]
    return _tensor(DRAWN[0] | {feature: (lengths, np.full_like(values, value))}, *KEYS)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (_tensor(DRAWN[0], "user_id", "seen"), "batch 1, table 'item': no feature 'bought' among seen, user_id"),
        (_with("seen", 300), r"batch 1, table 'item', feature 'seen': index 300 must lie in 0\.\.299"),
        (_with("user_id", -1), r"batch 1, table 'user', feature 'user_id': index -1 must lie in 0\.\.39"),
        (torch.ones(3), "a batch holds a Tensor, not KeyedJaggedTensors alone; give features="),
        ([BATCHES[0], BATCHES[1]], "two tensors of a batch have the key 'bought'"),
        (
            [_tensor(DRAWN[0], "user_id"), _tensor(_lengths_and_values(5, 0), "seen", "bought")],
            "batch 1, table 'item', feature 'seen': 5 samples, but 16 of table 'user'",
        ),
        (
            KeyedJaggedTensor(
                ["user_id", "seen"], torch.arange(3), lengths=torch.ones(3).int(), stride_per_key_per_rank=[[2], [1]]
            ),
            "another number of samples for each key",
        ),
    ],
)
def test_wrong_batches_are_named(batch, message):
    with pytest.raises(UserError, match=message):
        profile(MODEL, [BATCHES[0], batch], world_size=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((nn.Linear(2, 2), BATCHES), "the model has no tables"),
        ((MODEL, BATCHES), "no process group to ask how many devices"),
        ((MODEL, [], None, None, 2), "the first batch has no samples"),
        ((MODEL, [], None, 16), "no tables from no samples"),
        ((MODEL, BATCHES, None, 0), "global_batch_size=0"),
        ((MODEL, BATCHES, None, None, 0), "world_size=0"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        profile(*arguments)


def _guessed():
    return tuple(found.table(found.name, 16, 2) for found in find_tables(MODEL))


def _known(guessed, known):
    return with_statistics(guessed, known_tables(known, 32))


def test_measured_statistics_replace_guessed_ones(tmp_path, caplog):
    found = profile(MODEL, BATCHES, world_size=2)
    assert _known(_guessed(), found) == found.tables
    assert _known(_guessed(), found.tables) == found.tables
    found.save(tmp_path / "tables.parquet")
    assert _known(_guessed(), tmp_path / "tables.parquet") == found.tables
    assert _known(_guessed(), None) == _guessed()
    assert caplog.text == ""
    assert _guessed() != found.tables


def test_what_else_the_model_knows_of_a_table_stays():
    guessed = tuple(replace(table, bytes_per_element=2) for table in _guessed())
    found = _known(guessed, profile(MODEL, BATCHES, world_size=2))
    assert {table.bytes_per_element for table in found} == {2}
    assert {table.reuse_batch_size for table in found} == {32}


def test_tables_that_one_side_lacks_are_warned_about(caplog):
    other = ns.Table("elsewhere", 5, 4, 1.0, zipf_reuse(5, 9))
    found = profile(MODEL, BATCHES, world_size=2).tables
    assert _known(_guessed(), [other, found[0]]) == (found[0], _guessed()[1])
    warn_of_guesses(dict.fromkeys(ROWS, False), known_tables([other, found[0]], 32))
    assert "statistics are given for a table 'elsewhere' that is not planned here" in caplog.text
    assert "no statistics of 1 of 2 tables, such as 'item': guessed" in caplog.text


def test_sequence_tables_are_counted_and_planned_with_what_was(tmp_path):
    configs = [
        EmbeddingConfig(name=name, num_embeddings=rows, embedding_dim=8, feature_names=list(FEATURES[name]))
        for name, rows in ROWS.items()
    ]
    model = EmbeddingCollection(configs, device=META)
    found, plain = profile(model, BATCHES, world_size=3), profile(MODEL, BATCHES, world_size=3)
    assert [table.pooled for table in found.tables] == [False, False]
    assert _statistics(found) == _statistics(plain)
    found.save(tmp_path / "tables.parquet")
    for tables in (found, tmp_path / "tables.parquet"):
        topology = Topology(3, "cpu", ddr_cap=1 << 20, local_world_size=3, created_by_factory=True)
        task = NeuroShardPlanner(topology, 16, "roofline:h100", tables=tables).search(model).task
        assert task.tables == found.tables
