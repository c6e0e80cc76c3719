from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from neuroshard.cost.loads import LoadSets
from neuroshard.measure.store.sample_loads import loads_of
from neuroshard.measure.store.samples import CommSample, ComputeSample, RowBlock
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.words.collective import Collective
from neuroshard.words.form import Form
from tests.kit.devices import MADE_UP, MadeUpCpu, MadeUpGpu, measured_comm, measured_compute

_TABLES = dlrm_like(num_tables=40, batch_size=4096)


def _costs(compute, batch_size=4096):
    rng = np.random.default_rng(0)
    widths = 4 * rng.integers(1, 33, size=(60, 8))
    sets = [
        [_TABLES[i].with_dim(int(w)) for i, w in zip(rng.choice(40, size=8, replace=False), row, strict=True)]
        for row in widths
    ]
    return compute.predict(LoadSets.of(sets, batch_size))


def test_made_up_gpu_and_cpu_rank_table_sets_differently():
    tau = kendalltau(_costs(MadeUpGpu()), _costs(MadeUpCpu())).statistic
    assert 0.2 < tau < 0.9


@pytest.mark.parametrize("device", MADE_UP.values(), ids=MADE_UP)
def test_costs_are_not_a_sum_over_tables(device):
    sets = LoadSets.of([_TABLES, *([table] for table in _TABLES)], device.batch_size)
    together, *alone = device.compute.predict(sets)
    assert abs(together / sum(alone) - 1) > 0.02


@pytest.mark.parametrize("device", MADE_UP.values(), ids=MADE_UP)
def test_data_parallel_tables_update_all_rows(device):
    """The cost of column-wise tables does not depend on the number of rows; a data-parallel update covers all rows."""
    small, large = (ComputeSample((replace(_TABLES[0], rows=rows),), 64) for rows in (10**5, 10**7))
    calls = [replace(sample, form=form) for form in (Form.COLUMN_WISE, Form.DATA_PARALLEL) for sample in (small, large)]
    in_columns, _, copied, copied_large = device.compute.predict(loads_of(calls))
    assert in_columns < copied < 0.2 * copied_large


@pytest.mark.parametrize("collective", Collective)
def test_made_up_device_measures_every_collective(collective):
    device = MADE_UP["cpu"]
    sample = CommSample((1 << 20,) * 4, (0.0, 1.0, 2.0, 0.5), 4096, collective, 2)
    (one,) = measured_comm(device, [(sample, "train")], 0.0, np.random.default_rng(0))
    there, back = one.repeats.times_ms[0]
    assert (back > 0).all()
    within = Collective.HOST_REDUCE_SCATTER, Collective.HOST_ALL_TO_ALL
    waits = np.array([2.0, 1.0, 0.0, 1.5]) if collective not in within else np.zeros(4)
    assert (there > waits).all()


def test_made_up_devices_record_lookups_of_row_blocks():
    sample = ComputeSample(_TABLES[:1], 4096, Form.ROW_WISE, (RowBlock(0, _TABLES[0].rows // 2),))
    (one,) = measured_compute(MADE_UP["gpu"], [(sample, "train")], 0.0, np.random.default_rng(0))
    assert 0 < one.sample.lookups[0].count < 4096 * _TABLES[0].pooling_factor


def test_gpu_sectors_make_narrow_tables_as_expensive_as_wider_tables():
    four, eight = (MadeUpGpu(memory_bytes_per_ms=1.0).predict(LoadSets.of([[t]], 64))[0] for t in
                   (_TABLES[0].with_dim(4), _TABLES[0].with_dim(8)))  # fmt: skip
    assert eight < 1.1 * four


def test_made_up_cpu_takes_longer_for_60_columns_than_for_64_that_fill_whole_vectors():
    rest, full = (MadeUpCpu().predict(LoadSets.of([[_TABLES[0].with_dim(w)]], 4096))[0] for w in (60, 64))
    assert rest > full


@pytest.mark.parametrize("device", MADE_UP.values(), ids=MADE_UP)
def test_measurements_scatter_around_the_truth_by_the_noise(device):
    compute = [(ComputeSample(_TABLES[:4], device.batch_size), "train")] * 400
    comm = [(CommSample.of_columns((64, 128, 4, 0), (0.0, 1.0, 2.0, 0.5), device.batch_size), "train")] * 400
    exact, noisy = (measured_compute(device, compute, noise, np.random.default_rng(0)) for noise in (0.0, 0.1))
    true_ms = device.compute.predict(LoadSets.of([_TABLES[:4]], device.batch_size))
    assert np.array_equal(exact[0].repeats.times_ms, true_ms)
    factors = np.log([m.repeats.times_ms[0] for m in noisy] / true_ms)
    assert abs(factors.mean()) < 0.02
    assert 0.08 < factors.std() < 0.12
    exchanges = np.array([m.repeats.times_ms[0] for m in measured_comm(device, comm, 0.1, np.random.default_rng(0))])
    assert exchanges.shape == (400, 2, 4)
    assert (exchanges[:, 0] > np.array([2.0, 1.0, 0.0, 1.5])).all()  # nobody is done before the last has started
    again = measured_comm(device, comm, 0.1, np.random.default_rng(0))
    assert np.array_equal(exchanges[7], again[7].repeats.times_ms[0])


@pytest.mark.parametrize("compute", [MadeUpGpu(), MadeUpCpu()], ids=["gpu", "cpu"])
def test_made_up_device_takes_longer_for_a_table_together_with_other_tables(compute):
    table, others = replace(_TABLES[0], name="one").with_dim(64), [t.with_dim(128) for t in _TABLES[1:30]]
    with_it, without, alone = compute.predict(LoadSets.of([[table, *others], others, [table]], 65536))
    assert with_it - without != pytest.approx(alone, rel=0.01)
