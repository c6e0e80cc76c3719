"""Fitting a model to every kernel call and every collective that was measured."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.progress import Progress

from neuroshard.cost.parts import BACKWARD, FORWARD
from neuroshard.layouts import LAYOUTS
from neuroshard.models import CommModel, CostModels, SumModel
from neuroshard.models.by_collective import CommByCollective
from neuroshard.models.by_form import ComputeByForm
from neuroshard.models.card import ModelTest
from neuroshard.models.parts import EXCHANGES, compute_part, of_calls, of_exchanges
from neuroshard.models.trust import Margins, Ranges
from neuroshard.plumbing.progress import progress_bar
from neuroshard.records.sample_loads import loads_of, traffic_of
from neuroshard.records.samples import Measurement
from neuroshard.stages.pretrain.fit_host_tiers import fit_host_tiers
from neuroshard.stages.pretrain.fitting import CommFitter, ComputeFitter, OnEpoch, batch_sizes, check_start
from neuroshard.stages.pretrain.measurements import Measured, StepExchange
from neuroshard.stages.pretrain.result import Predicted, accuracy_of, predict_comm, predict_compute, tested
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.words.collective import Collective
from neuroshard.words.form import IN_COLUMNS, Call
from neuroshard.words.home import Tier


@dataclass(frozen=True)
class Fit:
    """How all models are fitted.

    Attributes:
        compute, comm: to samples of one kernel call, to exchanges of one collective.
        start: models that are fitted further; None begins from nothing.
    """

    compute: ComputeFitter
    comm: CommFitter
    start: CostModels | None
    seed: int

    def __call__(self, measured: Measured) -> CostModels:
        """The models, without margins.

        Raises:
            UserError: the start is of other forms than what is fitted.
        """
        check_start(_compute_start(self.start, IN_COLUMNS), self.compute)
        for one in measured.exchanges:
            check_start(_comm_start(self.start, one), self.comm)
        with progress_bar() as progress:
            calls = self._calls(measured, progress)
            exchanges = {one: self._exchange(measured, one, progress) for one in measured.exchanges}
        forward, backward = (_in_direction(exchanges, name, measured) for name in (FORWARD, BACKWARD))
        before = next((model for one, model in exchanges.items() if one.collective is Collective.INPUT), None)
        compute = calls[IN_COLUMNS] if len(calls) == 1 else ComputeByForm(calls)
        columns, pooled = measured.compute[IN_COLUMNS], measured.comm[Collective.ALL_TO_ALL]
        sizes = {*batch_sizes(columns.everything), *batch_sizes(pooled.everything)}
        only = sizes.pop() if len(sizes) == 1 else None
        return CostModels(compute, forward, backward, only, self._ranges(measured), input=before)

    def _calls(self, measured: Measured, progress: Progress) -> dict[Call, SumModel]:
        """A model for each call; the fused kernel of row blocks is that of columns, whose model it goes on from.

        Of tables in host memory it is arithmetic with figures that are solved for.
        """
        fitted: dict[Call, SumModel] = {}
        for call, its in measured.compute.items():
            if call.tier is not Tier.DEVICE:
                fitted[call] = fit_host_tiers(its.train)
                continue
            start = _compute_start(self.start, call)
            if start is None and LAYOUTS[call.form].blocks and self.compute.goes_on_from is not None:
                start = fitted.get(replace(IN_COLUMNS, pooled=call.pooled))
            told = bar(progress, compute_part(call), self.compute.epochs)
            fitted[call] = self.compute.fit(its, start, self.seed, told)
        return fitted

    def _exchange(self, measured: Measured, one: StepExchange, progress: Progress) -> CommModel:
        told = bar(progress, one.part, self.comm.epochs)
        its, start = measured.comm[one.collective], _comm_start(self.start, one)
        return self.comm.fit(its, one.repeats, start, self.seed, told)

    def _ranges(self, measured: Measured) -> Ranges:
        """Of the samples that were trained on, and of the start's."""
        columns, pooled = measured.compute[IN_COLUMNS], measured.comm[Collective.ALL_TO_ALL]
        ranges = Ranges.of([m.sample for m in columns.train], [m.sample for m in pooled.train])
        hosts = [m.sample.num_devices / m.sample.host_size for m in pooled.everything]
        ranges = ranges.with_part(EXCHANGES, {"hosts": np.array(hosts)})
        for call, its in measured.compute.items():
            if call != IN_COLUMNS:
                ranges = ranges.with_part(compute_part(call), of_calls(loads_of([m.sample for m in its.train])))
        for one in measured.exchanges:
            if one.collective is not Collective.ALL_TO_ALL:
                its = measured.comm[one.collective]
                for_each = [of_exchanges(traffic_of([m.sample])) for m in its.train]
                ranges = ranges.with_part(one.part, _together(for_each))
        return ranges if self.start is None or self.start.ranges is None else ranges.joined(self.start.ranges)


