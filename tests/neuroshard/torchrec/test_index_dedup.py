"""Index deduplication of sequence tables: the lookups of tasks equal the lookups that TorchRec exchanges."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torchrec import KeyedJaggedTensor
from torchrec.distributed.embedding import EmbeddingCollectionSharder, set_ec_index_dedup
from torchrec.distributed.planner import ParameterConstraints

from neuroshard import MemoryUse, Table
from neuroshard.measure.steps._mirror import mirrored_world
from neuroshard.tables.reuse import histogram
from neuroshard.torchrec.sequences import deduplicated
from tests.kit.torchrec_models import CPU, planner, sequences
from tests.kit.training import sharded

DEVICES, SAMPLES, LENGTH, DIM, ROWS = 4, 256, 12, 16, 2000
FEATURES = ("clicked", "bought")  # both read one table


def _unique_on_cpu(hash_size_cumsum, hash_size_offsets, offsets, indices):
    """FBGEMM's kernel, which it has for GPUs alone: distinct rows of each table, whichever of its features asks."""
    samples = (len(offsets) - 1) // (len(hash_size_cumsum) - 1)
    feature = torch.repeat_interleave(torch.arange(len(hash_size_cumsum) - 1), offsets[::samples].diff())
    unique, reverse = torch.unique(hash_size_cumsum[feature] + indices, return_inverse=True)
    lengths = torch.zeros(len(offsets) - 1, dtype=torch.int64)
    starts = hash_size_cumsum[hash_size_offsets]
    for first, last, low, high in zip(hash_size_offsets, hash_size_offsets[1:], starts, starts[1:], strict=False):
        if last > first:
            count = int(((unique >= low) & (unique < high)).sum())
            bags = int(last - first) * samples
            lengths[int(first) * samples : int(last) * samples] = count // bags
            lengths[int(first) * samples : int(first) * samples + count % bags] += 1
    table = torch.searchsorted(hash_size_cumsum, unique, right=True) - 1
    return lengths, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), unique - hash_size_cumsum[table], reverse


@pytest.fixture
def kernel():
    library = torch.library.Library("fbgemm", "IMPL")
    library.impl("jagged_unique_indices", _unique_on_cpu, "CPU")
    yield
    library._destroy()


def _collection():
    return sequences("goods", rows=ROWS, dim=DIM, features=FEATURES, device=CPU)


def _zipf(generator):
    weight = np.arange(1, ROWS + 1) ** -1.05
    return generator.choice(ROWS, (DEVICES, len(FEATURES), SAMPLES * LENGTH), p=weight / weight.sum())


def _one_row(generator):
    return np.full((DEVICES, len(FEATURES), SAMPLES * LENGTH), 7)


def _once(generator):
    """Rows that nobody looks up twice; no table is so small."""
    return generator.permutation(DEVICES * len(FEATURES) * SAMPLES * LENGTH).reshape(DEVICES, len(FEATURES), -1)


def _measured(batches):
    lookups = batches.size / (DEVICES * SAMPLES)
    counts = np.unique(batches, return_counts=True)[1]
    return Table("goods", ROWS, DIM, lookups, histogram(counts), features=len(FEATURES), pooled=False)


def _planned(batches, sharder, **settings):
    """The plan, and the task that it is for, of a table with the statistics of these batches."""
    whole = {"goods": ParameterConstraints(sharding_types=["table_wise"])}  # every index goes to one device
    given = {"models": "roofline:h100", "batch_size": SAMPLES, "tables": [_measured(batches)]} | settings
    given = {"constraints": whole} | given
    ours = planner(DEVICES, cap=1 << 30, **given)
    return ours.plan(_collection(), [sharder]), ours.last_plan.task


