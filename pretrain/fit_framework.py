"""Fitting what TorchRec adds to kernels and exchanges, to one rank's local work in mirrored steps."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from neuroshard.models import CostModels
from neuroshard.models.parts import CONVERTED, FRAMEWORK, TERMS, Framework, counts_of_sets, terms_of
from neuroshard.models.precision import converted_mb
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.records.samples import LOCAL_PHASES, LocalSample, Measurement
from neuroshard.stages.pretrain.result import Predicted
from neuroshard.words.collective import Precision

_ALONE = "kernels by themselves"
_AMOUNTS = (*TERMS, _ALONE, CONVERTED)  # what work is a sum of, and what the models say of its kernels
_OF_KERNELS = (  # with more terms, ranks of steps hardly tell what each costs, and so what one plan saves on another
    *("step", "calls", "own shards", "own copies", "own lookups", "own lookups of copies", "own lookups in rows"),
    *("own MB of sequences out of columns", "own MB of sequences out of rows", "own million weights of copies", _ALONE),
)
_START_COUNTS = (
    8.0  # samples: where few were measured, plans are chosen as well as by the start, and errors are smaller
)
_ROUNDING_MS = 1e-9  # of a term: less is what is left of sums that cancel
_LEAST_MS = 0.1  # errors of what takes less count as if it took so much


class _Fitted(NamedTuple):
    """What a part of the framework stands for.

    Attributes:
        phases: of a step that it makes up together.
        names: of the amounts that it may hang on.
    """

    phases: tuple[str, ...]
    names: tuple[str, ...] = TERMS

    def of(self, amounts: FloatArray) -> FloatArray:
        """Keep the amounts (n, F), of `_AMOUNTS`, that the part hangs on; zeros where it doesn't."""
        return amounts * np.isin(_AMOUNTS, self.names)


_PARTS = {  # of the framework; the dense network isn't one
    "input": _Fitted(("input",)),
    "kernels": _Fitted(("lookups", "backward", "reducing copies", "optimizer of copies"), _OF_KERNELS),
    "outputs": _Fitted(("outputs", "gradients"), (*TERMS, CONVERTED)),
}


class _Asked(NamedTuple):
    """What n ranks are asked for in a step, and what they took.

    Attributes:
        amounts: (n, F) of `_AMOUNTS`, as they count for each part.
        part_ms: (n,) measured of each part.
    """

    amounts: dict[str, FloatArray]
    part_ms: dict[str, FloatArray]

    @classmethod
    def of(cls, models: CostModels, some: Sequence[Measurement[LocalSample]]) -> "_Asked":
        """Ask compute models for the kernels of each rank, and gather what it took."""
        rows = [_of_rank(Simulator(models), m.sample) for m in some]
        amounts = {name: np.array([its[name] for its in rows]).reshape(len(rows), len(_AMOUNTS)) for name in _PARTS}
        phases = np.array([m.typical_ms for m in some])
        took = {
            name: phases[:, [LOCAL_PHASES.index(its) for its in part.phases]].sum(axis=1)
            for name, part in _PARTS.items()
        }
        return cls(amounts, took)


def _of_rank(simulator: Simulator, sample: LocalSample) -> dict[str, FloatArray]:
    """Compute the amounts of a rank for each part, (F,)."""
    loads, devices = sample.plan.device_loads, sample.plan.task.topology.num_devices
    called = simulator.called(loads, devices)._replace(counts=counts_of_sets(loads)[None])
    both_ways = 2 * (sample.precision is not Precision.FP32)
    more = called.ms[0, sample.rank].sum(), both_ways * converted_mb(sample.plan.traffic)[0, sample.rank]
    return {name: np.append(terms_of(called, f"{FRAMEWORK}.{name}")[0, sample.rank], more) for name in _PARTS}


