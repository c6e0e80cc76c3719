"""Fitting a model to every kernel call and every collective that was measured, with or without models to start from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from rich.progress import Progress

from neuroshard.bundles import ROOFLINE
from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD
from neuroshard.layouts import LAYOUTS
from neuroshard.models import CommModel, CostModels
from neuroshard.models.bundle import ModelTest
from neuroshard.models.host_tiers import HostTiers, host_amounts
from neuroshard.models.kernels import KernelModels
from neuroshard.models.parts import compute_part, imbalance
from neuroshard.models.trust import EXCHANGES, Margin, Margins, Ranges
from neuroshard.plumbing.arrays import FloatArray, sums_of
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.grouping import grouped
from neuroshard.records.sample_loads import loads_of
from neuroshard.records.samples import CommSample, ComputeSample, Measurement
from neuroshard.stages.pretrain.fit_framework import predicted_framework
from neuroshard.stages.pretrain.fitting import CommFitter, ComputeFitter, OnEpoch
from neuroshard.stages.pretrain.measurements import Measured, MeasuredCalls, MeasuredExchange, MeasuredPart
from neuroshard.stages.pretrain.pieces import Pieces, assembled, at_speed, by_part, given_exchanges, pieces_of
from neuroshard.stages.pretrain.result import Predicted, tested
from neuroshard.words.form import IN_COLUMNS, Call
from neuroshard.words.placement import Tier

_FINE_TUNED = {"compute": "ensemble", "comm": "set"}  # settings that can fine-tune
_LEAST_TRAIN = 8  # samples of a part that more than its factor is learned from, where there is a model to start from
_LEAST_VALID = 8  # samples of a part that decide alone whether that is better, and set a margin where the start has one
_LEAST_MS = 1e-6  # of a call of tables in host memory: what takes no time at all would outweigh everything else
_TINY = 1e-12
_COLUMNS_AND_ALL_TO_ALLS = {COMPUTE, FORWARD, BACKWARD}


@dataclass(frozen=True)
class Fit:
    """What fits a model to each part of a step that was measured: from nothing, or from models of another machine.

    Those are first multiplied by a factor for each part, the median of measured over predicted, which a handful of
    samples tells. With enough samples they are then fitted further, and kept where they are better: on the validation
    samples, or on all where these are few. Models of parts that nothing was measured of take the factor of columns, or
    of all-to-alls.

    Attributes:
        compute, comm: to samples of one kernel call, to exchanges of one collective.
        seed: of initial weights and the order of samples.
        min_finetune_samples: minimum number of training samples of a kernel call from which its model is fine-tuned.
            With fewer samples only its factor is learned.
        exchanges: a datasheet's models of exchanges, by their parts, where none are measured.
    """

    compute: ComputeFitter
    comm: CommFitter
    seed: int = 0
    min_finetune_samples: int = _LEAST_TRAIN
    exchanges: Mapping[str, CommModel] = field(default_factory=dict)

    def check(self, start: CostModels) -> None:
        """Raise UserError unless the start's models of columns and all-to-alls are of kinds that can be fine-tuned."""
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

    def __call__(self, measured: Measured, start: CostModels | None = None, bars: Progress | None = None) -> CostModels:
        """Fit the models, from a start that `check` passes; without margins, which `margins_of` sets."""
        host, given, batch_sizes = None, self.exchanges, measured.batch_sizes
        if start is None:
            pieces = self._from_nothing(measured, bars)
        else:
            pieces = self._further(measured, at_speed(pieces_of(start), measured.parts), bars)
            given = {name: one for name, one in given_exchanges(start).items() if name not in pieces} | {**given}
            host = start.compute.host if isinstance(start.compute, KernelModels) else None
            batch_sizes.add(start.batch_size)
        only = batch_sizes.pop() if len(batch_sizes) == 1 else None
        return replace(assembled(pieces, only, host, given), ranges=_ranges(measured, start))

    def _from_nothing(self, measured: Measured, bars: Progress | None) -> Pieces:
        """Fit a model of each part; the fused kernel of row blocks is that of columns, whose model it goes on from."""
        pieces: Pieces = {}
        for part in measured.parts:
            start = None
            if isinstance(part, MeasuredCalls) and self.compute.goes_on_from and _in_fused_blocks(part.call):
                start = pieces.get(compute_part(replace(IN_COLUMNS, pooled=part.call.pooled)))
            pieces[part.name] = self._fitted(part, start, bars)
        return pieces

    def _further(self, measured: Measured, pieces: Pieces, bars: Progress | None) -> Pieces:
        """Fit the pieces further where enough was measured, and others of what they lack."""
        further = replace(self, compute=self.compute.further, comm=self.comm.further)
        for part in measured.parts:
            known, its = pieces.get(part.name), part.measured
            if known is None:
                pieces |= {part.name: self._fitted(part, None, bars)}
            elif len(its.train) >= self._least(part) and its.valid:
                judges = its.valid if len(its.valid) >= _LEAST_VALID else its.known
                both = known, further._fitted(part, known, bars)
                pieces |= {part.name: min(both, key=lambda one: part.predict(one, judges).relative_error())}
        return pieces

    def _least(self, part: MeasuredPart) -> int:
        """Choose how many training samples a part is fitted further from; host memory's arithmetic has few figures."""
        network = isinstance(part, MeasuredCalls) and part.call.tier is Tier.DEVICE
        return self.min_finetune_samples if network else _LEAST_TRAIN

    def _fitted(self, part: MeasuredPart, start: Any, bars: Progress | None) -> Any:
        """Fit a model of the part; of tables in host memory it is arithmetic with figures that are solved for."""
        its = part.measured
        if isinstance(part, MeasuredExchange):
            return self.comm.fit(its, part.repeats, start, self.seed, _bar(bars, part.name, self.comm.epochs))
        if part.call.tier is not Tier.DEVICE:
            return fit_host_tiers(its.train)
        return self.compute.fit(its, start, self.seed, _bar(bars, part.name, self.compute.epochs))


