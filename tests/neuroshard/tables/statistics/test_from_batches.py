"""Statistics counted from batches, compared with brute force."""

import tracemalloc
import warnings
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import neuroshard as ns
from neuroshard.tables.reuse import histogram, zipf_reuse
from neuroshard.tables.statistics.from_batches import count_batches
from neuroshard.tables.statistics.lookups import Lookups
from neuroshard.tables.statistics.measured import MeasuredTables, write_tables
from neuroshard.tables.statistics.row_counts import RowCounts, SharedRoom, block_counts
from neuroshard.tables.statistics.tally import BatchTally
from neuroshard.testing import toy_tables
from tests.kit.messages import check, refused, warned

SHAPES = (ns.TableShape("a", 50, 8), ns.TableShape("b", 7, 16, 2))


def _batch(samples, rng=None):
    """Draw the lookups of each table with offsets; some samples have no lookups."""
    rng, found = rng or np.random.default_rng(0), {}
    for shape in SHAPES:
        lengths = rng.integers(0, 4, size=samples)
        indices = (shape.rows * rng.random(lengths.sum()) ** 3).astype(np.int64)
        found[shape.name] = (indices, np.concatenate([[0], lengths.cumsum()]))
    return found


def _joined(batches):
    """Join batches into one batch of all samples."""
    found = {}
    for name in batches[0]:
        lengths = np.concatenate([np.diff(batch[name][1]) for batch in batches])
        indices = np.concatenate([batch[name][0] for batch in batches])
        found[name] = (indices, np.concatenate([[0], lengths.cumsum()]))
    return found


def _count(batches, size, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ns.tables_from_batches(SHAPES, batches, size, **settings)


def _close(table, other):
    assert (table.name, table.rows, table.dim, table.bytes_per_element, table.reuse_batch_size) == (
        other.name, other.rows, other.dim, other.bytes_per_element, other.reuse_batch_size,
    )  # fmt: skip
    assert table.pooling_factor == pytest.approx(other.pooling_factor)
    np.testing.assert_allclose(table.reuse, other.reuse, atol=1e-12)
    np.testing.assert_allclose(table.row_lookups, other.row_lookups, atol=1e-12)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(1, 40), st.integers(0, 99))
def test_counted_statistics_equal_those_of_each_global_batch_counted_by_itself(sizes, global_size, seed):
    """However samples are split into batches, the statistics equal counts of each global batch alone."""
    rng = np.random.default_rng(seed)
    batches = [_batch(size, rng) for size in [*sizes, 1]]
    total = sum(sizes) + 1
    found = _count(batches, global_size, row_blocks=9)
    size = min(global_size, total)
    assert (found.batch_size, found.batches, found.left_out) == (size, total // size, total % size)
    whole = _joined(batches)
    for table, counted, shape in zip(found.tables, found.counted, SHAPES, strict=True):
        indices, offsets = whole[shape.name]
        lookups = int(offsets[found.samples])
        assert counted.lookups == {shape.name: lookups}
        if not lookups:
            continue
        assert table.pooling_factor * found.samples == pytest.approx(lookups)
        parts = [indices[offsets[i * size] : offsets[(i + 1) * size]] for i in range(found.batches)]
        counts = [np.array(list(Counter(part.tolist()).values())) for part in parts if len(part)]
        np.testing.assert_allclose(table.reuse, np.mean([histogram(count) for count in counts], axis=0), atol=1e-12)
        assert counted.rows_kept == sum(map(len, counts))
        assert (counted.rows_share, set(counted.reuse_error)) == (1.0, {0.0})
        blocks = min(9, shape.rows)
        edges = [-(-shape.rows * block // blocks) for block in range(blocks + 1)]
        brute = [np.mean((indices[:lookups] >= low) & (indices[:lookups] < high)) for low, high in pairwise(edges)]
        np.testing.assert_allclose(table.row_lookups, brute, atol=1e-12)
        assert sum(table.row_lookups) == pytest.approx(1)


@settings(max_examples=20)
@given(st.permutations(range(5)), st.integers(0, 99))
def test_counted_statistics_ignore_the_order_of_global_batches(order, seed):
    rng = np.random.default_rng(seed)
    batches = [_batch(16, rng) for _ in range(5)]
    for table, other in zip(_count(batches, 16).tables, _count([batches[i] for i in order], 16).tables, strict=True):
        _close(table, other)


@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 99))
def test_local_batches_count_as_the_global_batches_they_make_up(devices, steps, seed):
    rng = np.random.default_rng(seed)
    local = [_batch(8, rng) for _ in range(devices * steps)]
    joined = [_joined(local[i * devices : (i + 1) * devices]) for i in range(steps)]
    assert _count(local, 8 * devices) == _count(joined, 8 * devices)


def test_batches_and_traces_give_equal_statistics():
    batch = _batch(64)
    found = _count([batch], 64, row_blocks=5)
    traces = [
        ns.table_from_trace(shape.name, *batch[shape.name], shape.rows, shape.dim, shape.bytes_per_element, 5)
        for shape in SHAPES
    ]
    assert list(found.tables) == traces
    assert ns.Task(found.tables, ns.Topology(2, "1GiB"), batch_size=64).warnings == ()


class _Elsewhere:
    """A tensor on another device, which must be copied before it can become an array."""

    def __init__(self, values):
        self._values = torch.tensor(values)

    def __array__(self, *_, **__):
        raise TypeError("can't convert")

    def detach(self):
        return self

    def cpu(self):
        return self._values


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.int64, list, _Elsewhere, torch.int32, torch.int64])
def test_lookups_may_be_arrays_lists_or_tensors_of_any_device(kind):
    def made(values):
        if isinstance(kind, torch.dtype):
            return torch.tensor(values, dtype=kind)
        return kind(values) if kind in (list, _Elsewhere) else np.array(values, dtype=kind)

    batch = {"a": (made([3, 3, 9]), made([2, 0, 1])), "b": (made([6]), made([0, 1, 0])), "not_asked_for": None}
    found = _count([batch], 3, splits="lengths")
    as_offsets = {"a": (made([3, 3, 9]), made([0, 2, 2, 3])), "b": ([6], [0, 0, 1, 1])}
    assert found == _count([as_offsets], 3)
    assert found.tables[0].reuse[:2] == (0.5, 0.5)
    assert found.tables[1].pooling_factor == pytest.approx(1 / 3)


