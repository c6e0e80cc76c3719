"""Functions that divide cost models into one model for each part of a step (such as a type of kernel call), scale these
models, and combine them into cost models again.
"""

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
from neuroshard.words.form import CALLS, COLUMN_WISE_CALL

Pieces = dict[str, Any]  # models by the names of their parts: "compute.row_wise", "backward.all_reduce"

# Minimum number of samples for the factor of a part; with fewer, the factor of column-wise calls or all-to-alls counts.
_LEAST_SAMPLES = 4


def pieces_of(models: CostModels) -> Pieces:
    """Divide cost models into one model for each part of a step, and return these models in a dictionary by name of the
    part. Two kinds of models that come from a datasheet are left out: exchange models, and the model of the link
    between device and host.
    """
    compute = models.compute
    calls: dict[Any, Any] = compute.by_call if isinstance(compute, KernelModels) else {COLUMN_WISE_CALL: compute}
    pieces = {compute_part(call): model for call, model in calls.items()}
    for name, comm in ((FORWARD, models.forward), (BACKWARD, models.backward)):
        exchanges = comm.exchanges if isinstance(comm, ExchangeModels) else {Collective.ALL_TO_ALL: comm}
        pieces |= {exchange_part(name, collective): model for collective, model in exchanges.items()}
    pieces |= {INPUT: models.input, FRAMEWORK: models.framework}
    given = given_exchanges(models)
    return {name: model for name, model in pieces.items() if model is not None and name not in given}


def given_exchanges(models: CostModels) -> dict[str, CommModel]:
    """Return the exchange models that come from a datasheet instead of measurements, in a dictionary by direction
    (forward, backward or input). Each model predicts all collectives of its direction.
    """
    exchanges = {FORWARD: models.forward, BACKWARD: models.backward, INPUT: models.input}
    return {name: model for name, model in exchanges.items() if model is not None and model.arithmetic}


def by_part(models: CostModels) -> Pieces:
    """Return the models of the parts of a step, in a dictionary by name of the part. Exchange models that come from a
    datasheet are included.
    """
    return pieces_of(models) | given_exchanges(models)


def assembled(
    pieces: Pieces, batch_size: int | None, host: HostLink | None, given: Mapping[str, CommModel]
) -> CostModels:
    """Combine models of single parts of a step (such as one type of kernel call) into one `CostModels`. Exchange models
    from a datasheet (`given`) replace the models in `pieces` for the same direction.

    Args:
        pieces: models by part; column-wise calls are required, and so are all-to-alls that `given` lacks.
        batch_size: the only batch size that the models can predict; None if they predict any.
        host: the host link of a datasheet, for calls on tables in host memory that have no model.
        given: exchange models of a datasheet by part; they replace models in `pieces`.
    """
    calls = {call: pieces[compute_part(call)] for call in CALLS if compute_part(call) in pieces}
    compute = calls[COLUMN_WISE_CALL] if len(calls) == 1 and host is None else KernelModels(calls, host)
    alone = all(LAYOUTS[call.form].free for call in calls)
    both = [name for name in (FORWARD, BACKWARD) if name in pieces]
    exchanges = {name: pieces[name] if alone else _combined(name, pieces) for name in both} | {**given}
    before, framework = given.get(INPUT, pieces.get(INPUT)), pieces.get(FRAMEWORK)
    return CostModels(compute, exchanges[FORWARD], exchanges[BACKWARD], batch_size, input=before, framework=framework)


def _combined(direction: str, pieces: Pieces) -> CommModel:
    """Combine the models of single collectives, such as all-to-all, into one model of all exchanges in a direction
    (forward or backward).

    The model serves the sharding types whose exchanges all have models. Exchanges within and between hosts
    (`host_exchanges`) are not required.
    """
    named = {
        collective: exchange_part(direction, collective)
        for collective in Collective
        if collective is not Collective.INPUT
    }
    exchanges: dict[Collective, CommModel] = {
        collective: pieces[name] for collective, name in named.items() if name in pieces
    }
    available = {*exchanges, *(BACK_ONLY if direction == FORWARD else ())}
    serves = frozenset(form for form, layout in LAYOUTS.items() if available.issuperset(layout.exchanges))
    return ExchangeModels(exchanges, serves)


def at_speed(pieces: Pieces, parts: Sequence[MeasuredPart]) -> Pieces:
    """Return copies of the models in `pieces` that predict times at the speed of the measured machine. The times that a
    model predicts are multiplied by the median ratio of measured over predicted time. The ratios are from the training
    samples of the part of a step that the model predicts.

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
    """Return a copy of a cost model with predicted times multiplied by `factor`. Times of waiting for other devices are
    not multiplied.
    """
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
    """Return the cost models of the machine that is most similar to the measured machine; None if `starts` is empty.
    Each element of `starts` has the cost models of one machine. `parts` has the measurements on the measured machine.

    The most similar machine has the smallest error on column-wise calls after its predictions are multiplied by one
    factor. If no column-wise calls were measured, the first of `starts` is returned.
    """
    columns = next((part for part in parts if part.name == COMPUTE), None)
    if columns is None or len(starts) < 2:
        return next(iter(starts), None)
    some = columns.measured.known

    def error(start: CostModels) -> float:
        """Return the mean relative error of the cost models `start` on the measured column-wise kernel calls. Before
        the error is computed, all predictions are multiplied by one factor: the median ratio of measured over predicted
        time. So the error does not depend on the speed of the machine.
        """
        predicted = columns.predict(pieces_of(start)[COMPUTE], some)
        return predicted.relative_error(predicted.typical_ratio)

    return min(starts, key=error)
