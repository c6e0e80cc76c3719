"""Choose the best of several plans by measured costs. Every plan is measured once in each of several passes."""

from dataclasses import dataclass

import numpy as np

from neuroshard.models.trust import LEVEL
from neuroshard.plumbing.arrays import BoolArray, FloatArray

_LEAST_MS = 1e-9


@dataclass(frozen=True, eq=False)
class Verdict:
    """The result of measuring K candidate plans; the first candidate plan is the predicted best.

    Attributes:
        measured_ms: (K,) mean over the passes; NaN for plans that could not be measured.
        below: (K,) relative saving of each plan compared with the predicted best; NaN if one of both could not be
            measured.
        error: half the width of the intervals of all these savings together; all of them hold simultaneously at the
            level of intervals, so that the best of many plans is not luck. NaN if nothing was compared.
        taken: index of the candidate plan to deploy: the cheapest by measurement if it is below the predicted best by
            more than the error; otherwise the predicted best.
    """

    measured_ms: FloatArray
    below: FloatArray
    error: float
    taken: int

    @classmethod
    def of(cls, costs_ms: FloatArray) -> "Verdict":
        """Choose one of K plans by measured costs, and return the verdict. `costs_ms` (K, P) has the cost of each plan
        in each of P >= 2 passes, in ms; NaN if a measurement failed. The first plan is the predicted best.

        Passes are blocks: a disturbance that slows down a whole pass affects all plans equally and has no effect on the
        verdict. The remaining differences are random, with the same variance for all plans. With two plans, this is
        Student's paired test.
        """
        known: BoolArray = np.isfinite(costs_ms.sum(axis=1))
        measured_ms = np.where(known, costs_ms.mean(axis=1), np.nan)
        below = np.full(len(costs_ms), np.nan)
        if not known.any():
            return cls(measured_ms, below, float("nan"), 0)
        best, error = int(np.nanargmin(measured_ms)), float("nan")
        if not known[0]:
            return cls(measured_ms, below, error, best)
        logs = np.log(np.maximum(costs_ms[known], _LEAST_MS))
        below[known] = 1 - np.exp((logs - logs[0]).mean(axis=1))
        if len(logs) > 1:
            error = _error(logs)
            best = int(np.nanargmax(below))
        return cls(measured_ms, below, error, best if best and below[best] > error else 0)

    def __str__(self) -> str:
        """Return the verdict as one line of text for people."""
        measured, others = f"measured {self.measured_ms[self.taken]:.2f} ms", int(np.isfinite(self.below).sum()) - 1
        if np.isnan(self.measured_ms).all():
            return "none of the candidate plans could be measured; the predicted best is kept"
        if np.isnan(self.measured_ms[0]):
            return f"{measured}; the predicted best could not be measured"
        if self.taken:
            return f"{measured}, {self.below[self.taken]:.1%} ± {self.error:.1%} below the predicted best"
        if not others:
            return f"{measured}; there was no other candidate plan to compare with"
        best = int(np.nanargmax(self.below))
        if not best:
            return f"{measured}, the predicted best: none of {others} other candidate plans cost less"
        return (
            f"{measured}, the predicted best: the cheapest of {others} other candidate plans cost "
            f"{self.below[best]:.1%} ± {self.error:.1%} less"
        )


def _error(logs: FloatArray) -> float:
    """Return the margin of error for comparisons of the first of k plans with each other plan. Each comparison
    estimates the relative cost difference between two plans, and the margin is half the width of the confidence
    interval. The k - 1 intervals are simultaneous and equally wide. `logs` (k, P) has the logarithms of the measured
    costs of the k plans in P passes.

    With residuals r of the two-way model (plan + pass), the width is t * sqrt(sum r^2 / ((k - 1)(P - 1)) * 2 / P),
    where t is Student's quantile with Bonferroni's correction for k - 1 differences.
    """
    from scipy.special import stdtrit  # slow to import, so only if needed

    plans, passes = logs.shape
    rest = logs - logs.mean(axis=1, keepdims=True) - logs.mean(axis=0) + logs.mean()
    freedom = (plans - 1) * (passes - 1)
    deviation = np.sqrt((rest**2).sum() / freedom * 2 / passes)
    return float(stdtrit(freedom, 1 - (1 - LEVEL) / 2 / (plans - 1)) * deviation)
