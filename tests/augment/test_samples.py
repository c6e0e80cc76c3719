from collections import Counter
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard import Tier, TierAssignment
from neuroshard.measure.store import DataDirectory
from neuroshard.measure.store.noise import fastest
from neuroshard.measure.store.splits import split_tables
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.testing import toy_tables
from neuroshard.words.collective import Collective, name_of
from neuroshard.words.form import Form
from tests.kit.messages import refused

TABLES = toy_tables(30)
SPLIT = split_tables(TABLES, 0)
KINDS = {ComputeAugmentation: "compute", CommAugmentation: "comm"}


def _drawn(augmentation, count):
    """Draw `count` samples with one generator."""
    rng = np.random.default_rng(0)
    return [augmentation.draw(SPLIT, 256, rng)[0] for _ in range(count)]


def _of_seed(augmentation, seed):
    return augmentation.draw(SPLIT, 256, np.random.default_rng(seed))[0]


@given(st.integers(0, 10_000), st.sampled_from([8, 32, 128]), st.integers(1, 15), st.integers(40_000, 10_000_000))
def test_drawn_combinations_keep_caps_on_tables_columns_and_bytes(seed, max_dim, max_tables, max_bytes):
    augmentation = ComputeAugmentation(max_dim, 1, max_tables, max_bytes)
    sample, name = augmentation.draw(SPLIT, 256, np.random.default_rng(seed))
    assert 1 <= len(sample.tables) <= max_tables
    assert sample.size_bytes <= max_bytes
    assert all(table.dim <= max_dim and (table.dim & (table.dim - 1)) == 0 for table in sample.tables)
    assert {table.name for table in sample.tables} <= {table.name for table in SPLIT[name]}


def test_drawn_combinations_have_tables_of_one_precision():
    tables = tuple(replace(table, bytes_per_element=2 + 2 * (n % 2)) for n, table in enumerate(TABLES))
    split, rng = split_tables(tables, 0), np.random.default_rng(0)
    kinds = (
        ComputeAugmentation(),
        ComputeAugmentation(sharding_types=("row_wise",)),
        ComputeAugmentation(pooled=(False,)),
    )
    found = [one.draw(split, 256, rng)[0] for one in kinds for _ in range(30)]
    precisions = [{table.bytes_per_element for table in sample.tables} for sample in found]
    assert {len(its) for its in precisions} == {1}
    assert set.union(*precisions) == {2, 4}


@pytest.mark.parametrize("pooled", [True, False])
def test_pooled_setting_decides_if_drawn_tables_are_pooled_whatever_the_source_tables_are(pooled):
    """A user's model may have pooled and sequence tables; only the setting `pooled` decides which ones are drawn."""
    sequences = tuple(replace(table, pooled=n % 3 == 0) for n, table in enumerate(TABLES))
    augmentation, rng = ComputeAugmentation(pooled=(pooled,)), np.random.default_rng(0)
    drawn = [augmentation.draw(split_tables(sequences, 0), 256, rng)[0] for _ in range(20)]
    assert {table.pooled for sample in drawn for table in sample.tables} == {pooled}


def test_combinations_cover_every_width_and_count():
    samples = _drawn(ComputeAugmentation(max_dim=32, max_tables=5), 300)
    assert {len(sample.tables) for sample in samples} == {1, 2, 3, 4, 5}
    assert {table.dim for sample in samples for table in sample.tables} == {4, 8, 16, 32}


def test_arbitrary_dim_fraction_draws_tables_of_any_width():
    samples = _drawn(ComputeAugmentation(max_dim=32, max_tables=5, arbitrary_dim_fraction=0.5), 300)
    dims = [table.dim for sample in samples for table in sample.tables]
    assert set(dims) == set(range(4, 36, 4))
    odd = sum((dim & (dim - 1)) != 0 for dim in dims) / len(dims)
    assert 0.1 < odd < 0.3


def test_drawn_tables_have_a_listed_number_of_features_and_ignore_that_of_the_source():
    plain, shared = ComputeAugmentation(), ComputeAugmentation(features=(1, 4))
    found = [_of_seed(shared, seed) for seed in range(60)]
    assert Counter(table.features for sample in found for table in sample.tables).keys() == {1, 4}
    several = tuple(replace(table, features=3) for table in TABLES)
    (one, _), (other, _) = (plain.draw(split_tables(t, 0), 256, np.random.default_rng(1)) for t in (TABLES, several))
    assert one == other


