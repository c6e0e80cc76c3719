"""Fit the framework overhead of TorchRec to the measured times of mirrored steps. In a mirrored step, one process runs
a training step of one rank of a larger job.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from neuroshard.cost.cost import FRAMEWORK
from neuroshard.measure.store.samples import HOST, LOCAL_PHASES, LocalSample, Measurement
from neuroshard.models import CostModels
from neuroshard.models.parts import CONVERTED, TERMS, Framework, counts_of_sets, terms_of
from neuroshard.models.precision import converted_mb
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import number_of
from neuroshard.stages.pretrain.result import Predicted
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Precision

_ALONE = "kernels by themselves"
_AMOUNTS = (*TERMS, _ALONE, CONVERTED)  # the terms of work, the predicted kernel time in ms, and converted MB
_OF_KERNELS = (  # with more terms, measurements hardly determine the cost of each term, and so of a plan
    *(
        "step",
        "calls",
        "own shards",
        "own data-parallel tables",
        "own lookups",
        "own data-parallel lookups",
        "own row-wise lookups",
    ),
    *(
        "own MB of column-wise sequence outputs",
        "own MB of row-wise sequence outputs",
        "own million data-parallel weights",
        _ALONE,
    ),
)
# The start's figures weigh as much as this many samples. With few samples, plans are then as good as with the start's
# figures alone, and errors are smaller.
_START_COUNTS = 8.0
_KEPT_UP = 1.1  # if a step takes this many times as long as its host's work, the device did not wait for the host
_SEVERAL, _ROUNDS = 8, 10  # minimum number of ranks to estimate the host's speed in a task; number of iterations
_ROUNDING_MS = 1e-9  # of a term; smaller results are rounding errors
_LEAST_MS = 0.1  # errors of shorter times are divided by this time


class _PartFit(NamedTuple):
    """Settings for the fit of one part of the framework overhead. The measured time of the part is the total time of
    certain phases of a step, or the time of the host (`phases`). The fitted time depends on certain amounts of work,
    such as the number of lookups (`names`).

    Attributes:
        phases: the phases of a step that the part covers together, or the host.
        names: the amounts that the time of the part may depend on.
    """

    phases: tuple[str, ...]
    names: tuple[str, ...] = TERMS


_TIMES = (*LOCAL_PHASES, HOST)
_PARTS = {  # the parts of the framework overhead, without the dense network
    "input": _PartFit(("input",)),
    "kernels": _PartFit(
        ("lookups", "backward", "reducing data-parallel gradients", "data-parallel optimizer"), _OF_KERNELS
    ),
    "outputs": _PartFit(("outputs", "gradients"), (*TERMS, CONVERTED)),
    HOST: _PartFit(
        (HOST,), ("step", "calls", "calls except data-parallel", "own data-parallel tables")
    ),  # amounts that do not depend on the placement of shards
}


class _RankWork(NamedTuple):
    """Training data for the fit of one part of the framework overhead, with one row for each of n ranks. A row has the
    amounts of work of a rank, such as the number of kernel calls, and the time of the part that was measured on this
    rank.

    Attributes:
        amounts: (n, F) of `_AMOUNTS`, as they count for the part.
        took_ms: (n,) measured.
        task: (n,) the number of each plan's task.
    """

    amounts: FloatArray
    took_ms: FloatArray
    task: IntArray

    @classmethod
    def by_part(cls, models: CostModels, some: Sequence[Measurement[LocalSample]]) -> "dict[str, _RankWork]":
        """Return the training data for the fit of each part of the framework overhead, in a dictionary by name of the
        part. Each measurement in `some` is for one rank of a plan, and has the measured times of the phases on this
        rank. The amounts of work of the rank are computed from the plan. One of these amounts is the kernel time that
        `models` predict.

        Parts on devices use the ranks whose device did not wait for its host. The host's part uses the ranks with a
        measured host time.
        """
        rows, took = [_amounts_of_rank(Simulator(models), m.sample) for m in some], np.zeros((len(some), len(_TIMES)))
        for rank_ms, m in zip(took, some, strict=True):
            rank_ms[: m.typical_ms.size] = m.typical_ms
        host_ms, numbers = took[:, -1], dict[Task, int]()
        number = np.array([numbers.setdefault(m.sample.plan.task, len(numbers)) for m in some], dtype=np.int64)
        of_host, kept_up = host_ms > 0, took[:, :-1].sum(axis=1) > _KEPT_UP * host_ms
        ranks_of = {name: np.flatnonzero(of_host if name == HOST else kept_up) for name in _PARTS}
        phases = {name: [_TIMES.index(phase) for phase in part.phases] for name, part in _PARTS.items()}
        return {
            name: cls(
                np.reshape([rows[row][name] for row in which], (-1, len(_AMOUNTS))),
                took[which][:, phases[name]].sum(axis=1),
                number[which],
            )
            for name, which in ranks_of.items()
        }


def _amounts_of_rank(simulator: Simulator, sample: LocalSample) -> dict[str, FloatArray]:
    """Return how much work one rank does in each part of the framework overhead. The result is a dictionary from the
    name of a part, such as "kernels", to an array (F,), with one amount for each of F kinds of work, such as the number
    of kernel calls.
    """
    loads, devices = sample.plan.device_loads, sample.plan.task.topology.num_devices
    times = simulator.kernel_times(loads, devices)._replace(counts=counts_of_sets(loads)[None])
    both_ways = 2 * (sample.precision is not Precision.FP32)
    more = times.ms[0, sample.rank].sum(), both_ways * converted_mb(sample.plan.traffic)[0, sample.rank]
    return {name: np.append(terms_of(times, f"{FRAMEWORK}.{name}")[0, sample.rank], more) for name in _PARTS}


def fit_framework(
    models: CostModels, some: Sequence[Measurement[LocalSample]], start: Framework | None = None
) -> Framework:
    """Fit the framework overhead to measured steps, and return the fitted overhead. Each part of the overhead gets the
    non-negative coefficients with the smallest relative errors.

    A coefficient is the cost of one more unit of a term, so no term saves time. The part "kernels" is the time in
    addition to the predictions of the kernel models. With the figures of another machine as a start, each part is drawn
    to these figures times a factor, because few samples do not show the cost of each term.

    Raises:
        UserError: in all steps devices waited for their hosts, so the work of devices is unknown, and there is no
            start.
    """
    work_of_parts, start_slopes = _RankWork.by_part(models, some), {} if start is None else _slopes_by_part(start)
    if start is None and not len(work_of_parts["kernels"].took_ms):
        raise UserError(
            "framework-steps-host-bound",
            f"devices waited for their hosts in each of {number_of(len(some), 'measured step')}",
            limit="the time that devices work cannot be fitted to such steps",
            remedy="Collect steps with more work: `neuroshard collect experiment=collect_gpu num_local_samples=400`",
        )
    named = dict[str, dict[str, float]]()
    for name, work in work_of_parts.items():
        if name != HOST or len(work.took_ms):  # without measured host times, devices are their own hosts
            restricted = work._replace(amounts=work.amounts * np.isin(_AMOUNTS, _PARTS[name].names))
            slopes = (_solved_at_equal_speed if name == HOST else _solved)(restricted, start_slopes.get(name))
            named[name] = {term: ms for term, ms in zip(_AMOUNTS, slopes.tolist(), strict=True) if ms > 0}
    return Framework(named["kernels"].pop(_ALONE, 0.0), **named)


def _slopes_by_part(framework: Framework) -> dict[str, FloatArray]:
    """Return the ms per unit of each kind of work in each part of the framework overhead. The result is a dictionary
    from the name of a part, such as "kernels", to an array (F,), for F kinds of work such as the number of kernel
    calls.

    The unit of the predicted kernel time is 1 ms, so its coefficient is the factor of "kernels".
    """
    more = {"kernels": (framework.factor, 0.0), "outputs": (0.0, framework.outputs.get(CONVERTED, 0.0))}
    return {name: np.append(framework.per_term(name), more.get(name, (0.0, 0.0))) for name in _PARTS}


def predicted_framework(models: CostModels, some: Sequence[Measurement[LocalSample]]) -> dict[str, Predicted]:
    """Predict the time of each part of the framework overhead; return the predictions by name of the part.

    The prediction of "kernels" includes the predicted times of the kernels themselves. The result is empty if the
    models have no framework overhead or there are no samples.
    """
    if models.framework is None or not some:
        return {}
    slopes = _slopes_by_part(models.framework)
    return {
        f"{FRAMEWORK}.{name}": Predicted.alone(work.amounts @ slopes[name], np.zeros(len(work.took_ms)), work.took_ms)
        for name, work in _RankWork.by_part(models, some).items()
        if len(work.took_ms)
    }


def _solved_at_equal_speed(work: _RankWork, before: FloatArray | None) -> FloatArray:
    """Return the coefficients of the time of the host (CPU) in a training step, fitted to the measured times in `work`:
    the ms of host time per unit of each of F kinds of work, (F,). The host may be faster or slower while the plans of
    one task are measured, so the fit corrects the measured times for the speed of the host in each task.

    A host can be a fifth faster or slower for minutes, and thus for all plans of a task, because the plans of a task
    are measured one after the other. The iteration estimates the speed in each task with enough ranks as the median of
    measured over predicted times, divides by it, and solves again. Ranks of the same task still show the cost of each
    amount relative to each other.
    """
    slopes = _solved(work, before)
    for _ in range(_ROUNDS if len(work.took_ms) else 0):
        ratio = work.took_ms / np.maximum(work.amounts @ slopes, _LEAST_MS)
        slower = np.ones(len(ratio))
        for task in np.flatnonzero(np.bincount(work.task) >= _SEVERAL):
            slower[work.task == task] = np.median(ratio[work.task == task])
        slopes = _solved(work._replace(took_ms=work.took_ms / slower * slower.mean()), before)
    return slopes


def _solved(work: _RankWork, before: FloatArray | None) -> FloatArray:
    """Return the coefficients of one part of the framework overhead, fitted to the measured times in `work`: the ms per
    unit of each of F kinds of work, (F,). The coefficients are not negative. A linear program minimises the sum of the
    relative errors.

    For amounts a_i (F,) and measured times t_i of n ranks, the solution x minimises the sum of |a_i x - t_i| / t_i. The
    errors are not squared: otherwise a few ranks that wait for their host would decide the coefficients of kernels.

    With coefficients of another machine, `before` (F,), each coefficient is also drawn to `before` times the typical
    ratio of measured over predicted times, with the weight of `_START_COUNTS` samples. Amounts that no sample has take
    this value.
    """
    amounts, took_ms, _ = work
    if not len(took_ms):
        return np.zeros(len(_AMOUNTS)) if before is None else before
    scale = np.where((most := amounts.max(axis=0)) > 0, most, 1.0)
    weight = 1 / np.maximum(took_ms, _LEAST_MS)
    weighted, wanted = amounts / scale * weight[:, None], took_ms * weight
    if before is not None:
        is_known = (before > 0) | (np.array(_AMOUNTS) != CONVERTED)  # 0 ms for CONVERTED means that it was not measured
        drawn = np.diag(is_known * _START_COUNTS * np.median(weight))
        expected = before * np.median(took_ms / np.maximum(amounts @ before, _LEAST_MS)) * scale
        weighted, wanted = np.concatenate([weighted, drawn]), np.concatenate([wanted, drawn @ expected])
    largest_ms = _least_deviations(weighted, wanted)  # time of each term at its largest amount
    return np.where(largest_ms > _ROUNDING_MS, largest_ms, 0.0) / scale


def _least_deviations(amounts: FloatArray, wanted: FloatArray) -> FloatArray:
    """Return the non-negative vector x, (F,), that minimises the sum of the absolute differences between `amounts @ x`
    and `wanted`. `amounts` is (n, F), and `wanted` is (n,). The vector is the solution of a linear program.
    """
    count, terms = amounts.shape
    errors = np.eye(count)
    within = np.block([[amounts, -errors], [-amounts, -errors]])  # each error is at least the absolute difference
    costs = np.repeat([0.0, 1.0], [terms, count])
    solution = linprog(costs, A_ub=within, b_ub=np.concatenate([wanted, -wanted]), method="highs")
    assert solution.x is not None  # x = 0 is feasible and errors are >= 0, so a minimum exists
    return solution.x[:terms]