def fit_framework(
    models: CostModels, some: Sequence[Measurement[LocalSample]], start: Framework | None = None
) -> Framework:
    """Fit each part to the least relative errors with non-negative figures; kernels beside what models say of them.

    So each figure is what one more of something costs, and none saves anything. With a start, another machine's, each
    part is drawn to that one's figures times a factor: few samples don't tell what each of the terms costs.
    """
    asked = _Asked.of(models, some)
    known = {} if start is None else _known(start)
    slopes = {
        name: _solved(part.of(asked.amounts[name]), asked.part_ms[name], known.get(name))
        for name, part in _PARTS.items()
    }
    named = {
        name: {term: ms for term, ms in zip(_AMOUNTS, its.tolist(), strict=True) if ms > 0}
        for name, its in slopes.items()
    }
    return Framework(named["kernels"].pop(_ALONE, 0.0), **named)


def _known(framework: Framework) -> dict[str, FloatArray]:
    """Collect a framework's ms for one of each of `_AMOUNTS` by part, (F,); of kernels by themselves their factor."""
    more = {"kernels": (framework.factor, 0.0), "outputs": (0.0, framework.outputs.get(CONVERTED, 0.0))}
    return {
        name: np.append(part.slopes, more.get(name, (0.0, 0.0)))
        for name, part in zip(_PARTS, framework.parts, strict=True)
    }


def predicted_framework(models: CostModels, some: Sequence[Measurement[LocalSample]]) -> dict[str, Predicted]:
    """Predict every part by the models' framework, by its name; kernels are those of the models included."""
    if models.framework is None or not some:
        return {}
    asked, slopes = _Asked.of(models, some), _known(models.framework)
    none, each = np.zeros(len(some)), np.ones(len(some), dtype=np.int64)
    return {
        f"{FRAMEWORK}.{name}": Predicted(asked.amounts[name] @ slopes[name], none, took, none, each)
        for name, took in asked.part_ms.items()
    }


def _solved(amounts: FloatArray, took_ms: FloatArray, before: FloatArray | None) -> FloatArray:
    """Solve for non-negative ms, (F,), of one of each amount (n, F) that miss the measured (n,) least, relative to it.

    Errors count as they are: squares would let few ranks that wait for their host decide what kernels take. Those of
    `before` (F,), times the factor that tells most, count as so many samples of each amount by itself; they alone tell
    of amounts that no sample has.
    """
    scale = np.where((most := amounts.max(axis=0)) > 0, most, 1.0)
    weight = 1 / np.maximum(took_ms, _LEAST_MS)
    asked, wanted = amounts / scale * weight[:, None], took_ms * weight
    if before is not None:
        told = (before > 0) | (np.array(_AMOUNTS) != CONVERTED)  # of which 0 says that nobody measured it
        drawn = np.diag(told * _START_COUNTS * np.median(weight))
        known = before * _typical_ratio(amounts, took_ms, before) * scale
        asked, wanted = np.concatenate([asked, drawn]), np.concatenate([wanted, drawn @ known])
    largest_ms = _least_deviations(asked, wanted)  # of each term, where there is most of it
    solved: FloatArray = np.where(largest_ms > _ROUNDING_MS, largest_ms, 0.0) / scale
    return solved


def _least_deviations(amounts: FloatArray, wanted: FloatArray) -> FloatArray:
    """Solve for non-negative x (F,) that minimise the sum of |amounts (n, F) x - wanted (n,)|, a linear program."""
    count, terms = amounts.shape
    errors = np.eye(count)
    within = np.block([[amounts, -errors], [-amounts, -errors]])  # each error is at least the difference, either way
    costs = np.repeat([0.0, 1.0], [terms, count])
    solution = linprog(costs, A_ub=within, b_ub=np.concatenate([wanted, -wanted]), method="highs")
    assert solution.x is not None  # 0 of everything is allowed, and no error is below 0: there is a least one
    solved: FloatArray = solution.x[:terms]
    return solved


def _typical_ratio(amounts: FloatArray, took_ms: FloatArray, slopes: FloatArray) -> float:
    return float(np.median(took_ms / np.maximum(amounts @ slopes, _LEAST_MS)))