@given(
    st.integers(0, 10_000),
    st.integers(40_000, 1_000_000),
    st.sampled_from([0.3, 1.0]),
    st.sampled_from(["column_wise", "row_wise"]),
)
def test_drawn_caches_stay_within_max_bytes_with_rows_as_wide_as_the_widest_table(seed, max_bytes, share, form):
    augmentation = ComputeAugmentation(
        128, 1, 15, max_bytes, sharding_types=(form,), tiers=("uvm_caching",), cache_load_factor=(share,)
    )
    sample = _of_seed(augmentation, seed)
    widest = max(table.dim * table.bytes_per_element for table in sample.held)
    assert sum(ceil(table.rows * share) for table in sample.held) * widest <= max_bytes


def test_combinations_have_the_tiers_that_are_listed():
    plain, tiered = (
        ComputeAugmentation(),
        ComputeAugmentation(tiers=("device", "uvm_caching", "uvm"), cache_load_factor=(0.1, 1.0)),
    )
    found = [_of_seed(tiered, seed) for seed in range(80)]
    homes = {
        TierAssignment(),
        TierAssignment(Tier.UVM_CACHING, 0.1),
        TierAssignment(Tier.UVM_CACHING, 1.0),
        TierAssignment(Tier.UVM),
    }
    assert {sample.tier_assignment for sample in found} == homes
    for seed, sample in enumerate(found):  # as many tables as in device memory, and the same ones
        assert _of_seed(plain, seed) == replace(sample, tier_assignment=TierAssignment())
    in_rows = ComputeAugmentation(
        sharding_types=("row_wise",), sharers=(2,), hot_rows_first_fraction=1.0, tiers=("uvm_caching",)
    )
    blocks = [_of_seed(in_rows, seed) for seed in range(10)]
    assert {(sample.call.name, sample.hot_first) for sample in blocks} == {("uvm_caching_row_wise", 0.0)}
    data_parallel = ComputeAugmentation(sharding_types=("data_parallel",), tiers=("uvm",))
    assert _of_seed(data_parallel, 0).tier_assignment == TierAssignment()  # which have no other memory


@given(st.integers(0, 10_000), st.integers(1, 15), st.sampled_from(["column_wise", "row_wise"]))
def test_sequence_tables_have_one_width_and_outputs_below_a_cap(seed, max_tables, form):
    augmentation = ComputeAugmentation(
        128,
        1,
        max_tables,
        10_000_000,
        sharding_types=(form,),
        sharers=(2, 3),
        pooled=(False,),
        max_output_bytes=1 << 20,
    )
    sample = _of_seed(augmentation, seed)
    assert not any(table.pooled for table in sample.tables)
    assert len({table.dim for table in sample.tables}) == 1
    assert 1 <= len(sample.tables) <= max_tables
    assert sample.size_bytes <= 10_000_000
    outputs = sum(4 * 256 * table.pooling_factor * table.dim for table in sample.tables)
    assert outputs <= (1 << 20) * (3 if form == "row_wise" else 1)


def test_sequence_tables_are_drawn_as_often_as_listed_and_never_data_parallel():
    augmentation = ComputeAugmentation(
        sharding_types=("column_wise", "row_wise", "data_parallel"), pooled=(True, False), max_tables=3
    )
    calls = Counter(sample.call.name for sample in _drawn(augmentation, 300))
    assert calls.keys() == {"column_wise", "row_wise", "data_parallel", "sequence_column_wise", "sequence_row_wise"}
    assert calls["data_parallel"] == pytest.approx(100, abs=35)
    assert calls["sequence_row_wise"] == pytest.approx(50, abs=25)
    (alone,) = _of_seed(ComputeAugmentation(pooled=(False,), max_output_bytes=1), 0).tables
    assert (alone.dim, alone.pooled) == (4, False)


def test_combinations_from_few_tables_repeat_a_table_only_at_another_width():
    rng = np.random.default_rng(0)
    for _ in range(50):
        sample, _ = ComputeAugmentation(max_dim=16).draw(split_tables(toy_tables(3), 0), 256, rng)
        assert len({(table.name, table.dim) for table in sample.tables}) == len(sample.tables)


