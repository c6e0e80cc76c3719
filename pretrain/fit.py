"""Fits cost models to measured kernel calls and collectives, from scratch or by fine-tuning existing models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from rich.progress import Progress

from neuroshard.bundles import ROOFLINE
from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD
from neuroshard.layouts import LAYOUTS
from neuroshard.measure.store.sample_loads import loads_of
from neuroshard.measure.store.samples import CommSample, ComputeSample, Measurement
from neuroshard.models import CommModel, CostModels
from neuroshard.models.bundle import ModelTest, check_kind
from neuroshard.models.comm_models import COMM_KINDS
from neuroshard.models.datasheets import with_host_tiers
from neuroshard.models.host_tiers import HostTiers, host_amounts
from neuroshard.models.kernels import COMPUTE_KINDS, KernelModels
from neuroshard.models.parts import compute_part, imbalance
from neuroshard.models.trust import EXCHANGES, Margin, Margins, Ranges
from neuroshard.plumbing.arrays import FloatArray, sums_of
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.grouping import grouped
from neuroshard.stages.pretrain.fit_framework import fit_framework, predicted_framework
from neuroshard.stages.pretrain.fitting import CommFitter, ComputeFitter, OnEpoch
from neuroshard.stages.pretrain.measurements import Measured, MeasuredCalls, MeasuredExchange, MeasuredPart
from neuroshard.stages.pretrain.pieces import Pieces, assembled, at_speed, by_part, given_exchanges, pieces_of
from neuroshard.stages.pretrain.result import Predicted, tested
from neuroshard.words.form import COLUMN_WISE_CALL, Call
from neuroshard.words.placement import Tier

_FINE_TUNED = {"compute": "ensemble", "comm": "set"}  # kinds of models that can be fine-tuned
# With a model to start from: minimum number of training samples of a part to learn more than one factor.
_LEAST_TRAIN = 8
# Minimum number of validation samples of a part to decide on a fine-tuned model, or to replace the start's margin.
_LEAST_VALID = 8
_LEAST_MS = 1e-6  # in relative errors, so that a call that takes no time does not dominate the fit
_TINY = 1e-12
_COLUMNS_AND_ALL_TO_ALLS = {COMPUTE, FORWARD, BACKWARD}


@dataclass(frozen=True)
class Fit:
    """Fits a cost model to each measured part of a step. Models are fitted from scratch, or existing models are
    fine-tuned. An existing model was fitted earlier, for example to measurements of another machine.

    Models of another machine are first multiplied by one factor per part, the median of measured over predicted time; a
    few samples are enough for this factor. With enough samples, `Fit` then fine-tunes the model, and keeps the
    fine-tuned model if its error is smaller on the validation samples (with few validation samples: on the training and
    validation samples together). Models of parts without measurements take the factor of column-wise calls or
    all-to-alls.

    Attributes:
        compute: fits a model to the kernel calls of one kind.
        comm: fits a model to the exchanges of one collective.
        seed: seed of the initial weights and of the order of the samples.
        min_finetune_samples: minimum number of training samples of a kernel call from which its model is fine-tuned.
            With fewer samples only its factor is learned.
        exchanges: models of exchanges from a datasheet, by part, for parts without measurements.
        exchange_margin: margin of these models; None if there are none.
        host_tiers: name of the datasheet that predicts lookups in host memory without measurements; None if there is
            none.
        bars: shows the progress of training; None shows nothing.
    """

    compute: ComputeFitter
    comm: CommFitter
    seed: int = 0
    min_finetune_samples: int = _LEAST_TRAIN
    exchanges: Mapping[str, CommModel] = field(default_factory=dict)
    exchange_margin: Margin | None = None
    host_tiers: str | None = None
    bars: Progress | None = field(default=None, repr=False, compare=False)

    def check(self, start: CostModels) -> None:
        """Raise UserError if the models of column-wise calls or all-to-alls in `start` cannot be
        fine-tuned with these settings.
        """
        pieces = pieces_of(start)
        makers = ((COMPUTE, self.compute, "compute"), (FORWARD, self.comm, "comm"), (BACKWARD, self.comm, "comm"))
        for name, fitter, setting in makers:
            kind = fitter.goes_on_from
            if name in pieces and (kind is None or not isinstance(pieces[name], kind)):
                if kind is None:
                    limit = f"this {setting}_model trains models only from scratch"
                    remedy = f"Set {setting}_model to {_FINE_TUNED[setting]!r}, which can fine-tune, or remove init"
                elif (start.name or "").startswith(ROOFLINE):
                    limit = f"it is analytic, and {setting}_model can fine-tune only trained models"
                    remedy = (
                        f"Set init to cost models that {setting}_model can fine-tune, such as init=cpu for "
                        f"{setting}_model={_FINE_TUNED[setting]}"
                    )
                else:
                    limit = f"this {setting}_model can fine-tune only the kind of model that it trains"
                    remedy = (
                        "Set compute_model and comm_model to the kinds that trained the models of init, or set init to "
                        "other cost models, such as init=cpu"
                    )
                raise UserError(
                    "init-model-kind",
                    f"the {name} cost model of {start.name or 'init'} can't be fine-tuned",
                    limit=limit,
                    remedy=remedy,
                )

    def learned(self, samples: Measured, start: CostModels | None = None) -> CostModels:
        """Fit cost models of all parts of a step, from scratch or from the models in `start`. Return the models with
        their error margins.

        `start` must have passed `check`. Kernel calls are corrected to one speed of the machine for fitting, but not
        for margins.
        """
        models = self(samples.level, start)
        if self.host_tiers is not None:
            models = with_host_tiers(models, self.host_tiers)
        if samples.local.train:
            start_framework = None if start is None else start.framework
            models = replace(models, framework=fit_framework(models, samples.local.train, start_framework))
        given = {} if self.exchange_margin is None else dict.fromkeys(self.exchanges, self.exchange_margin)
        return replace(models, margins=margins_of(models, samples, start, given))

    def __call__(self, measured: Measured, start: CostModels | None = None) -> CostModels:
        """Fit cost models of kernel calls and exchanges, from scratch or from the models in `start`. Return the models
        without error margins.

        `start` must have passed `check`.
        """
        host, given, batch_sizes = None, self.exchanges, measured.batch_sizes
        if start is None:
            pieces = self._from_scratch(measured)
        else:
            pieces = self._further(measured, at_speed(pieces_of(start), measured.parts))
            given = {name: model for name, model in given_exchanges(start).items() if name not in pieces} | {**given}
            host = start.compute.host if isinstance(start.compute, KernelModels) else None
            batch_sizes.add(start.batch_size)
        only = batch_sizes.pop() if len(batch_sizes) == 1 else None
        return replace(assembled(pieces, only, host, given), ranges=_ranges(measured, start))

    def _from_scratch(self, measured: Measured) -> Pieces:
        """Fit a new model to each measured part of a step, and return the models by name of the part.

        The model of a fused row-wise kernel call starts from the column-wise model, because both use the same FBGEMM
        kernel.
        """
        pieces: Pieces = {}
        for part in measured.parts:
            start = None
            if isinstance(part, MeasuredCalls) and self.compute.goes_on_from and _in_fused_blocks(part.call):
                start = pieces.get(compute_part(replace(COLUMN_WISE_CALL, pooled=part.call.pooled)))
            pieces[part.name] = self._fitted(part, start)
        return pieces

    def _further(self, measured: Measured, pieces: Pieces) -> Pieces:
        """Return a model for each part of a step: fine-tuned if `pieces` has a model of the part, otherwise fitted from
        scratch. Both `pieces` and the result are dictionaries from the name of the part to the model.

        An existing model is fine-tuned only if there are enough measurements of the part, and replaced only if the
        error of the fine-tuned model is smaller.
        """
        further = replace(self, compute=self.compute.further, comm=self.comm.further)
        for part in measured.parts:
            start, samples = pieces.get(part.name), part.measured
            if start is None:
                pieces |= {part.name: self._fitted(part, None)}
            elif len(samples.train) >= self._least(part) and samples.valid:
                judges = samples.valid if len(samples.valid) >= _LEAST_VALID else samples.known
                candidates = start, further._fitted(part, start)
                pieces |= {part.name: min(candidates, key=lambda model: part.predict(model, judges).relative_error())}
        return pieces

    def _least(self, part: MeasuredPart) -> int:
        """Return the minimum number of training samples for fine-tuning the existing model of a part of a step. With
        fewer samples, the model is not fine-tuned.

        Models of tables in host memory have few coefficients, so few samples are enough for them.
        """
        network = isinstance(part, MeasuredCalls) and part.call.tier is Tier.DEVICE
        return self.min_finetune_samples if network else _LEAST_TRAIN

    def _fitted(self, part: MeasuredPart, start: Any) -> Any:
        """Fit a model to the measurements of one part of a step, and return the model. `start` is an existing model
        that the fitter may fine-tune; if `start` is None, the model is fitted from scratch. Models of tables in host
        memory are always fitted from scratch.

        Raises:
            UserError: the fitter returns a model that bundles cannot store.
        """
        samples = part.measured
        if isinstance(part, MeasuredExchange):
            bar = _bar(self.bars, part.name, self.comm.epochs)
            exchange = self.comm.fit(samples, part.repeats, start, self.seed, bar)
            check_kind(exchange, COMM_KINDS)
            return exchange
        if part.call.tier is not Tier.DEVICE:
            return fit_host_tiers(samples.train)
        kernels = self.compute.fit(samples, start, self.seed, _bar(self.bars, part.name, self.compute.epochs))
        check_kind(kernels, COMPUTE_KINDS)
        return kernels


def fit_host_tiers(measurements: Sequence[Measurement[ComputeSample]]) -> HostTiers:
    """Fit a model to measured kernel calls with tables in host memory, and return the model. All calls are of one type
    and were measured successfully.

    One non-negative least-squares solution minimises the relative errors. If the samples are alike, the fit cannot
    separate the coefficients, and the time of one may be attributed to another.
    """
    from scipy.optimize import nnls  # slow to import

    calls = loads_of([m.sample for m in measurements])
    cost_ms = np.array([m.typical_ms for m in measurements])
    sums = np.column_stack([sums_of(host_amounts(calls.loads), calls.counts), np.ones(len(calls))])
    amounts: FloatArray = sums / np.maximum(cost_ms, _LEAST_MS)[:, None]
    unit = np.maximum(amounts.max(axis=0), _TINY)  # amounts are of very different sizes
    solved, _ = nnls(amounts / unit, np.ones(len(amounts)))
    return HostTiers(*(solved / unit).tolist())


def _in_fused_blocks(call: Call) -> bool:
    return LAYOUTS[call.form].blocks and not LAYOUTS[call.form].dense


def margins_of(
    models: CostModels,
    measured: Measured,
    start: CostModels | None = None,
    of_exchanges: Mapping[str, Margin] | None = None,
) -> Margins | None:
    """Return the error margins of the predictions of `models`, one margin for each part of a step. Return None if the
    margin of column-wise kernel calls or of all-to-alls is unknown.

    Margins are fitted to validation samples. Parts with few validation samples take the margin of `start` or, for
    exchanges, the margin in `of_exchanges`, which comes from a datasheet.
    """
    before = None if start is None else start.margins
    every = {} if before is None else before.others | {name: before.of(name) for name in _COLUMNS_AND_ALL_TO_ALLS}
    margins = {name: margin for name, margin in every.items() if margin is not None} | dict(of_exchanges or {})
    for name, predicted in predicted_parts(models, measured, "valid").items():
        if len(predicted.measured_ms) >= (_LEAST_VALID if name in margins else 1):
            margins[name] = Margin.fitted(predicted.predicted_ms, predicted.spread_ms, predicted.measured_ms)
    return Margins.by_part(margins) if margins.keys() >= _COLUMNS_AND_ALL_TO_ALLS else None


def tests_of(models: CostModels, predicted: Mapping[str, Predicted], measured: Measured) -> dict[str, ModelTest]:
    """Return the test result of each part of a step, by name of the part, from the predicted and measured times of the
    test samples.

    The models must have margins.
    """
    assert models.margins is not None
    margins, measured_parts = models.margins, {part.name: part.measured for part in measured.parts}
    return {
        name: tested(part_predictions, margin, measured_parts.get(name, measured.local).everything)
        for name, part_predictions in predicted.items()
        if (margin := margins.of(name)) is not None
    }


def predicted_parts(models: CostModels, measured: Measured, split: Literal["valid", "test"]) -> dict[str, Predicted]:
    """Predict the times of all samples in a split, and return the predictions in a dictionary by name of the part of a
    step, such as "compute". Parts without a model or without samples are left out.
    """
    pieces = by_part(models)
    samples = [(part, getattr(part.measured, split)) for part in measured.parts if part.name in pieces]
    predicted = {
        part.name: part.predict(pieces[part.name], part_samples) for part, part_samples in samples if part_samples
    }
    return predicted | predicted_framework(models, getattr(measured.local, split))


def _ranges(measured: Measured, start: CostModels | None) -> Ranges | None:
    """Return the training ranges: the smallest and the largest value in the training samples, for each quantity on
    which costs depend. If the models were fine-tuned from earlier models (`start`), the ranges also cover the training
    ranges of `start`.

    The result is None if the ranges of `start` are unknown.
    """
    calls, exchanges = ([m.sample for m in samples.train] for samples in (measured.columns, measured.all_to_alls))
    if start is None:
        ranges = Ranges.of(calls, exchanges)
    elif start.ranges is not None:
        ranges = start.ranges.widened(calls, exchanges)
    else:
        return None
    if everything := measured.all_to_alls.everything:
        hosts = np.array([m.sample.num_devices / m.sample.host_size for m in everything])
        ranges = ranges.with_part(EXCHANGES, {"hosts": hosts} | _imbalance(exchanges))
    for part in measured.parts:
        if part.name not in _COLUMNS_AND_ALL_TO_ALLS and part.measured.train:
            ranges = ranges.with_part(part.name, part.quantities())
    return ranges


def _imbalance(exchanges: Sequence[CommSample]) -> dict[str, FloatArray]:
    """Return the imbalance of each all-to-all in `exchanges`, as a dict with one array for each number of devices. The
    imbalance is the most columns that any device sends, divided by the mean over the devices.

    The imbalance is 1 if all devices send the same number of columns. Each array begins with an additional 1, so that
    the training range includes balanced exchanges. The keys of the dict are names such as "columns of the widest of 4
    devices over their mean".
    """
    by_count = grouped(exchanges, lambda exchange: exchange.num_devices)
    return dict(
        imbalance(np.array([[1] * n, *(exchange.dims for exchange in same_count)]))
        for n, same_count in by_count.items()
    )


def _bar(bars: Progress | None, name: str, epochs: int) -> OnEpoch:
    """Return a callback that shows the finished epochs and the validation loss in a progress bar. Without `bars`, the
    callback does nothing.
    """
    if bars is None:
        return lambda _epoch, _loss: None
    task = bars.add_task(name, total=epochs)
    return lambda epoch, loss: bars.update(task, completed=epoch + 1, description=f"{name}: validation loss {loss:.4g}")