def test_tables_with_fewer_rows_than_row_blocks_have_a_block_for_each_row():
    found = _count([_batch(64)], 64)
    assert [len(table.row_lookups) for table in found.tables] == [50, 7]
    none = _count([_batch(64)], 64, row_blocks=0)
    assert [table.row_lookups for table in none.tables] == [(), ()]


def test_tables_that_are_never_looked_up_count_as_looked_up_once():
    batch = {"a": ([1, 2], [0, 2, 2]), "b": ([], [0, 0, 0])}
    with pytest.warns(ns.NeuroShardWarning) as seen:
        found = ns.tables_from_batches(SHAPES, [batch, batch], 2)
    assert (seen[0].filename, seen[0].message.messages) == (__file__, found.warnings)
    table = found.tables[1]
    assert (table.pooling_factor, table.reuse[0], table.row_lookups) == (0.25, 1.0, ())
    assert found.counted[1].lookups == {"b": 0}
    (warning,) = found.warnings
    check(warning, "tables-never-looked-up", names=["1 of 2 tables", "'b'", "4 samples"])


def test_batches_without_lookups_do_not_change_the_histogram():
    some, none = {"a": ([1, 2, 2], [0, 3]), "b": ([0], [0, 1])}, {"a": ([], [0, 0]), "b": ([0], [0, 1])}
    found = _count([some, none, none], 1)
    assert found.tables[0].reuse[:2] == (0.5, 0.5)
    assert found.tables[0].pooling_factor == 1


def test_too_few_samples_make_a_smaller_batch_with_a_warning():
    with warned("batches-too-few-samples"):
        found = ns.tables_from_batches(SHAPES, [_batch(5)], 64)
    check(found.warnings[0], "batches-too-few-samples", names=["5 samples", "global_batch_size=64"])
    assert {table.reuse_batch_size for table in found.tables} == {5}
    assert ns.Task(found.tables, ns.Topology(2, "1GiB"), batch_size=64).warnings != ()


GOOD = {"a": ([0], [0, 1]), "b": ([0], [0, 1])}


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        (([7], [0, 1]), "lookups-index-outside", ["index 7", "rows 0 to 6"]),
        (([-1], [0, 1]), "lookups-index-outside", ["index -1", "rows 0 to 6"]),
        (([2**63], [0, 1]), "lookups-index-outside", [2**63]),
        (None, "batch-table-pair", ["(indices, offsets)"]),
        (([0], [0, 1, 2]), "lookups-splits-mismatch", ["offsets", "1 index"]),
        (([0], [1, 1]), "lookups-splits-mismatch", ["offsets", "1 index"]),
        (([0], []), "lookups-splits-mismatch", ["offsets", "1 index"]),
        (([0, 0], [0, 3, 2]), "lookups-splits-mismatch", ["offsets", "2 indices"]),
        (([0.5], [0, 1]), "lookups-not-whole", ["indices", "float64"]),
        (([0], [0, 1, 1]), "batch-sample-counts", ["2 samples", "1 sample", "table 'a'"]),
    ],
)
def test_counting_an_invalid_batch_names_batch_and_table(change, code, names):
    with refused(code, where="batch 1, table 'b'", names=names):
        ns.tables_from_batches(SHAPES, [GOOD, GOOD | {"b": change}], 1)


