"""The recorder stores measurements batch by batch, and measures no stored sample again."""

import pytest

from neuroshard.measure import Outcome
from neuroshard.measure.recorder import Due, Recorder
from neuroshard.measure.store import DataDirectory, Manifest
from neuroshard.measure.store.samples import ComputeSample
from neuroshard.testing import toy_tables

TABLES = toy_tables(4)


class _Meter:
    """A meter that fails at every sample, and records the samples."""

    def __init__(self):
        self.asked = []

    def measure(self, samples, seeds):
        self.asked.append([*seeds])
        return [Outcome(None, "too much", 0.0) for _ in samples]


@pytest.fixture
def meter():
    return _Meter()


def _recorder(tmp_path, meter):
    directory = DataDirectory(tmp_path / "data")
    directory.begin(Manifest({}, {}, {}, 7), TABLES)
    return Recorder(lambda _: meter, 2, 7, directory.compute())


def _due(*numbers):
    return [Due(ComputeSample(TABLES[:1], 256), number, 10 + number, "valid", number > 2) for number in numbers]


def test_recorder_neither_draws_nor_measures_stored_parts(tmp_path, meter):
    recorder = _recorder(tmp_path, meter)
    recorder.record(_due(2, 3), 1)
    found = [*recorder.complete([(0, lambda: _due(0, 1)), (1, pytest.fail), (2, lambda: _due(4))])]
    assert [len(outcomes) for outcomes in found] == [2, 1]
    assert meter.asked == [[12, 13], [10, 11], [14]]
    kept = [(m.sample_id, m.split, m.seed, m.second_pass, m.error) for part in recorder.chunks.each() for m in part]
    assert kept == [(number, "valid", 7, number > 2, "too much") for number in range(5)]


def test_recorder_appends_batches_of_unmeasured_samples(tmp_path, meter):
    recorder = _recorder(tmp_path, meter)
    recorder.record(_due(9), 4)
    outcomes = recorder.measure(_due(0, 1, 2))
    assert next(outcomes).error == "too much"
    assert [*map(len, recorder.chunks.each())] == [1, 2]  # the next batch isn't begun before it is asked for
    assert len([*outcomes]) == 2
    assert meter.asked == [[19], [10, 11], [12]]
    assert recorder.chunks.end == 7


def test_recorder_without_a_directory_writes_no_files(tmp_path, meter):
    assert len([*Recorder(lambda _: meter, 8, 0).measure(_due(0, 1))]) == 2
    assert not [*tmp_path.iterdir()]
