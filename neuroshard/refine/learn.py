"""What is learned from measurements that were taken at several speeds of a machine."""

from collections.abc import Sequence
from dataclasses import replace

from neuroshard.models import CostModels
from neuroshard.records.samples import CommSample, ComputeSample, Measurement
from neuroshard.refine.interfaces import LearnsModels
from neuroshard.refine.speed import levelled


def fit_levelled(
    learner: LearnsModels,
    start: CostModels,
    calls: Sequence[Measurement[ComputeSample]],
    exchanges: Sequence[Measurement[CommSample]],
    times: Sequence[float],
) -> CostModels:
    """The start's models fitted further; `times` (n,) say how many times as long as at the typical speed n calls took.

    Models are fitted as if all calls had been measured at that speed. Margins are set on them as they were measured, so
    they hold changes of speed too.
    """
    fitted = learner.fit(start, levelled(calls, times), exchanges)
    return replace(fitted, margins=learner.margins(start, fitted, calls, exchanges))