@pytest.mark.parametrize(
    ("arguments", "code", "names"),
    [
        (((), [GOOD], 1), "shapes-empty", []),
        (((SHAPES[0],) * 2, [GOOD], 1), "table-name-shared", ["'a'"]),
        ((SHAPES, [], 1), "batches-no-samples", []),
        ((SHAPES, [{"a": ([], [0]), "b": ([], [0])}], 1), "batches-no-samples", []),
        ((SHAPES, GOOD, 1), "batch-not-mapping", ["batch 0: ", "'a'", "(indices, offsets)"]),
        ((SHAPES, [GOOD], 0), "value-outside-limits", ["global_batch_size", 0]),
        ((SHAPES, [GOOD], 1, "offset"), "value-outside-limits", ["splits", "'offset'", "offsets, lengths"]),
        ((SHAPES, [GOOD], 1, "offsets", 1025), "value-outside-limits", ["row_blocks", 1025]),
        (
            (SHAPES, [GOOD], 1, "offsets", 8, "1MiB"),
            "max-bytes-too-small",
            ["max_bytes", "1048576 (1 MiB)", "2 tables"],
        ),
    ],
)
def test_tables_from_batches_refuses_invalid_arguments(arguments, code, names):
    with refused(code, names=names):
        ns.tables_from_batches(*arguments)


_OVER = [2**62, 2**62, 2**62, 2**62 + 1]  # sum to 1 in 64 bits


@pytest.mark.parametrize(
    ("splits", "values"),
    [
        *[("lengths", lengths) for lengths in ([2], [2, -1], _OVER, np.array([2**64 - 1, 2], dtype=np.uint64))],
        ("offsets", [0, 2**62, -(2**63), -(2**62), 0, 1]),
        ("offsets", np.array([0, 2**64 - 1, 1], dtype=np.uint64)),
    ],
)
def test_lengths_and_offsets_must_fit_the_indices_without_overflow(splits, values):
    with refused("lookups-splits-mismatch", where="x", names=[splits, "1 index"]):
        Lookups.of([0], values, splits, 5, "x")


_WHOLE = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (_WHOLE.bfloat16(), "torch.bfloat16"),
        (_WHOLE[:0].bfloat16(), "torch.bfloat16"),
        (_WHOLE.to_sparse(), "torch.sparse_coo"),
        (_WHOLE.to("meta"), "meta"),
        (torch.nested.nested_tensor([_WHOLE, _WHOLE[:1]], layout=torch.jagged), "torch.jagged"),
        ([[0], [0, 1]], "[[0], [0, 1]]"),
    ],
)
def test_lookups_that_are_not_a_row_of_whole_numbers_are_refused_in_one_line(values, shown):
    for indices, offsets, what in ((values, [0, 1], "indices"), ([0], values, "offsets")):
        with refused("lookups-not-whole", where="batch 0, table 'a'", names=[what, shown]):
            ns.tables_from_batches(SHAPES[:1], [{"a": (indices, offsets)}], 1)
        with refused("lookups-not-whole", where="trace of 'a'", names=[what, shown]):
            ns.table_from_trace("a", indices, offsets, 5, 4)


def test_chunks_of_lookups_cover_the_requested_samples():
    lookups = Lookups.of(np.arange(100_000) % 7, np.full(1000, 100), "lengths", 7, "x")
    found = list(lookups.chunks(10, 990))
    assert len(found) > 1
    np.testing.assert_array_equal(np.concatenate(found), np.arange(1000, 99_000) % 7)
    assert list(lookups.chunks(5, 5)) == []


@given(st.integers(1, 1 << 40), st.integers(0, 5000), st.integers(0, 99))
def test_row_counts_of_parts_equal_counts_of_all_lookups(rows, lookups, seed):
    indices = (rows * np.random.default_rng(seed).random(lookups) ** 4).astype(np.int64)
    counts = RowCounts(seed)
    for part in np.array_split(indices, 7):
        counts.add(part)
    np.testing.assert_array_equal(counts.counts, np.unique(indices, return_counts=True)[1])


