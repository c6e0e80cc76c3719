"""The speed of a machine over time, which changes with other users, heat and the placement of memory."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import huber

from neuroshard.measure.store.samples import Measurement, Sample
from neuroshard.plumbing.arrays import FloatArray

_REPEATED = 0.05  # expected difference of the logarithms of two times measured at the same speed
_SPEEDS = 0.1  # expected size of the logarithms of slowness


@dataclass(frozen=True)
class Pair:
    """Two times of one sample, measured in two periods of a run.
    `earlier` and `later` are the numbers of the periods.
    """

    earlier: int
    later: int
    first_ms: float
    again_ms: float


def slowness_of(periods: int, pairs: Sequence[Pair]) -> FloatArray:
    """Estimate how slow the machine was in each of S periods of a run, and return S numbers, (S,).
    A slowness of 1.1, for example, means that times were 10% longer than in a typical period. The estimate compares the
    two times of each pair in `pairs`: the same sample was measured in two periods.

    The fit minimises Huber's loss of the ratios of samples that were measured in two periods. The slowness is drawn to
    1, the more the fewer such samples there are; without such samples it is 1 everywhere.
    """
    pairs = [pair for pair in pairs if pair.earlier != pair.later]
    if not pairs:
        return np.ones(periods)
    ratio = np.array([float(np.log(pair.again_ms / pair.first_ms)) for pair in pairs])
    wanted = np.concatenate([ratio / _REPEATED, np.zeros(periods)])
    terms = _linear_terms(periods, pairs)

    def loss(logs: FloatArray) -> tuple[float, FloatArray]:
        """Return the loss that `slowness_of` minimises (a sum of Huber losses), and the gradient of this loss, (S,).
        `logs` (S,) are the logarithms of the machine's slowness in S periods. The gradient is with respect to `logs`.
        """
        left = terms @ logs - wanted
        return float(huber(1.0, left).sum()), terms.T @ np.clip(left, -1.0, 1.0)

    fitted = minimize(loss, np.zeros(periods), jac=True, method="L-BFGS-B", options={"ftol": 0.0, "gtol": 1e-9})
    slowness: FloatArray = np.exp(fitted.x)
    return slowness


def _linear_terms(periods: int, pairs: Sequence[Pair]) -> Any:
    """Return the sparse matrix of the fit in `slowness_of`, with P + S rows and S columns. P is the number of `pairs`,
    and S is the number of `periods`. The fit multiplies the matrix by a vector (S,): the logarithm of the slowness in
    each period.

    The product has P + S terms. The first P terms are one for each pair: the logarithm in the later period minus the
    logarithm in the earlier period, divided by `_REPEATED`. The last S terms are one for each period: the logarithm
    itself, divided by `_SPEEDS`. The divisors put all deviations on one scale: `_REPEATED` is the expected deviation of
    a difference from the measured ratio of the pair, and `_SPEEDS` is the expected size of a logarithm.
    """
    differences = np.tile([1 / _REPEATED, -1 / _REPEATED], len(pairs))
    rows = np.concatenate([np.arange(len(pairs)).repeat(2), len(pairs) + np.arange(periods)])
    columns = np.concatenate([*([pair.later, pair.earlier] for pair in pairs), np.arange(periods)])
    return csr_array((np.concatenate([differences, np.full(periods, 1 / _SPEEDS)]), (rows, columns)))


def with_slowness(
    chunks: Sequence[Sequence[Measurement[Sample]]], splits: Collection[str]
) -> list[list[Measurement[Sample]]]:
    """Return a copy of the measurements in which `slowness` is set: an estimate of how slow the machine was then.
    A chunk is a list of measurements from one period of a run, and all measurements of a chunk get the same slowness.
    The result has the same chunks. The estimate uses only the splits of the data in `splits`, such as "train".

    The slowness follows from the samples that were measured in several chunks. If there are fewer than two chunks, the
    measurements are returned unchanged.
    """
    if len(chunks) < 2:
        return [list(chunk) for chunk in chunks]
    first: dict[int, tuple[int, float]] = {}
    pairs: list[Pair] = []
    for number, chunk in enumerate(chunks):
        for m in chunk:
            if m.split not in splits or m.repeats is None:
                continue
            if (ms := float(m.typical_ms)) > 0:
                earlier, first_ms = first.setdefault(m.sample_id, (number, ms))
                pairs.append(Pair(earlier, number, first_ms, ms))
    slowness = slowness_of(len(chunks), pairs).tolist()
    return [
        [replace(m, slowness=slowness_of_chunk) for m in chunk]
        for chunk, slowness_of_chunk in zip(chunks, slowness, strict=True)
    ]


def slowness_between(measurements: Sequence[Measurement[Any]]) -> tuple[float, float] | None:
    """Return the minimum and the maximum known slowness of the machine during the measurements.
    A slowness of 1.2 means that times were 20% longer than at the machine's typical speed. A slowness of 1 stands for
    unknown, and is ignored. Return None if no slowness is known.
    """
    known = {m.slowness for m in measurements} - {1.0}
    return (min(known), max(known)) if known else None