def _exchanged(batches, dedup):
    """Indices that all ranks send, by real ranks' own steps, and how many are predicted."""
    sharder, sent = EmbeddingCollectionSharder(use_index_dedup=dedup), []
    plan, task = _planned(batches, sharder)

    @contextmanager
    def watch(name, given, got):
        sent.append((name, [one for one in given if not one.is_floating_point()]))
        yield

    total = 0
    for rank in range(DEVICES):
        with mirrored_world(rank, DEVICES, DEVICES, watch):
            model = sharded(_collection(), plan, [sharder])
            sent.clear()
            lengths = torch.full((len(FEATURES) * SAMPLES,), LENGTH)
            values = torch.from_numpy(batches[rank].reshape(-1))
            out = model(KeyedJaggedTensor(keys=list(FEATURES), values=values, lengths=lengths))
            assert [out[name].values().shape for name in FEATURES] == [(SAMPLES * LENGTH, DIM)] * len(FEATURES)
        exchanges = [tensors[0] for name, tensors in sent if name == "all_to_all" and tensors]
        total += exchanges[-1].numel()  # sizes, lengths, indices
    (table,) = task.tables
    return total, table.pooling_factor * DEVICES * SAMPLES


@pytest.mark.parametrize(("draw", "within"), [(_zipf, 0.1), (_one_row, 1e-4)])
def test_predicted_deduplicated_traffic_equals_the_exchanged_bytes(kernel, draw, within):
    batches = draw(np.random.default_rng(0))
    every, predicted_every = _exchanged(batches, dedup=False)
    distinct, predicted = _exchanged(batches, dedup=True)
    assert every == predicted_every == batches.size
    assert distinct == sum(len(np.unique(its)) for its in batches)  # of both features together
    assert predicted == pytest.approx(distinct, rel=within)
    assert distinct < 0.5 * every


def test_tables_with_single_lookups_are_unchanged_by_deduplication():
    table = replace(_measured(_once(np.random.default_rng(0))), rows=10**6)
    found = deduplicated(table, DEVICES * SAMPLES, DEVICES)
    assert found.pooling_factor == pytest.approx(table.pooling_factor)
    assert found.reuse == pytest.approx(table.reuse)


def test_index_dedup_requests_at_most_the_rows_of_a_table():
    table = Table("small", 3, DIM, 1.2, (0.0,) * 7 + (1.0,) + (0.0,) * 9, pooled=False)
    assert deduplicated(table, 256, DEVICES).pooling_factor == 3 * DEVICES / 256


def test_deduplicated_lookups_have_the_reuse_and_row_lookups_of_unique_indices():
    batches = _zipf(np.random.default_rng(0))
    spread = np.histogram(batches, bins=20, range=(0, ROWS))[0] / batches.size
    table = replace(_measured(batches), row_lookups=tuple(spread))
    found = deduplicated(table, DEVICES * SAMPLES, DEVICES)
    sent = np.concatenate([np.unique(its) for its in batches])
    reused = histogram(np.unique(sent, return_counts=True)[1])
    assert np.abs(np.array(found.reuse) - reused).sum() < 0.2
    assert sum(found.reuse[:3]) == pytest.approx(1)  # no row has more than four devices
    blocks = np.histogram(sent, bins=20, range=(0, ROWS))[0] / len(sent)
    assert np.abs(np.array(found.row_lookups) - blocks).max() < 0.03 < np.abs(spread - blocks).max()


def test_expanded_embeddings_with_index_dedup_take_device_memory():
    batches, memory = _zipf(np.random.default_rng(0)), MemoryUse(batches_in_flight=1)
    sharders = (EmbeddingCollectionSharder(use_index_dedup=once) for once in (False, True))
    tasks = [_planned(batches, sharder, memory=memory)[1] for sharder in sharders]
    every, once = (task.topology.device_memory[0] for task in tasks)
    assert every - once == SAMPLES * len(FEATURES) * LENGTH * DIM * 2 * 4


def test_deprecated_name_of_index_dedup_has_the_same_effect():
    with pytest.warns(DeprecationWarning):
        set_ec_index_dedup(True)
    try:
        _, task = _planned(_one_row(None), EmbeddingCollectionSharder())
        assert task.tables[0].pooling_factor == pytest.approx(1 / SAMPLES, rel=1e-4)
    finally:
        with pytest.warns(DeprecationWarning):
            set_ec_index_dedup(False)