def test_halved_row_counts_count_a_share_of_rows_in_full_that_differs_by_salt():
    """Row r is looked up r times, so that counts identify rows; then all rows are looked up as often again."""
    indices = np.repeat(np.arange(1, 401), np.arange(1, 401))
    found = []
    for salt in range(3):
        counts = RowCounts(salt)
        counts.add(indices)
        counts.halve()
        counts.halve()
        rows = set(counts.counts.tolist())
        counts.add(indices)
        assert set(counts.counts.tolist()) == {2 * row for row in rows}
        assert 60 < len(rows) < 140
        assert counts.share == 0.25
        found.append(rows)
    assert all(len(one & other) < 50 for one, other in pairwise(found))


def _zipf_lookups(rows, lookups, exponent, seed):
    weight = np.arange(1, rows + 1) ** -exponent
    rng = np.random.default_rng(seed)
    return rng.choice(rows, size=lookups, p=weight / weight.sum())


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
def test_counts_of_sampled_rows_are_exact_and_estimate_the_histogram(exponent):
    indices = _zipf_lookups(100_000, 300_000, exponent, 0)
    room = SharedRoom(1, 8192, 5)
    for part in np.array_split(indices, 30):
        room.add(0, part)
    counts = room.tables[0]
    true = np.unique(indices, return_counts=True)[1]
    assert counts.share < 1
    assert 1000 < len(counts.counts) <= 8192
    assert len(counts.counts) / counts.share == pytest.approx(len(true), rel=0.1)
    assert set(counts.counts.tolist()) <= set(true.tolist())
    shape = ns.TableShape("a", 100_000, 8)
    tally = _tally(shape, [indices], 8192)
    error = tally.counted.reuse_error
    off = np.abs(np.array(tally.reuse) - histogram(true))
    assert (off <= 4 * np.array(error)).all()
    assert max(error) < 0.02


def _tally(shape, batches, most_held):
    """Of global batches of one sample each."""
    found = None
    for number, indices in enumerate(batches):
        tally = BatchTally([shape], 16, most_held, number)
        tally.add([{"a": Lookups.of(indices, [len(indices)], "lengths", shape.rows, "x")}], 0, 1)
        (one,) = tally.tallies()
        found = one if found is None else found + one
    return found


@settings(max_examples=15, derandomize=True)  # of so many draws some are beyond 4 errors now and then
@given(st.floats(0, 1.2), st.integers(0, 999))
def test_estimated_errors_of_few_batches_match_true_errors(exponent, seed):
    """Each batch samples other rows, so the error of the mean histogram falls with the number of batches."""
    shape = ns.TableShape("a", 50_000, 8)
    batches = [_zipf_lookups(50_000, 60_000, exponent, [seed, number]) for number in range(4)]
    exact, sketch = _tally(shape, batches, 1 << 20), _tally(shape, batches, 4096)
    assert sketch.counted.rows_share < 1 == exact.counted.rows_share
    error = np.array(sketch.counted.reuse_error)
    assert (np.abs(sketch.reuse - exact.reuse) / 4 <= 4 * error).all()
    assert (sketch.features, sketch.blocks.tolist()) == (exact.features, exact.blocks.tolist())
    alone = np.array(_tally(shape, batches[:1], 4096).counted.reuse_error)
    assert error[0] < 0.75 * alone[0]


def test_counting_within_max_bytes_equals_counting_without_a_limit():
    batches = [_batch(64, np.random.default_rng(seed)) for seed in range(3)]
    assert _count(batches, 64, max_bytes="5MiB", row_blocks=8) == _count(batches, 64, row_blocks=8)


def test_shared_room_samples_large_tables_and_counts_small_ones_in_full():
    """The rows of the large table are sampled, those of the small table counted in full."""
    room = SharedRoom(2, 4096, 0)
    rng = np.random.default_rng(0)
    small = rng.integers(0, 300, size=2000)
    for _ in range(10):
        room.add(0, rng.integers(0, 1 << 30, size=2000))
        room.add(1, small)
    large, little = room.tables
    assert (large.share < 1, little.share) == (True, 1.0)
    assert large.held + little.held <= 4096
    np.testing.assert_array_equal(np.sort(little.counts), np.sort(10 * np.unique(small, return_counts=True)[1]))


