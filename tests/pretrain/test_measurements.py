"""The measured ms of parts of a step."""

import numpy as np
import pytest

from neuroshard.cost.cost import BACKWARD, FORWARD
from neuroshard.measure.store.samples import CommSample, Measurement, Repeats
from neuroshard.measure.store.splits import TEST, TRAIN, VALID
from neuroshard.models.parts import FRAMEWORK
from neuroshard.stages.pretrain.measurements import Measured, SplitMeasurements
from neuroshard.testing.toys import LinearComm
from neuroshard.words.collective import Collective

_DELAYED, _TOGETHER = 7.0, 2.0


def _measured(collective):
    """Make the measurement of an exchange of two devices, one of them late; times with and without delays differ."""
    repeats = Repeats(np.tile([[_DELAYED] * 2, [_TOGETHER] * 2], (3, 1, 1)), np.zeros(3))
    return Measurement(CommSample((64, 64), (0.0, 5.0), 16, collective), 0, TRAIN, 0, repeats)


@pytest.mark.parametrize(
    ("collective", "took"),
    [
        (Collective.ALL_TO_ALL, {FORWARD: _DELAYED, BACKWARD: _TOGETHER}),
        (Collective.ALL_REDUCE, {BACKWARD: _TOGETHER}),
        (Collective.INPUT, {FORWARD: _TOGETHER}),
    ],
)
def test_measured_ms_count_delays_only_of_exchanges_that_follow_compute(collective, took):
    one = _measured(collective)
    parts = Measured({}, {collective: SplitMeasurements.of([one])}).parts
    found = {part.direction: part.predict(LinearComm(2), [one]).measured_ms.tolist() for part in parts}
    assert found == {direction: [ms, ms] for direction, ms in took.items()}


@pytest.mark.parametrize("known", [(), (FRAMEWORK,)])
def test_local_work_with_an_empty_split_is_fittable_only_from_a_known_model(known):
    local = SplitMeasurements.of([_measured(Collective.ALL_TO_ALL)])
    assert local.empty == (VALID, TEST)
    found = Measured({}, {}, local).fittable(known)
    assert found.sizes == (Measured({}, {}, local).sizes if known else {})
