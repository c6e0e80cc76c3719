"""Data collected while a made-up machine changes its speed: reference samples bring it nearer to the truth."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from neuroshard.measure.store import DataDirectory
from neuroshard.measure.store.noise import pass_repeatability
from neuroshard.measure.store.sample_loads import loads_of
from neuroshard.models import CostModels, load_bundle
from neuroshard.stages.augment.collect import Collect
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.fit_additive import Regression
from neuroshard.stages.pretrain.measurements import Measured
from neuroshard.stages.pretrain.pretrain import Pretrain
from neuroshard.testing import toy_tables
from tests.kit.devices import MADE_UP
from tests.kit.made_up import BRIEF_SETS, drifting

TRUTH = MADE_UP["cpu"].compute
SPEEDS = np.repeat((1.0, 0.75, 1.3), 4)  # four batches each


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Data directories with different shares of references, collected on the same machine with equal noise."""
    out = tmp_path_factory.mktemp("data")
    comm = CommAugmentation(num_devices=(2,), max_dim=16, min_tables=2, max_tables=6, max_start_ms=2.0)
    compute = ComputeAugmentation(max_dim=64, max_tables=6)
    for share in (0.0, 0.25):
        hardware, data = drifting(cycle(SPEEDS)), str(out / str(share))
        run = Collect(toy_tables(40), hardware, compute, comm, (4096,), data, 0, 360, 64)
        replace(run, num_second_pass=24, max_noise=None, references=share).run()
    return out


def _measured(data, share):
    return Measured.of([DataDirectory(data / str(share))], None)


def _off(ms, of):
    """Return the logarithms (n,) of times over true times, without the factor common to all."""
    logs = np.log(ms / TRUTH.predict(loads_of([m.sample for m in of])))
    return logs - np.median(logs)


def _of_measurements(its):
    return _off(np.array([m.repeats.times_ms.mean() for m in its.train]), its.train)


def test_references_bring_measurements_nearer_to_the_truth(data):
    known, unknown = (_measured(data, share).level.columns for share in (0.25, 0.0))
    assert np.std(_of_measurements(unknown)) > 0.2
    assert np.std(_of_measurements(known)) < 0.09  # 0.05 of it is the noise of every single one


def test_measurements_without_references_are_not_corrected(data):
    measured = _measured(data, 0.0)
    assert measured.slowness is None
    for m, level in zip(measured.columns.everything, measured.level.columns.everything, strict=True):
        assert m.repeats.times_ms.tolist() == level.repeats.times_ms.tolist()


def test_references_halve_the_noise_and_are_not_measurements_themselves(data):
    """References lower the noise of second passes only through the speed of the machine."""
    measured = _measured(data, 0.25).columns
    raw, level = (pass_repeatability(its.everything) for its in (measured, measured.level))
    assert len(raw) == 24
    assert 0.005 < level.mean() < raw.mean() / 2
    assert not any(m.split == "reference" for m in measured.everything)


def test_models_fitted_with_references_are_nearer_to_the_truth_and_record_speeds(data, tmp_path):
    off = {}
    for share in (0.25, 0.0):
        out = tmp_path / str(share)
        Pretrain(str(data / str(share)), str(out), **BRIEF_SETS | {"compute_model": Regression()}).run()
        test = _measured(data, share).columns.known
        predicted = CostModels.load(out).compute.predict(loads_of([m.sample for m in test]))
        off[share] = np.abs(_off(predicted, test)).mean()
        training = load_bundle(out)[1].training
        assert ("slowness" in training) == (share > 0)
    assert off[0.25] < off[0.0]
    least, most = load_bundle(tmp_path / "0.25")[1].training["slowness"]
    assert 0.7 < least < 0.85
    assert 1.15 < most < 1.4