def test_counting_a_large_batch_stays_within_the_memory_limit():
    """A batch has 16 MiB of lookups, nearly all of different rows, and is counted in 8 MiB."""
    shape, limit = ns.TableShape("a", 1 << 40, 8), 8 << 20
    indices = np.random.default_rng(0).integers(0, 1 << 40, size=1 << 21)
    batch = {"a": (indices, np.linspace(0, len(indices), 65, dtype=np.int64))}
    ns.tables_from_batches([shape], [GOOD], 1, row_blocks=8)  # what is imported and cached
    tracemalloc.start()
    try:
        found = ns.tables_from_batches([shape], [batch], 64, row_blocks=8, max_bytes=limit)
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()
    assert found.counted[0].rows_kept > 10_000
    assert found.counted[0].rows_share < 1
    assert found.tables[0].reuse[0] == pytest.approx(1)


def test_summary_states_the_counted_batches_and_lookups():
    found = _count([{"a": ([1, 1, 2], [0, 3]), "b": ([], [0, 0])}] * 3, 2)
    assert str(found).splitlines() == [
        "a: 3 lookups per sample; reuse of 2 unique rows, 100% of those touched, shares +- 0.00%",
        "b: 0.5 lookups per sample; reuse of 0 unique rows, 100% of those touched, shares +- 0.00%",
        "1 global batches of 2; samples left out: 1",
    ]
    assert repr(found).startswith("MeasuredTables(batch_size=2, batches=1, left_out=1")


def test_tables_from_batches_of_zipf_lookups_have_the_zipf_histogram():
    shape = ns.TableShape("a", 20_000, 8)
    batches = [{"a": (_zipf_lookups(20_000, 40_000, 1.05, seed), np.arange(0, 40_001, 10))} for seed in range(3)]
    (table,) = ns.tables_from_batches([shape], batches, 4000).tables
    assert table.pooling_factor == 10
    assert np.abs(np.array(table.reuse) - zipf_reuse(20_000, 40_000)).sum() < 0.05
    assert table.row_lookups[0] > 100 * table.row_lookups[-1]


def test_block_counts_count_lookups_by_row_block():
    assert block_counts(np.array([0, 1, 2, 4]), 5, 2).tolist() == [3, 1]
    assert block_counts(np.array([(1 << 40) - 1]), 1 << 40, 1024)[-1] == 1


def test_lookups_of_features_are_counted_by_feature_and_added_up_per_table():
    def one(indices, lengths):
        return Lookups.of(indices, lengths, "lengths", 50, "x")

    batch = [{"clicked": one([1, 1, 2], [2, 1]), "bought": one([2], [0, 1])}]
    found = count_batches(SHAPES[:1], [batch, batch], 2, 0, "1GiB")
    assert found.counted[0].lookups == {"clicked": 6, "bought": 2}
    assert found.tables[0].pooling_factor == 2
    assert found.tables[0].reuse[:2] == (0.0, 1.0)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json", "CSV"])
def test_saved_measured_tables_are_loaded_back_unchanged(tmp_path, suffix):
    path = tmp_path / f"tables.{suffix}"
    found = _count([_batch(64), {"a": ([], [0] * 65), "b": ([], [0] * 65)}], 64)
    found.save(path)
    read = ns.load_tables(str(path), batch_size=9)
    assert read == found.tables
    assert {table.reuse_batch_size for table in read} == {64}
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_tables_with_odd_names_or_without_row_lookups_are_saved_and_loaded(tmp_path, suffix):
    names = ["007", 'say "b", c', "x y" if suffix == "csv" else " x ", "=1+1", "é"]
    tables = tuple(
        ns.Table(name, 10 + i, 4, 1e-7 * 3**i, zipf_reuse(10 + i, 50), 2, 64, (0.25, 0.75) if i % 2 else ())
        for i, name in enumerate(names)
    )
    path = tmp_path / f"tables.{suffix}"
    write_tables(path, tables)
    assert ns.load_tables(str(path)) == tables


@pytest.mark.parametrize("name", [" x", "x ", " "])
def test_saving_names_with_blanks_around_them_in_csv_is_refused(tmp_path, name):
    """Reading would change such a name, so that the statistics would not be found for the model's table."""
    path = tmp_path / "tables.csv"
    with refused("tables-write-blank", where=str(path), names=[repr(name), ".parquet"]):
        write_tables(path, [replace(toy_tables(1)[0], name=name)])
    assert not path.exists()


def test_saving_tables_with_unknown_suffix_is_refused(tmp_path):
    found = MeasuredTables(toy_tables(1), (), 1, 1, 0)
    with refused("tables-write-suffix", names=["'.txt'", ".csv", ".parquet", ".json"]):
        found.save(tmp_path / "tables.txt")
    assert list(tmp_path.iterdir()) == []