def fit_host_tiers(measurements: Sequence[Measurement[ComputeSample]]) -> HostTiers:
    """Fit the figures that say best what kernel calls of one type took, of tables in host memory; each has repeats.

    They are solved for at once, and what was measured says less the more alike the samples are: figures that it doesn't
    tell apart may take each other's place.
    """
    from scipy.optimize import nnls  # slow to import: only where it is used

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
    """Fit margins of every part to validation samples; where these are few, take the start's, or a datasheet's.

    None where margins of columns or of all-to-alls are unknown.
    """
    before = None if start is None else start.margins
    every = {} if before is None else before.others | {name: before.of(name) for name in _COLUMNS_AND_ALL_TO_ALLS}
    known = {name: margin for name, margin in every.items() if margin is not None} | dict(of_exchanges or {})
    for name, its in predicted_parts(models, measured, "valid").items():
        if len(its.measured_ms) >= (_LEAST_VALID if name in known else 1):
            known[name] = Margin.fitted(its.predicted_ms, its.spread_ms, its.measured_ms)
    return Margins.by_part(known) if known.keys() >= _COLUMNS_AND_ALL_TO_ALLS else None


def tests_of(models: CostModels, predicted: Mapping[str, Predicted], measured: Measured) -> dict[str, ModelTest]:
    """Compare what models with margins predict of the test samples of parts, by name, with what was measured."""
    assert models.margins is not None
    margins, known = models.margins, {part.name: part.measured for part in measured.parts}
    return {
        name: tested(its, margin, known.get(name, measured.local).everything)
        for name, its in predicted.items()
        if (margin := margins.of(name)) is not None
    }


def predicted_parts(models: CostModels, measured: Measured, split: Literal["valid", "test"]) -> dict[str, Predicted]:
    """Predict the samples of a split of every part that the models know, if there are any, by its name."""
    pieces = by_part(models)
    samples = [(part, getattr(part.measured, split)) for part in measured.parts if part.name in pieces]
    predicted = {part.name: part.predict(pieces[part.name], its) for part, its in samples if its}
    return predicted | predicted_framework(models, getattr(measured.local, split))


def _ranges(measured: Measured, start: CostModels | None) -> Ranges | None:
    """Find the ranges of the samples that were trained on, and of the start's; None where these are unknown."""
    calls, exchanges = ([m.sample for m in its.train] for its in (measured.columns, measured.all_to_alls))
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
    """Compute the imbalance of all-to-alls, by number of devices; even ones are known to all models."""
    by_count = grouped(exchanges, lambda one: one.num_devices)
    return dict(imbalance(np.array([[1] * n, *(one.dims for one in its)])) for n, its in by_count.items())


def _bar(bars: Progress | None, name: str, epochs: int) -> OnEpoch:
    """Show how many of so many epochs are done, and the loss; without bars show nothing."""
    if bars is None:
        return lambda _epoch, _loss: None
    task = bars.add_task(name, total=epochs)
    return lambda epoch, loss: bars.update(task, completed=epoch + 1, description=f"{name}: validation loss {loss:.4g}")
