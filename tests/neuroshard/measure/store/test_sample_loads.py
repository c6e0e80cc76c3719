"""The loads and traffic of measured samples, from which models predict the measured times."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard.cost.loads import Loads
from neuroshard.measure.store.sample_loads import by_group, loads_of, traffic_of
from neuroshard.measure.store.samples import BlockLookups, CommSample, ComputeSample, Measurement, Repeats, RowBlock
from neuroshard.models.features import FeatureSet
from neuroshard.testing import ONCE, toy_tables
from neuroshard.words.collective import Collective
from neuroshard.words.form import CALLS, FORMS, Form
from neuroshard.words.placement import ON_DEVICE, TIERS, Tier, TierAssignment

TABLES = tuple(replace(table, rows=100 + i) for i, table in enumerate(toy_tables(3)))
BLOCKS = RowBlock(50, 50), RowBlock(0, 51)
ROWS = ComputeSample(TABLES[:2], 256, Form.ROW_WISE, BLOCKS, lookups=(BlockLookups(7, ONCE), BlockLookups(0, ONCE)))


def test_loads_of_column_wise_samples_are_those_of_whole_tables():
    sets = loads_of([ComputeSample(TABLES, 256), ComputeSample(TABLES[:1], 64)])
    whole, other = Loads.of(TABLES, 256), Loads.of(TABLES[:1], 64)
    assert sets.counts.tolist() == [3, 1]
    assert sets.loads.lookups.tolist() == [*whole.lookups, *other.lookups]
    assert (sets.loads.reuse[:3] == whole.reuse).all()
    assert set(sets.loads.form) == {FORMS.index(Form.COLUMN_WISE)}


def test_row_wise_samples_have_the_load_of_their_block():
    loads = loads_of([ComputeSample(TABLES[:1], 256), ROWS]).loads
    assert loads.rows.tolist() == [100, 50, 51]
    assert loads.lookups.tolist()[1:] == [7, 0]
    assert loads.outputs.tolist() == [256] * 3  # of every sample, whatever was looked up
    assert loads.reuse[1].tolist() == list(ONCE)
    assert loads.sharers.tolist() == [1, 2, 2]
    assert [FORMS[form] for form in loads.form] == [Form.COLUMN_WISE, Form.ROW_WISE, Form.ROW_WISE]
    expected = loads_of([replace(ROWS, lookups=())]).loads
    whole = 256 * np.array([table.pooling_factor for table in TABLES[:2]])
    assert expected.lookups == pytest.approx(whole * [50 / 100, 51 / 101], abs=0.5)


def test_loads_of_data_parallel_samples_have_the_batch_size_of_the_sample():
    loads = loads_of([ComputeSample(TABLES, 64, Form.DATA_PARALLEL)]).loads
    assert loads.samples.tolist() == loads.outputs.tolist() == [64] * 3
    assert set(loads.form) == {FORMS.index(Form.DATA_PARALLEL)}


def test_loads_of_samples_have_the_tier_and_cache_of_the_sample():
    homes = [ON_DEVICE, TierAssignment(Tier.UVM_CACHING, 0.3), TierAssignment(Tier.UVM)]
    loads = loads_of(
        [
            replace(ROWS, tier_assignment=homes[1]),
            *(ComputeSample(TABLES[:2], 256, tier_assignment=home) for home in homes),
        ]
    )
    assert [TIERS[tier] for tier in loads.loads.tier[::2]] == [
        Tier.UVM_CACHING,
        Tier.DEVICE,
        Tier.UVM_CACHING,
        Tier.UVM,
    ]
    assert loads.loads.cached.tolist() == [0.3, 0.3, 1, 1, 0.3, 0.3, 0, 0]
    names = [CALLS[call].name for call in loads.calls]
    assert names == ["uvm_caching_row_wise", "column_wise", "uvm_caching_column_wise", "uvm_column_wise"]


@pytest.mark.parametrize("name", ["physical_bags", "physical_reuse", "physical", "log", "paper"])
def test_features_of_row_blocks_without_lookups_are_finite(name):
    with np.errstate(all="raise"):
        assert np.isfinite(FeatureSet(name)(loads_of([ROWS]).loads)).all()


def test_physical_features_distinguish_rows_of_a_table_from_lookups():
    features = FeatureSet("physical_reuse")
    small, large = (
        dict(zip(features.columns, row, strict=True))
        for row in features(
            loads_of([ComputeSample((replace(TABLES[0], rows=r),), 8, Form.DATA_PARALLEL) for r in (500, 4000)]).loads
        )
    )
    assert large["log_size_bytes"] == pytest.approx(small["log_size_bytes"] + 3)  # a dense update writes all of it
    assert large["log_lookups"] == small["log_lookups"]


def _measured(sample):
    return Measurement(sample, 0, "train", 0, Repeats(np.arange(16.0).reshape(2, 2, 4), np.zeros(2)))


def test_by_group_splits_host_collectives_into_exchanges_of_each_group():
    sample = CommSample((64, 64, 0, 0), (0.0, 1.0, 2.0, 3.0), 16, Collective.HOST_REDUCE_SCATTER, 2)
    (one,) = by_group(_measured(sample))  # nothing was exchanged on the second host
    assert one.sample == CommSample((64, 64), (0.0, 1.0), 16)
    assert one.repeats.times_ms.tolist() == np.arange(16.0).reshape(2, 2, 4)[..., :2].tolist()
    alone = CommSample((64, 32), (0.0, 1.0), 16, Collective.HOST_REDUCE_SCATTER, 1)
    assert not list(by_group(_measured(alone)))  # a device a host
    across = CommSample((64, 64, 32, 32), (0.0, 1.0, 2.0, 3.0), 16, Collective.HOST_ALL_TO_ALL, 2)
    assert [m.sample.size_bytes for m in by_group(_measured(across))] == [(64, 32), (64, 32)]
    assert [m.sample.start_ms for m in by_group(_measured(across))] == [(0.0, 2.0), (1.0, 3.0)]


def test_by_group_keeps_the_unrounded_bytes_of_an_input_dist():
    sample = CommSample((13, 7, 0, 9), (0.0,) * 4, 16, Collective.INPUT)
    (one,) = by_group(_measured(sample))
    assert traffic_of([one.sample]).size_bytes[0, :, 0].tolist() == [13, 7, 0, 9]  # not rounded to columns
    assert (one.repeats.times_ms == _measured(sample).repeats.times_ms).all()
