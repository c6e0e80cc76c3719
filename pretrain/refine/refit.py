"""Models fitted further to a few samples of another machine: its speed first, then its shape."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from neuroshard.cost.parts import BACKWARD, COMPUTE, FORWARD
from neuroshard.models import CommModel, CostModels, SumModel
from neuroshard.models.additive import AdditiveCompute
from neuroshard.models.by_collective import CommByCollective
from neuroshard.models.by_form import ComputeByForm
from neuroshard.models.ensemble import ComputeEnsemble
from neuroshard.models.set_comm import SetComm
from neuroshard.models.shared import SharedCompute
from neuroshard.models.trust import Margin, Margins, Ranges
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import PositiveCount, Seed
from neuroshard.plumbing.threads import torch_threads
from neuroshard.records import samples as records
from neuroshard.records.samples import CommSample, ComputeSample, Measurement
from neuroshard.records.splits import TRAIN, VALID
from neuroshard.stages.pretrain.fit_additive import Additive, Ensemble
from neuroshard.stages.pretrain.fit_set_comm import SetCommunication
from neuroshard.stages.pretrain.fitting import ComputeFitter
from neuroshard.stages.pretrain.machine import Machine
from neuroshard.stages.pretrain.other_speed import LEAST_MS, scaled_comm, scaled_compute, transfer_ratio, typical_ratio
from neuroshard.stages.pretrain.refine.speed import levelled
from neuroshard.stages.pretrain.result import Predicted, predict_comm, predict_compute
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.stages.pretrain.training import TrainingSettings
from neuroshard.words.collective import Collective
from neuroshard.words.form import IN_COLUMNS

_COMPUTE = TrainingSettings(60, 32, 1e-3, "cosine", "absolute_relative", patience=60)
_COMM = TrainingSettings(60, 64, 5e-4, "cosine", "absolute_relative", patience=60)
_DIRECTIONS = ((FORWARD, records.FORWARD), (BACKWARD, records.BACKWARD))


@dataclass(frozen=True)
@checked
class Refit:
    """Fits the models of columns and all-to-alls further.

    Each model is first multiplied by one factor, the median of measured over predicted, which a handful of samples
    tells; a compute model that several machines share is given the machine's numbers instead. Parts that nothing was
    measured of take the factor of columns, or of all-to-alls. With enough samples networks are then fitted further, and
    kept where they are better on the validation samples; with enough of these, margins are set on them. Else the
    start's margins stay, which grow with the costs.

    Attributes:
        compute, comm: how networks are fitted further.
        least_train: samples of a kind that more than speed is learned from, at least.
        least_valid: samples of a kind that margins are set on, at least.
        machine: how a machine's numbers are found.
        seed: of the order of samples.
    """

    compute: TrainingSettings = _COMPUTE
    comm: TrainingSettings = _COMM
    least_train: PositiveCount = 16
    least_valid: PositiveCount = 8
    machine: Machine = field(default_factory=Machine)
    seed: Seed = 0

    def check(self, start: CostModels) -> None:
        """Raise UserError unless the models of columns and all-to-alls are of kinds that are fitted further."""
        compute = _of_columns(start)
        if not isinstance(compute, (ComputeEnsemble, AdditiveCompute, SharedCompute)):
            raise _not_further(start, "compute", compute, "compute_model=ensemble")
        for name, _ in _DIRECTIONS:
            model = _of_all_to_alls(getattr(start, name))
            if not isinstance(model, SetComm):
                raise _not_further(start, name, model, "comm_model=set")

    def fit(
        self,
        start: CostModels,
        calls: Sequence[Measurement[ComputeSample]],
        exchanges: Sequence[Measurement[CommSample]],
        times: Sequence[float] | None = None,
    ) -> CostModels:
        """The start's models, fitted further to the training samples; with margins.

        Kernel calls in columns and all-to-alls count, others are passed over; all must have repeats. `times` (n,) say
        how many times as long as at the machine's typical speed n calls took, None that all did as long. Models are
        fitted as if all had been measured at that speed. Margins are set on them as they were measured, so they hold
        changes of speed too.

        Raises:
            UserError: the start is of kinds that can't be fitted further.
        """
        self.check(start)
        in_columns, of_pooled = _in_columns(calls), _all_to_alls(exchanges)
        level = in_columns if times is None else _in_columns(levelled(calls, times))
        with torch_threads(1):
            fitted = replace(
                start,
                compute=self._compute(start.compute, level),
                forward=self._comm(start.forward, of_pooled, records.FORWARD),
                backward=self._comm(start.backward, of_pooled, records.BACKWARD),
                input=self._input(start, of_pooled),
            )
        return replace(
            fitted,
            margins=self._margins(start, fitted, in_columns, of_pooled),
            ranges=_ranges(start, in_columns, of_pooled),
            name=None,
            digest=None,
        )

    def _margins(
        self, start: CostModels, fitted: CostModels, in_columns: SplitMeasurements, of_pooled: SplitMeasurements
    ) -> Margins | None:
        """Of models fitted from the start on.

        New ones of the parts that enough was measured of for validation, the start's of others.
        """
        found: dict[str, Margin] = {}
        if len(in_columns.valid) >= self.least_valid:
            found[COMPUTE] = predict_compute(fitted.compute, in_columns.valid).margin()
        if len(of_pooled.valid) >= self.least_valid:
            for name, direction in _DIRECTIONS:
                found[name] = predict_comm(_of_all_to_alls(getattr(fitted, name)), of_pooled.valid, direction).margin()
        if start.margins is None:
            return Margins.by_part(found) if len(found) == len(_DIRECTIONS) + 1 else None
        before = {name: start.margins.of(name) for name in (COMPUTE, FORWARD, BACKWARD)}
        return Margins.by_part(start.margins.others | before | found)

    def _compute(self, model: Any, measured: SplitMeasurements) -> SumModel:
        """All forms multiplied, columns fitted further."""
        if not measured.train:
            its: SumModel = model
            return its
        scaled = self._at_speed(model, measured)
        columns = scaled.of_call(IN_COLUMNS)
        if not self._enough(measured):
            return scaled
        fitter = _fitter(columns, self.compute)
        fitted = fitter.fit(measured, columns, self.seed, _silent)
        better = _better(columns, fitted, lambda one: predict_compute(one, measured.valid))
        return (
            replace(scaled, by_call={**scaled.by_call, IN_COLUMNS: better})
            if isinstance(scaled, ComputeByForm)
            else better
        )

    def _at_speed(self, model: Any, measured: SplitMeasurements) -> SumModel:
        """The model with what a handful of samples tells of the machine."""
        if isinstance(model, SharedCompute):
            return self.machine.fit(measured, model, self.seed, _silent)
        return scaled_compute(model, typical_ratio(predict_compute(model, measured.train)))

    def _comm(self, model: CommModel, measured: SplitMeasurements, direction: int) -> CommModel:
        """All collectives multiplied, all-to-alls fitted further."""
        if not measured.train:
            return model
        scaled = scaled_comm(model, transfer_ratio(_of_all_to_alls(model), measured.train, direction))
        alone = _of_all_to_alls(scaled)
        if not self._enough(measured):
            return scaled
        fitted = SetCommunication(training=self.comm).fit(measured, direction, alone, self.seed, _silent)
        better = _better(alone, fitted, lambda one: predict_comm(one, measured.valid, direction))
        if isinstance(scaled, CommByCollective):
            return CommByCollective({**scaled.exchanges, Collective.ALL_TO_ALL: better}, scaled.serves)
        its: CommModel = better
        return its

    def _input(self, start: CostModels, measured: SplitMeasurements) -> CommModel | None:
        """As forward all-to-alls."""
        if start.input is None or not measured.train:
            return start.input
        ratio = transfer_ratio(_of_all_to_alls(start.forward), measured.train, records.FORWARD)
        return scaled_comm(start.input, ratio)

    def _enough(self, measured: SplitMeasurements) -> bool:
        return len(measured.train) >= self.least_train and bool(measured.valid)


def _in_columns(calls: Sequence[Measurement[ComputeSample]]) -> SplitMeasurements:
    return _split([m for m in calls if m.sample.call == IN_COLUMNS])


def _all_to_alls(exchanges: Sequence[Measurement[CommSample]]) -> SplitMeasurements:
    its = [m for m in exchanges if m.sample.collective is Collective.ALL_TO_ALL and m.sample.num_devices > 1]
    return _split(its)


def _split(measured: Sequence[Measurement[Any]]) -> SplitMeasurements:
    train, valid = ([m for m in measured if m.split == name] for name in (TRAIN, VALID))
    return SplitMeasurements(train, valid, [], list(measured))


def _of_columns(models: CostModels) -> Any:
    compute = models.compute
    return compute.of_call(IN_COLUMNS) if isinstance(compute, SumModel) else compute


def _of_all_to_alls(model: CommModel) -> Any:
    return model.of_collective(Collective.ALL_TO_ALL)


def _not_further(start: CostModels, name: str, model: object, needed: str) -> UserError:
    return UserError(
        f"model={start.name}: its {name} model, {type(model).__name__}, can't be fitted further; refine model=cpu, or "
        f"a bundle of neuroshard pretrain {needed}"
    )


def _fitter(model: SumModel, training: TrainingSettings) -> ComputeFitter:
    """What goes on from such a model; widths are the model's own."""
    one = Additive(training=training)
    return Ensemble(one) if isinstance(model, ComputeEnsemble) else one


def _better(before: Any, after: Any, ask: Any) -> Any:
    """`after`, if its mean relative error on the validation samples is smaller."""
    errors = []
    for model in (before, after):
        its: Predicted = ask(model)
        errors.append(float(np.mean(np.abs(its.predicted_ms / np.maximum(its.measured_ms, LEAST_MS) - 1))))
    return after if errors[1] < errors[0] else before


def _ranges(start: CostModels, calls: SplitMeasurements, exchanges: SplitMeasurements) -> Ranges | None:
    """The start's, and of what was trained on."""
    if start.ranges is None:
        return None
    return start.ranges.widened([m.sample for m in calls.train], [m.sample for m in exchanges.train])


def _silent(_epoch: int, _loss: float) -> None:
    """Nobody is told of epochs: there are too many short fits in a run."""
