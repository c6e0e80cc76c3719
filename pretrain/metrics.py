"""How good predictions are."""

import numpy as np
from scipy.stats import kendalltau
from sklearn.metrics import mean_absolute_percentage_error, mean_squared_error

from neuroshard.arrays import FloatArray
from neuroshard.models.card import Accuracy

_DECILES = 10


def accuracy_of(predicted_ms: FloatArray, measured_ms: FloatArray) -> Accuracy:
    """Errors of predictions against measurements, both (n,) or, per device, (n, D).

    Every device of a sample counts as much as every other.
    """
    predicted, measured = predicted_ms.ravel(), measured_ms.ravel()
    tau = float(kendalltau(predicted, measured).statistic) if len(predicted) > 1 else float("nan")
    tenths = np.array_split(np.argsort(measured, kind="stable"), _DECILES)
    return Accuracy(
        len(predicted_ms),
        float(mean_squared_error(measured, predicted)),
        float(mean_absolute_percentage_error(measured, predicted)),
        0.0 if np.isnan(tau) else tau,
        tuple(float(mean_absolute_percentage_error(measured[t], predicted[t])) for t in tenths if len(t)),
    )