Predict = Callable[[list[Measurement[Any]]], Predicted]


def margins_of(models: CostModels, measured: Measured) -> Margins:
    """Margins of every part, set on validation samples."""
    return Margins.by_part({part: predict(its.valid).margin() for part, its, predict in _parts(models, measured)})


def tests_of(models: CostModels, margins: Margins, measured: Measured) -> dict[str, ModelTest]:
    """Every part on its test samples, by name."""
    return {
        part: tested(predict(its.test), margins.of(part), its.everything)
        for part, its, predict in _parts(models, measured)
    }


def errors_of(models: CostModels, measured: Measured) -> dict[str, float]:
    """Mean relative error of every part that the models know, on its test samples, by name."""
    predicted = {part: predict(its.test) for part, its, predict in _parts(models, measured)}
    return {part: accuracy_of(its.predicted_ms, its.measured_ms).mape for part, its in predicted.items()}


def _parts(models: CostModels, measured: Measured) -> Iterator[tuple[str, SplitMeasurements, Predict]]:
    """Every part that the models know: its name, its measurements, and what the models say of some of them."""
    for call, calls in measured.compute.items():
        if call in models.compute.calls:
            yield compute_part(call), calls, lambda some: predict_compute(models.compute, some)
    for one in measured.exchanges:
        if (model := _model_of(models, one)) is not None:
            yield one.part, measured.comm[one.collective], _predict_comm(model, one.repeats)


def _predict_comm(model: CommModel, repeats: int) -> Predict:
    return lambda some: predict_comm(model, some, repeats)


def _model_of(models: CostModels, one: StepExchange) -> Any:
    """The model of an exchange by itself; None if there is none."""
    if one.collective is Collective.INPUT:
        return models.input
    model = models.forward if one.direction == FORWARD else models.backward
    return model.of_collective(one.collective) if one.collective in model.collectives else None


def _comm_start(start: CostModels | None, one: StepExchange) -> Any:
    return None if start is None else _model_of(start, one)


def _compute_start(start: CostModels | None, call: Call) -> Any:
    """The model that a call's is fitted from; None if there is none."""
    if start is None or call not in start.compute.calls:
        return None
    return start.compute.of_call(call) if isinstance(start.compute, SumModel) else start.compute


def _in_direction(exchanges: dict[StepExchange, CommModel], direction: str, measured: Measured) -> CommModel:
    its: dict[Collective, CommModel] = {
        one.collective: model
        for one, model in exchanges.items()
        if one.direction == direction and one.collective is not Collective.INPUT
    }
    alone = all(LAYOUTS[call.form].free for call in measured.compute)
    return its[Collective.ALL_TO_ALL] if alone else CommByCollective(its, measured.serves(direction))


def _together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The values of each quantity over all exchanges."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def bar(progress: Progress, name: str, epochs: int) -> OnEpoch:
    """Shows of so many epochs which are done, and the loss."""
    task = progress.add_task(name, total=epochs)
    return lambda epoch, loss: progress.update(
        task, completed=epoch + 1, description=f"{name}: validation loss {loss:.4g}"
    )
