"""Fitting what TorchRec adds to kernels and exchanges, to one rank's local work in mirrored steps."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from neuroshard.cost.cost import FRAMEWORK
from neuroshard.models import CostModels
from neuroshard.models.parts import CONVERTED, TERMS, Framework, counts_of_sets, terms_of
from neuroshard.models.precision import converted_mb
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import number_of
from neuroshard.records.samples import HOST, LOCAL_PHASES, LocalSample, Measurement
from neuroshard.stages.pretrain.result import Predicted
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Precision

_ALONE = "kernels by themselves"
_AMOUNTS = (*TERMS, _ALONE, CONVERTED)  # what work is a sum of, and what the models say of its kernels
_OF_KERNELS = (  # with more terms, ranks of steps hardly tell what each costs, and so what one plan saves on another
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
# Samples: where few were measured, plans are chosen as well as by the start, and errors are smaller.
_START_COUNTS = 8.0
_KEPT_UP = 1.1  # steps of so many times what their host took: it kept their devices busy
_SEVERAL, _ROUNDS = 8, 10  # ranks of a task that tell how fast its host was; and how often they are asked
_ROUNDING_MS = 1e-9  # of a term: less is what is left of sums that cancel
_LEAST_MS = 0.1  # errors of what takes less count as if it took so much


class _Fitted(NamedTuple):
    """What a part of the framework stands for.

    Attributes:
        phases: of a step that it makes up together; or the host.
        names: of the amounts that it may hang on.
    """

    phases: tuple[str, ...]
    names: tuple[str, ...] = TERMS


_TIMES = (*LOCAL_PHASES, HOST)
_PARTS = {  # of the framework; the dense network isn't one
    "input": _Fitted(("input",)),
    "kernels": _Fitted(
        ("lookups", "backward", "reducing data-parallel gradients", "data-parallel optimizer"), _OF_KERNELS
    ),
    "outputs": _Fitted(("outputs", "gradients"), (*TERMS, CONVERTED)),
    HOST: _Fitted(
        (HOST,), ("step", "calls", "calls except data-parallel", "own data-parallel tables")
    ),  # the same wherever shards are
}


class _Asked(NamedTuple):
    """What n ranks are asked for by a part of their steps, and what that took.

    Attributes:
        amounts: (n, F) of `_AMOUNTS`, as they count for the part.
        took_ms: (n,) measured.
        task: (n,) numbers of the tasks that the plans are of.
    """

    amounts: FloatArray
    took_ms: FloatArray
    task: IntArray

    @classmethod
    def by_part(cls, models: CostModels, some: Sequence[Measurement[LocalSample]]) -> "dict[str, _Asked]":
        """Ask compute models for the kernels of each rank, and gather what it took, for each part that it tells of.

        Those are the device's work, unless that waited for the host, and the host's where that was measured.
        """
        rows, took = [_of_rank(Simulator(models), m.sample) for m in some], np.zeros((len(some), len(_TIMES)))
        for its, m in zip(took, some, strict=True):
            its[: m.typical_ms.size] = m.typical_ms
        host_ms, numbers = took[:, -1], dict[Task, int]()
        number = np.array([numbers.setdefault(m.sample.plan.task, len(numbers)) for m in some], dtype=np.int64)
        of_host, kept_up = host_ms > 0, took[:, :-1].sum(axis=1) > _KEPT_UP * host_ms
        tells = {name: np.flatnonzero(of_host if name == HOST else kept_up) for name in _PARTS}
        phases = {name: [_TIMES.index(its) for its in part.phases] for name, part in _PARTS.items()}
        return {
            name: cls(
                np.reshape([rows[row][name] for row in which], (-1, len(_AMOUNTS))),
                took[which][:, phases[name]].sum(axis=1),
                number[which],
            )
            for name, which in tells.items()
        }


def _of_rank(simulator: Simulator, sample: LocalSample) -> dict[str, FloatArray]:
    """Compute the amounts of a rank for each part, (F,)."""
    loads, devices = sample.plan.device_loads, sample.plan.task.topology.num_devices
    times = simulator.kernel_times(loads, devices)._replace(counts=counts_of_sets(loads)[None])
    both_ways = 2 * (sample.precision is not Precision.FP32)
    more = times.ms[0, sample.rank].sum(), both_ways * converted_mb(sample.plan.traffic)[0, sample.rank]
    return {name: np.append(terms_of(times, f"{FRAMEWORK}.{name}")[0, sample.rank], more) for name in _PARTS}


def fit_framework(
    models: CostModels, some: Sequence[Measurement[LocalSample]], start: Framework | None = None
) -> Framework:
    """Fit each part with non-negative figures and the least relative errors; kernels, in addition to their models.

    Each figure is the cost of one more unit of a term, so no term saves time. With the figures of another machine as a
    start, each part is drawn to these figures times a factor: few samples do not show the cost of each term.

    Raises:
        UserError: in all steps devices waited for their hosts, so the work of devices is unknown, and there is no
            start.
    """
    every, known = _Asked.by_part(models, some), {} if start is None else _known(start)
    if start is None and not len(every["kernels"].took_ms):
        raise UserError(
            "framework-steps-host-bound",
            f"devices waited for their hosts in each of {number_of(len(some), 'measured step')}",
            limit="the time that devices work cannot be fitted to such steps",
            remedy="Collect steps with more work: `neuroshard collect experiment=collect_gpu num_local_samples=400`",
        )
    named = dict[str, dict[str, float]]()
    for name, asked in every.items():
        if name != HOST or len(asked.took_ms):  # else devices are their own hosts
            its = asked._replace(amounts=asked.amounts * np.isin(_AMOUNTS, _PARTS[name].names))
            slopes = (_solved_alike if name == HOST else _solved)(its, known.get(name))
            named[name] = {term: ms for term, ms in zip(_AMOUNTS, slopes.tolist(), strict=True) if ms > 0}
    return Framework(named["kernels"].pop(_ALONE, 0.0), **named)


def _known(framework: Framework) -> dict[str, FloatArray]:
    """Collect a framework's ms for one of each of `_AMOUNTS` by part, (F,); of kernels by themselves their factor."""
    more = {"kernels": (framework.factor, 0.0), "outputs": (0.0, framework.outputs.get(CONVERTED, 0.0))}
    return {name: np.append(framework.per_term(name), more.get(name, (0.0, 0.0))) for name in _PARTS}


