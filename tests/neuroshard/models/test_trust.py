"""Training ranges and error margins of models."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard.measure.store.samples import CommSample, ComputeSample
from neuroshard.models.trust import Margin, Range, Ranges
from neuroshard.testing import toy_task
from tests.kit.messages import check
from tests.kit.plans import whole


def test_warning_names_quantities_outside_the_training_range():
    assert Range("rows", 10, 100).warning([9.6, 50, 104]) is None
    assert Range("rows", 10, 100).joined(Range("rows", 5, 50)) == Range("rows", 5, 100)
    for known, values, names in (
        (Range("rows", 10, 100), [5, 50, 400, 120], ["3 of 4 values", "10 to 100", "400)"]),
        (Range("batch size", 256, 8192), [65536], ["65,536", "256 to 8,192"]),
        (Range("rows", 14, 3402352), [4e7, 5], ["2 of 2 values", "14 to 3.4 million", "40 million)"]),
    ):
        check(known.warning(values), "values-outside-training-range", where=known.name, names=names)


def test_ranges_warn_of_tasks_and_devices_outside_the_samples():
    task = toy_task(6, num_devices=2)
    plan = whole(task)
    compute = [ComputeSample(task.tables, task.batch_size), ComputeSample(task.tables[:1], task.batch_size)]
    ranges = Ranges.of(compute, [CommSample.of_columns(plan.device_dims, (0.0, 0.0), task.batch_size)])
    assert ranges.warnings(task) == ()
    assert ranges.device_warnings([3, 3], plan.device_dims) == ()
    everything = sum(plan.device_dims)
    assert [one.where for one in ranges.device_warnings([6, 0], [everything, 0])] == ["columns on a device"]
    assert [one.where for one in ranges.device_warnings([7, 3], plan.device_dims)] == ["tables on a device"]
    other = toy_task(9, num_devices=4, seed=1)
    names = {one.where for one in ranges.warnings(other)}
    assert "devices" in names
    assert not names & {"batch size", "bytes per element"}
    halved = replace(task, tables=tuple(replace(table, bytes_per_element=2) for table in task.tables))
    assert [one.where for one in ranges.warnings(halved)] == ["bytes per element"]
    shared = replace(task, tables=(replace(task.tables[0], features=3), *task.tables[1:]))
    assert [one.where for one in ranges.warnings(shared)] == ["features of a table"]
    known = Ranges.of([ComputeSample(shared.tables, task.batch_size)], [CommSample((8,), (0.0,), 1)])
    assert not [one for one in known.warnings(shared) if "features" in one.where]
    assert known.features == Range("features of a table", 1, 3)


def test_widened_ranges_include_further_samples():
    task = toy_task()
    calls, exchanges = [ComputeSample(task.tables[:2], 256)], [CommSample.of_columns((8, 16), (0.0, 1.0), 256)]
    known = replace(Ranges.of(calls, exchanges), others={"compute.row_wise": (Range("rows", 1, 2),)})
    wide = tuple(replace(table, bytes_per_element=2, features=5) for table in task.tables)
    more = [ComputeSample(wide, 64)], [CommSample.of_columns((8, 400, 4), (0.0, 1.0, 2.0), 64)]
    both = known.widened(*more)
    assert both.others == known.others
    assert (both.devices, both.columns_on_a_device) == (Range("devices", 2, 3), Range("columns on a device", 4, 400))
    assert both.bytes_per_element == Range("bytes per element", 2, 4)
    assert known.widened([], []) == known
    assert known.widened(more[0], []) == replace(
        both, devices=known.devices, columns_on_a_device=known.columns_on_a_device
    )
    assert known.widened([], more[1]).bytes_per_element == known.bytes_per_element
    assert known.widened([], more[1]).devices == both.devices
    more_rows = known.with_part("compute.row_wise", {"rows": np.array([2.0, 5.0]), "dim": np.array([4.0])})
    assert more_rows.others["compute.row_wise"] == (Range("rows", 1, 5), Range("dim", 4, 4))


@pytest.mark.parametrize("seed", range(4))
def test_margins_cover_nine_tenths_of_unseen_measurements(seed):
    rng = np.random.default_rng(seed)
    predicted = rng.uniform(1, 50, size=4000)
    spread = predicted * rng.choice([0.01, 0.2], size=4000)
    measured = predicted + rng.normal(size=4000) * np.hypot(0.03 * predicted, spread)
    margin = Margin.fitted(predicted[:2000], spread[:2000], measured[:2000])
    inside = np.abs(predicted - measured)[2000:] <= margin(predicted, spread)[2000:]
    assert 0.87 < inside.mean() < 0.93
    uncertain = spread[2000:] > 0.1 * predicted[2000:]
    assert 0.8 < inside[uncertain].mean() < 0.99
