"""The speed of a machine over time: other users, heat and the placement of memory change it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import huber

from neuroshard.plumbing.arrays import FloatArray
from neuroshard.records.samples import Measurement, Sample

_REPEATED = 0.05  # what logarithms of two measurements at one speed are expected to differ by
_SPEEDS = 0.1  # what logarithms of speeds are


@dataclass(frozen=True)
class Pair:
    """One sample that was measured in two spells of the machine, by their numbers."""

    earlier: int
    later: int
    first_ms: float
    again_ms: float


def slowness_of(spells: int, pairs: Sequence[Pair]) -> FloatArray:
    """Fit how many times as long as in the typical spell measurements took in each, (S,).

    Fitted to the ratios of samples that two spells measured, with Huber's loss, and drawn to 1 the more, the fewer
    there are: all are 1 where there are none.
    """
    pairs = [one for one in pairs if one.earlier != one.later]
    if not pairs:
        return np.ones(spells)
    ratio = np.array([float(np.log(one.again_ms / one.first_ms)) for one in pairs])
    wanted = np.concatenate([ratio / _REPEATED, np.zeros(spells)])
    of_logs = _of_logs(spells, pairs)

    def loss(logs: FloatArray) -> tuple[float, FloatArray]:
        """Sum Huber's loss of logarithms (S,), and its slopes (S,)."""
        left = of_logs @ logs - wanted
        return float(huber(1.0, left).sum()), of_logs.T @ np.clip(left, -1.0, 1.0)

    fitted = minimize(loss, np.zeros(spells), jac=True, method="L-BFGS-B", options={"ftol": 0.0, "gtol": 1e-9})
    slowness: FloatArray = np.exp(fitted.x)
    return slowness


def _of_logs(spells: int, pairs: Sequence[Pair]) -> Any:
    """Build the sparse matrix of P pairs' differences of logarithms, then each of S by itself, (P + S, S)."""
    differences = np.tile([1 / _REPEATED, -1 / _REPEATED], len(pairs))
    rows = np.concatenate([np.arange(len(pairs)).repeat(2), len(pairs) + np.arange(spells)])
    columns = np.concatenate([*([one.later, one.earlier] for one in pairs), np.arange(spells)])
    return csr_array((np.concatenate([differences, np.full(spells, 1 / _SPEEDS)]), (rows, columns)))


def with_slowness(
    chunks: Sequence[Sequence[Measurement[Sample]]], told_by: Collection[str]
) -> list[list[Measurement[Sample]]]:
    """Add to the kernel calls of all chunks how slow the machine was, told by some splits' in several chunks."""
    if len(chunks) < 2:
        return [list(chunk) for chunk in chunks]
    first: dict[int, tuple[int, float]] = {}
    pairs: list[Pair] = []
    for number, chunk in enumerate(chunks):
        for m in chunk:
            if m.split not in told_by or m.repeats is None:
                continue
            if (ms := float(m.typical_ms)) > 0:
                earlier, first_ms = first.setdefault(m.sample_id, (number, ms))
                pairs.append(Pair(earlier, number, first_ms, ms))
    slowness = slowness_of(len(chunks), pairs).tolist()
    return [[replace(m, slowness=its) for m in chunk] for chunk, its in zip(chunks, slowness, strict=True)]


def slowness_between(measurements: Sequence[Measurement[Any]]) -> tuple[float, float] | None:
    """Find the least and the most slowness that any of them was measured at; None where nothing tells it."""
    known = {m.slowness for m in measurements} - {1.0}
    return (min(known), max(known)) if known else None
