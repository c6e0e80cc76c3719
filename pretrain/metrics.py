"""How good predictions are."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import kendalltau

from neuroshard.arrays import FloatArray


@dataclass(frozen=True)
class Metrics:
    """Errors of predictions against measurements, both (n,) or, per device, (n, D).

    Attributes:
        samples: n.
        mse: mean squared error, ms squared.
        mape: mean absolute error relative to the measurement.
        kendall_tau: agreement of the two orders, -1 to 1.
        decile_mape: (10,) MAPE of each tenth of the measurements, cheapest first.
    """

    samples: int
    mse: float
    mape: float
    kendall_tau: float
    decile_mape: tuple[float, ...]

    @classmethod
    def of(cls, predicted_ms: FloatArray, measured_ms: FloatArray) -> "Metrics":
        """The metrics; every device of a sample counts as much as every other."""
        predicted, measured = predicted_ms.ravel(), measured_ms.ravel()
        error = predicted - measured
        relative = np.abs(error) / measured
        tau = float(kendalltau(predicted, measured).statistic) if len(predicted) > 1 else float("nan")
        tenths = [tenth for tenth in np.array_split(relative[np.argsort(measured, kind="stable")], 10) if len(tenth)]
        return cls(
            len(predicted_ms),
            float(np.mean(error**2)),
            float(np.mean(relative)),
            0.0 if np.isnan(tau) else tau,
            tuple(float(tenth.mean()) for tenth in tenths),
        )