@given(st.integers(0, 10_000), st.integers(1, 15), st.integers(200_000, 10_000_000))
def test_drawn_row_blocks_split_a_table_over_a_listed_number_of_devices_within_max_bytes(seed, max_tables, max_bytes):
    augmentation = ComputeAugmentation(128, 1, max_tables, max_bytes, sharding_types=("row_wise",), sharers=(2, 3, 8))
    sample = _of_seed(augmentation, seed)
    assert sample.form is Form.ROW_WISE
    assert sample.batch_size == 256
    assert sample.size_bytes <= max_bytes
    assert 0 <= sample.hot_first <= 1
    (sharers,) = {-(-t.rows // b.rows) for t, b in zip(sample.tables, sample.blocks, strict=True) if b.row == 0} or {0}
    for table, block in zip(sample.tables, sample.blocks, strict=True):
        cuts = {count: -(-table.rows // count) for count in ((sharers,) if sharers else (2, 3, 8))}
        assert any(block.row % most == 0 and block.rows == min(most, table.rows - block.row) for most in cuts.values())


def test_every_block_and_some_hot_first_blocks_are_drawn():
    samples = _drawn(ComputeAugmentation(sharding_types=("row_wise",), sharers=(4,), hot_rows_first_fraction=0.25), 300)
    places = {block.row // -(-t.rows // 4) for s in samples for t, block in zip(s.tables, s.blocks, strict=True)}
    assert places == {0, 1, 2, 3}
    ordered = sum(sample.hot_first > 0 for sample in samples) / len(samples)
    assert 0.18 < ordered < 0.32


def test_drawn_data_parallel_tables_stay_within_max_copy_bytes_and_use_the_local_batch():
    samples = _drawn(
        ComputeAugmentation(sharding_types=("data_parallel",), sharers=(2, 8), max_copy_bytes=100_000), 100
    )
    assert {sample.form for sample in samples} == {Form.DATA_PARALLEL}
    assert {sample.batch_size for sample in samples} == {128, 32}
    assert all(sample.tables and sample.size_bytes <= 100_000 for sample in samples)


def test_sharding_types_and_collectives_are_drawn_as_often_as_listed():
    compute = ComputeAugmentation(sharding_types=("column_wise", "column_wise", "row_wise", "data_parallel"))
    forms = Counter(sample.form for sample in _drawn(compute, 400))
    assert forms[Form.COLUMN_WISE] == pytest.approx(200, abs=40)
    assert forms[Form.ROW_WISE] == pytest.approx(100, abs=35)
    assert forms[Form.DATA_PARALLEL] == pytest.approx(100, abs=35)
    comm = CommAugmentation(collectives=[name_of(collective) for collective in Collective])
    rng = np.random.default_rng(0)
    collectives = Counter(comm.draw(4, 256, rng, 2)[0].collective for _ in range(600))
    assert all(collectives[collective] == pytest.approx(100, abs=40) for collective in Collective)


@pytest.mark.parametrize("collective", Collective)
@given(seed=st.integers(0, 10_000), num_devices=st.sampled_from([2, 4, 6, 8]))
@settings(max_examples=20)
def test_drawn_exchanges_of_every_collective_have_valid_sizes(collective, seed, num_devices):
    augmentation = CommAugmentation(collectives=(name_of(collective),), max_gradient_bytes=1 << 20)
    sample, name = augmentation.draw(num_devices, 256, np.random.default_rng(seed), num_devices // 2)
    assert sample.collective is collective
    assert sample.num_devices == num_devices
    assert sum(sample.size_bytes) > 0
    assert all(size % (8 if collective is Collective.INPUT else 4) == 0 for size in sample.size_bytes)
    if collective is Collective.ALL_REDUCE:
        assert 4096 <= sample.size_bytes[0] + 3 <= (1 << 20) + 3
    assert name in ("train", "valid", "test")


def test_settings_of_the_shipped_data_still_draw_the_shipped_samples():
    """Equal settings and seeds draw the samples of benchmarks/data/cpu."""
    directory = DataDirectory(Path(__file__).parents[2] / "benchmarks" / "data" / "cpu")
    manifest, tables = directory.manifest(), tuple(directory.tables().values())
    split, batch_sizes = split_tables(tables, manifest.seed), manifest.config["batch_sizes"]
    compute = ComputeAugmentation(**manifest.config["compute"])
    comm = CommAugmentation(**manifest.config["comm"])
    for measurement in fastest(directory.compute().each())[:100]:
        rng = np.random.default_rng([manifest.seed, 0, 0, measurement.sample_id])
        batch_size = int(rng.choice(batch_sizes))
        as_drawn = replace(measurement.sample, lookups=())
        assert compute.draw(split, batch_size, rng) == (as_drawn, measurement.split)
    for measurement in fastest(directory.comm().each())[:100]:
        rng = np.random.default_rng([manifest.seed, 1, 0, measurement.sample_id])
        batch_size = int(rng.choice(batch_sizes))
        drawn = comm.draw(measurement.sample.num_devices, batch_size, rng)
        assert drawn == (measurement.sample, measurement.split)


def test_exchanges_range_from_balanced_to_unbalanced():
    rng = np.random.default_rng(0)
    samples = [CommAugmentation(max_start_ms=20).draw(4, 256, rng)[0] for _ in range(300)]
    imbalance = [max(s.dims) / (sum(s.dims) / 4) for s in samples]
    assert min(imbalance) < 1.1
    assert max(imbalance) > 1.6
    starts = np.array([s.start_ms for s in samples])
    assert starts.min() >= 0
    assert 15 < starts.max() <= 20
    assert all(dim % 4 == 0 for s in samples for dim in s.dims)


@pytest.mark.parametrize(("share", "most"), [(0.0, 1.7), (0.5, 2.0), (1.0, 2.0)])
def test_skewed_fraction_draws_some_exchanges_of_nearly_one_device_alone(share, most):
    """Most exchanges stay balanced with any `skewed_fraction`."""
    drawn = [
        CommAugmentation((2,), skewed_fraction=share).draw(2, 256, np.random.default_rng(n))[0] for n in range(300)
    ]
    imbalance = [max(s.dims) / (sum(s.dims) / 2) for s in drawn]
    assert most - 0.3 < max(imbalance) <= most
    assert np.median(imbalance) < 1.1


def test_split_tables_puts_each_table_in_one_split():
    split = split_tables(TABLES, 7)
    assert split == split_tables(TABLES, 7)
    names = [table.name for group in split.values() for table in group]
    assert sorted(names) == sorted(table.name for table in TABLES)
    assert (len(split["valid"]), len(split["test"])) == (3, 3)
    with refused("split-too-few-tables", names=["2 tables", "3 tables"]):
        split_tables(TABLES[:2], 0)


@pytest.mark.parametrize(
    ("kind", "settings", "code", "names"),
    [
        *((kind, {"min_tables": 0}, "value-outside-limits", ["min_tables", 0]) for kind in KINDS),
        *(
            (kind, {"min_tables": 9, "max_tables": 3}, f"{name}-min-tables-above-max", [f"{name}.min_tables", 9, 3])
            for kind, name in KINDS.items()
        ),
        *((kind, {"max_dim": 20}, "max-dim-not-halvable", ["max_dim", 20]) for kind in KINDS),
        (ComputeAugmentation, {"arbitrary_dim_fraction": 2}, "value-outside-limits", ["arbitrary_dim_fraction", 2]),
        (ComputeAugmentation, {"sharding_types": ("diagonals",)}, "unknown-name", ["'diagonals'"]),
        (ComputeAugmentation, {"sharding_types": "row_wise"}, "value-outside-limits", ["sharding_types=[row_wise]"]),
        (ComputeAugmentation, {"tiers": ("disk",)}, "unknown-name", ["'disk'"]),
        (ComputeAugmentation, {"max_bytes": 100}, "compute-table-too-large", ["compute.max_bytes", 100]),
        (
            ComputeAugmentation,
            {"sharding_types": ("data_parallel",), "max_copy_bytes": 10},
            "compute-copies-too-large",
            ["compute.max_copy_bytes", 10],
        ),
        (
            ComputeAugmentation,
            {"sharding_types": ("row_wise",), "sharers": (4096,)},
            "compute-tables-few-rows",
            [4096, "compute.sharers"],
        ),
        (CommAugmentation, {"num_devices": ()}, "value-outside-limits", ["num_devices", ()]),
        (CommAugmentation, {"num_devices": (0,)}, "value-outside-limits", ["num_devices[0]", 0]),
        (CommAugmentation, {"num_devices": 4}, "value-outside-limits", ["num_devices=[4]"]),
        (CommAugmentation, {"collectives": ("gossip",)}, "unknown-name", ["'gossip'"]),
        (
            CommAugmentation,
            {"collectives": ("all_to_all", "host_all_to_all")},
            "comm-collective-needs-hosts",
            ["comm.collectives", "host_all_to_all"],
        ),
        (
            CommAugmentation,
            {"max_gradient_bytes": 1},
            "comm-max-gradient-bytes-small",
            ["comm.max_gradient_bytes", 1, 4096],
        ),
    ],
)
def test_augmentations_refuse_settings_that_allow_no_sample(kind, settings, code, names):
    with refused(code, names=names):
        kind(**settings).check(SPLIT if kind is ComputeAugmentation else None)


def test_compute_augmentation_ignores_limits_of_sharding_types_that_are_not_listed():
    ComputeAugmentation(sharding_types=("column_wise",), sharers=(4096,), max_copy_bytes=10).check(SPLIT)