def predicted_framework(models: CostModels, some: Sequence[Measurement[LocalSample]]) -> dict[str, Predicted]:
    """Predict every part by the models' framework, by its name; kernels are those of the models included."""
    if models.framework is None or not some:
        return {}
    slopes = _known(models.framework)
    return {
        f"{FRAMEWORK}.{name}": Predicted.alone(
            asked.amounts @ slopes[name], np.zeros(len(asked.took_ms)), asked.took_ms
        )
        for name, asked in _Asked.by_part(models, some).items()
        if len(asked.took_ms)
    }


def _solved_alike(asked: _Asked, before: FloatArray | None) -> FloatArray:
    """Solve for what a host takes, (F,), as if it had always been as fast.

    Hosts are a fifth faster or slower for minutes: so for all plans of a task, which are measured one after the other.
    Compared with each other these still tell what each amount takes, if there are several ranks of them.
    """
    slopes = _solved(asked, before)
    for _ in range(_ROUNDS if len(asked.took_ms) else 0):
        ratio = asked.took_ms / np.maximum(asked.amounts @ slopes, _LEAST_MS)
        slower = np.ones(len(ratio))
        for task in np.flatnonzero(np.bincount(asked.task) >= _SEVERAL):
            slower[asked.task == task] = np.median(ratio[asked.task == task])
        slopes = _solved(asked._replace(took_ms=asked.took_ms / slower * slower.mean()), before)
    return slopes


def _solved(asked: _Asked, before: FloatArray | None) -> FloatArray:
    """Solve for non-negative ms, (F,), of one of each amount (n, F) that miss the measured (n,) least, relative to it.

    Errors count as they are: squares would let few ranks that wait for their host decide what kernels take. Those of
    `before` (F,), times the factor that tells most, count as so many samples of each amount by itself; they alone tell
    of amounts that no sample has.
    """
    amounts, took_ms, _ = asked
    if not len(took_ms):
        return np.zeros(len(_AMOUNTS)) if before is None else before
    scale = np.where((most := amounts.max(axis=0)) > 0, most, 1.0)
    weight = 1 / np.maximum(took_ms, _LEAST_MS)
    weighted, wanted = amounts / scale * weight[:, None], took_ms * weight
    if before is not None:
        told = (before > 0) | (np.array(_AMOUNTS) != CONVERTED)  # of which 0 says that nobody measured it
        drawn = np.diag(told * _START_COUNTS * np.median(weight))
        known = before * np.median(took_ms / np.maximum(amounts @ before, _LEAST_MS)) * scale
        weighted, wanted = np.concatenate([weighted, drawn]), np.concatenate([wanted, drawn @ known])
    largest_ms = _least_deviations(weighted, wanted)  # of each term, where there is most of it
    return np.where(largest_ms > _ROUNDING_MS, largest_ms, 0.0) / scale


def _least_deviations(amounts: FloatArray, wanted: FloatArray) -> FloatArray:
    """Solve for non-negative x (F,) that minimise the sum of |amounts (n, F) x - wanted (n,)|, a linear program."""
    count, terms = amounts.shape
    errors = np.eye(count)
    within = np.block([[amounts, -errors], [-amounts, -errors]])  # each error is at least the difference, either way
    costs = np.repeat([0.0, 1.0], [terms, count])
    solution = linprog(costs, A_ub=within, b_ub=np.concatenate([wanted, -wanted]), method="highs")
    assert solution.x is not None  # 0 of everything is allowed, and no error is below 0: there is a least one
    return solution.x[:terms]
