"""The noise of steps: differences between two passes count for phases that depend on the plan."""

import numpy as np

from neuroshard.measure.store.noise import pass_noise
from neuroshard.measure.store.samples import LOCAL_PHASES, LocalSample, Measurement, Repeats
from tests.kit.step_plans import mixed_plan


def _step(second_pass, **more_ms):
    ms = np.array([[1.0 + more_ms.get(phase, 0.0) for phase in (*LOCAL_PHASES, "host")]])
    return Measurement(LocalSample(mixed_plan(2), 0), 0, "train", 0, Repeats(ms, np.zeros(1)), second_pass=second_pass)


def test_pass_noise_ignores_host_and_dense_phases_and_counts_lookups():
    assert pass_noise([_step(False), _step(True, host=5.0, dense=5.0)]) == 0.0
    assert pass_noise([_step(False), _step(True, lookups=5.0)]) > 0.5
