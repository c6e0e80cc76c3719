"""Models of a machine that is faster or slower throughout: by how many times, and made so."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from neuroshard.models import CommModel, SumModel
from neuroshard.models.by_collective import CommByCollective
from neuroshard.models.by_form import ComputeByForm
from neuroshard.models.ensemble import ComputeEnsemble
from neuroshard.models.host_tiers import HostTiers
from neuroshard.models.interface import waits
from neuroshard.models.regression import RegressionCompute
from neuroshard.models.set_comm import SetComm
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.timing import typical_ms
from neuroshard.records import samples as records
from neuroshard.records.sample_loads import traffic_of
from neuroshard.records.samples import CommSample, Measurement
from neuroshard.stages.pretrain.fitting import OnEpoch, check_start
from neuroshard.stages.pretrain.result import Predicted
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements

LEAST_MS = 1e-3  # what takes less counts as this


def typical_ratio(predicted: Predicted) -> float:
    """The median of measured over predicted."""
    return _median_ratio(predicted.measured_ms, predicted.predicted_ms)


def transfer_ratio(model: CommModel, measured: Sequence[Measurement[CommSample]], direction: int) -> float:
    """The same of transfers alone, of every device of exchanges in one direction: waiting is no matter of speed."""
    pairs = [_transfers(model, m, direction) for m in measured]
    found, foreseen = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return _median_ratio(found, foreseen)


def _transfers(model: CommModel, measurement: Measurement[CommSample], direction: int) -> tuple[FloatArray, FloatArray]:
    """(D,) ms measured and predicted, without waiting."""
    assert measurement.repeats is not None
    starts = np.array([measurement.sample.start_ms]) * (direction == records.FORWARD)
    wait = waits(starts)
    taken = typical_ms(measurement.repeats.times_ms)[direction]
    return taken - wait[0], model.transfer_ms(traffic_of([measurement.sample]), wait)[0]


def _median_ratio(measured: FloatArray, predicted: FloatArray) -> float:
    return float(np.median(np.maximum(measured, LEAST_MS) / np.maximum(predicted, LEAST_MS)))


def scaled_compute(model: SumModel, factor: float) -> SumModel:
    """The model of any kind that bundles hold, its costs of every form times the factor."""
    if isinstance(model, ComputeByForm):
        return replace(model, by_call={call: scaled_compute(one, factor) for call, one in model.by_call.items()})
    if isinstance(model, ComputeEnsemble):
        return ComputeEnsemble(tuple(_rescaled(member, factor) for member in model.members))
    if isinstance(model, RegressionCompute):
        return replace(model, weight=model.weight * factor, offset_ms=model.offset_ms * factor)
    if isinstance(model, HostTiers):
        return model.scaled(factor)
    rescaled: SumModel = _rescaled(model, factor)
    return rescaled


def scaled_comm(model: CommModel, factor: float) -> CommModel:
    """The model of any kind that bundles hold, its transfers of every collective times the factor."""
    if isinstance(model, CommByCollective):
        exchanges = {collective: scaled_comm(one, factor) for collective, one in model.exchanges.items()}
        return CommByCollective(exchanges, model.serves)
    rescaled: CommModel = _rescaled(model, factor)
    return rescaled


def _rescaled(model: Any, factor: float) -> Any:
    return replace(model, scale_ms=model.scale_ms * factor)


@dataclass(frozen=True)
class Speed:
    """Multiplies the transfers of a model by one factor, the median of measured over predicted."""

    goes_on_from: ClassVar[Any] = SetComm

    @property
    def epochs(self) -> int:
        """1: nothing is tried twice."""
        return 1

    def fit(self, measured: SplitMeasurements, direction: int, start: Any, seed: int, on_epoch: OnEpoch) -> CommModel:
        """The model `start` at the speed of the training exchanges of two devices or more; nothing is random.

        Raises:
            UserError: there is no start, or it is of another form.
        """
        check_start(start, self)
        if start is None:
            raise UserError(
                "comm_model=speed multiplies models that there are, and init has none of some exchanges that were "
                "measured: choose comm_model=set"
            )
        train = [m for m in measured.train if m.sample.num_devices > 1]
        return scaled_comm(start, transfer_ratio(start, train, direction))
