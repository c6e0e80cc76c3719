"""Cost models taken to pieces, a model for each part of a step, and put together again; pieces times a factor."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD, FRAMEWORK, INPUT
from neuroshard.layouts import LAYOUTS
from neuroshard.models import CommModel, CostModels
from neuroshard.models.comm_models import ExchangeModels
from neuroshard.models.compute_models import ComputeEnsemble, RegressionCompute
from neuroshard.models.host_tiers import HostLink, HostTiers
from neuroshard.models.kernels import KernelModels
from neuroshard.models.parts import Framework, compute_part, exchange_part
from neuroshard.stages.pretrain.measurements import MeasuredPart
from neuroshard.words.collective import BACK_ONLY, Collective
from neuroshard.words.form import CALLS, IN_COLUMNS

Pieces = dict[str, Any]  # models by the names of their parts: "compute.row_wise", "backward.all_reduce"

_LEAST_SAMPLES = 4  # that tell the factor of a part by itself; with fewer it is that of columns or of all-to-alls


def pieces_of(models: CostModels) -> Pieces:
    """Take models to pieces, one of each part; a datasheet's exchanges and what its host link adds are none."""
    compute = models.compute
    calls: dict[Any, Any] = compute.by_call if isinstance(compute, KernelModels) else {IN_COLUMNS: compute}
    pieces = {compute_part(call): model for call, model in calls.items()}
    for name, comm in ((FORWARD, models.forward), (BACKWARD, models.backward)):
        exchanges = comm.exchanges if isinstance(comm, ExchangeModels) else {Collective.ALL_TO_ALL: comm}
        pieces |= {exchange_part(name, collective): model for collective, model in exchanges.items()}
    pieces |= {INPUT: models.input, FRAMEWORK: models.framework}
    given = given_exchanges(models)
    return {name: model for name, model in pieces.items() if model is not None and name not in given}


def given_exchanges(models: CostModels) -> dict[str, CommModel]:
    """Find a datasheet's exchanges in models, by their parts: each is one for all collectives."""
    exchanges = {FORWARD: models.forward, BACKWARD: models.backward, INPUT: models.input}
    return {name: model for name, model in exchanges.items() if model is not None and model.arithmetic}


def by_part(models: CostModels) -> Pieces:
    """Find what predicts each part, a datasheet's exchanges included."""
    return pieces_of(models) | given_exchanges(models)


def assembled(
    pieces: Pieces, batch_size: int | None, host: HostLink | None, given: Mapping[str, CommModel]
) -> CostModels:
    """Put the models of all parts together.

    Args:
        pieces: of columns at least, and of all-to-alls that aren't given.
        batch_size: the only one that they serve, None if they serve any.
        host: a datasheet's link, for calls of tables in host memory without a model.
        given: a datasheet's exchanges, by their parts; they take the place of pieces.
    """
    calls = {call: pieces[compute_part(call)] for call in CALLS if compute_part(call) in pieces}
    compute = calls[IN_COLUMNS] if len(calls) == 1 and host is None else KernelModels(calls, host)
    alone = all(LAYOUTS[call.form].free for call in calls)
    both = [name for name in (FORWARD, BACKWARD) if name in pieces]
    exchanges = {name: pieces[name] if alone else _in_direction(name, pieces) for name in both} | {**given}
    before, framework = given.get(INPUT, pieces.get(INPUT)), pieces.get(FRAMEWORK)
    return CostModels(compute, exchanges[FORWARD], exchanges[BACKWARD], batch_size, input=before, framework=framework)


def _in_direction(direction: str, pieces: Pieces) -> CommModel:
    """Join the models of all collectives; they serve sharding types whose exchanges, except host ones, are known."""
    named = {one: exchange_part(direction, one) for one in Collective if one is not Collective.INPUT}
    exchanges: dict[Collective, CommModel] = {one: pieces[name] for one, name in named.items() if name in pieces}
    known = {*exchanges, *(BACK_ONLY if direction == FORWARD else ())}
    serves = frozenset(form for form, layout in LAYOUTS.items() if known.issuperset(layout.exchanges))
    return ExchangeModels(exchanges, serves)


def at_speed(pieces: Pieces, parts: Sequence[MeasuredPart]) -> Pieces:
    """Multiply each model by how many times as long its part takes: the median over its training samples.

    Models of parts with few or no measurements take the factor of column-wise tables, or of all-to-alls in their
    direction.
    """
    factor: dict[str, float] = {}
    for part in parts:
        enough = 1 if part.name in (COMPUTE, FORWARD, BACKWARD) else _LEAST_SAMPLES
        if part.name in pieces and len(part.measured.train) >= enough:
            factor[part.name] = part.predict(pieces[part.name], part.measured.train).typical_ratio
    others = {INPUT: FORWARD, FRAMEWORK: COMPUTE}
    like = {name: others.get(name, name.partition(".")[0]) for name in pieces}
    return {name: _scaled(model, factor.get(name, factor.get(like[name], 1.0))) for name, model in pieces.items()}


def _scaled(model: Any, factor: float) -> Any:
    """Multiply the costs, but waiting, of a model of any kind that bundles hold by the factor."""
    if factor == 1.0:
        return model
    if isinstance(model, ComputeEnsemble):
        return ComputeEnsemble(tuple(_scaled(member, factor) for member in model.members))
    if isinstance(model, RegressionCompute):
        return replace(model, weight=model.weight * factor, offset_ms=model.offset_ms * factor)
    if isinstance(model, HostTiers | Framework):
        return model.scaled(factor)
    return replace(model, scale_ms=model.scale_ms * factor)


def nearest(starts: Sequence[CostModels], parts: Sequence[MeasuredPart]) -> CostModels | None:
    """Choose the models of the machine that is most like this one: times one factor, they miss its columns least.

    The first ones where nothing was measured of columns, None where there are no models at all.
    """
    columns = next((part for part in parts if part.name == COMPUTE), None)
    if columns is None or len(starts) < 2:
        return next(iter(starts), None)
    some = columns.measured.known

    def error(start: CostModels) -> float:
        """Compute what is missed of columns once all predictions are multiplied by their typical ratio."""
        predicted = columns.predict(pieces_of(start)[COMPUTE], some)
        return predicted.relative_error(predicted.typical_ratio)

    return min(starts, key=error)
