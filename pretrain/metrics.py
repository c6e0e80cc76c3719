"""How good predictions are."""

import numpy as np
from scipy.stats import kendalltau

from neuroshard.arrays import FloatArray
from neuroshard.models.card import Accuracy


def accuracy_of(predicted_ms: FloatArray, measured_ms: FloatArray) -> Accuracy:
    """Errors of predictions against measurements, both (n,) or, per device, (n, D).

    Every device of a sample counts as much as every other.
    """
    predicted, measured = predicted_ms.ravel(), measured_ms.ravel()
    error = predicted - measured
    relative = np.abs(error) / measured
    tau = float(kendalltau(predicted, measured).statistic) if len(predicted) > 1 else float("nan")
    tenths = [tenth for tenth in np.array_split(relative[np.argsort(measured, kind="stable")], 10) if len(tenth)]
    return Accuracy(
        len(predicted_ms),
        float(np.mean(error**2)),
        float(np.mean(relative)),
        0.0 if np.isnan(tau) else tau,
        tuple(float(tenth.mean()) for tenth in tenths),
    )
