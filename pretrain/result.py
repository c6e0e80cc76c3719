"""The result of a pretrain run: errors on tables never seen in training,
compared with the noise of the measurements.
"""

from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Grid
from scipy.stats import kendalltau, ttest_rel
from sklearn.metrics import mean_absolute_percentage_error, mean_squared_error

from neuroshard.cost.cost import PARTS
from neuroshard.measure.store.noise import FIT_NOISE, pass_repeatability
from neuroshard.measure.store.samples import Measurement
from neuroshard.models.bundle import Accuracy, ModelTest
from neuroshard.models.trust import LEVEL, Margin
from neuroshard.plumbing.arrays import FloatArray, IntArray, sums_of
from neuroshard.plumbing.fitness import UseVerdict
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.progress import print_lines

_DECILES = 10
_LEAST_MS = 1e-3  # shorter times count as this
_WORSE = 1.1  # ratio of errors; models whose errors are closer may find equally good plans
_FIT_ERROR = 0.3  # mean relative error up to which models are useful; models of another machine may have this error
_BY_CHANCE = 0.01  # probability below which a larger error of a few samples is not chance


def accuracy_of(predicted_ms: FloatArray, measured_ms: FloatArray) -> Accuracy:
    """Compare predicted times with measured times, and return the mean squared error, the MAPE, Kendall's tau, and the
    MAPE of each tenth of the measured times. Both arrays have one time for each of n samples, (n,), or one time for
    each of D devices in each sample, (n, D).

    Every device of a sample has the same weight.
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


@dataclass(frozen=True)
class PretrainResult:
    """Result of a pretrain run: the path of the written bundle (a directory with the fitted models), and the errors of
    the fitted models.

    Attributes:
        path: directory of the bundle.
        metrics: results on the test samples, by part.
        before: MAPE of the models that the new models were fitted from, by part.
        left_out: number of samples in each split, by part, for parts without a model because a split is empty.
    """

    path: Path
    metrics: dict[str, ModelTest]
    before: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)

    def show(self, console: Console) -> None:
        """Print the errors of the models, parts of a step without a model, and whether searches can use the models."""
        grid = Grid(title=f"Cost models in {self.path}, on unseen tables")
        grid.add_column("model")
        started = ("before",) if self.before else ()
        for column in ("n", "MSE ms²", *started, "MAPE", "tau", "noise", "p50", "p90", f"in {LEVEL:.0%}"):
            grid.add_column(column, justify="right")
        for name, model in self.metrics.items():
            test = model.test
            was = (f"{self.before[name]:.1%}" if name in self.before else "-",) if self.before else ()
            grid.add_row(
                name, str(test.samples), f"{test.mse:.3g}", *was, f"{test.mape:.1%}", f"{test.kendall_tau:.3f}",
                f"{model.noise_mean:.1%}", f"{model.noise_p50:.1%}", f"{model.noise_p90:.1%}", f"{model.coverage:.0%}",
            )  # fmt: skip
        console.print(grid)
        if self.before:
            console.print("before: the MAPE of the models that these were fitted from, on the same samples")
        console.print("noise: how far two passes of the measurement itself differ on the same samples")
        console.print(
            f"in {LEVEL:.0%}: share of the measurements inside the {LEVEL:.0%} intervals of their predictions"
        )
        print_lines(console, map(str, starmap(_left_out, self.left_out.items())))
        self.verdict.show(console)

    @property
    def verdict(self) -> UseVerdict:
        """The verdict on whether searches can use the new models. The verdict is negative if the measurements are too
        noisy, or if the errors of the new models are too large. Otherwise the verdict depends on a comparison with the
        earlier models from which the new models were fine-tuned.
        """
        noisy = [f"{part} {self.metrics[part].noise_p90:.0%}" for part in PARTS if self._noise(part) > FIT_NOISE]
        if noisy:
            return UseVerdict(
                False,
                "the measurements are too noisy to pre-train on (90th percentile of the relative difference between "
                f"two passes: {', '.join(noisy)}, limit {FIT_NOISE:.0%})",
                f"collect on a quieter machine, with max_noise={FIT_NOISE:g}",
            )
        if off := [part for part, test in self.metrics.items() if test.test.mape > _FIT_ERROR]:
            return UseVerdict(
                False,
                f"the errors of the predictions are too large ({self._errors(off)}, limit {_FIT_ERROR:.0%})",
                "collect more samples, and pre-train again",
            )
        return self._compared

    @property
    def _compared(self) -> UseVerdict:
        """The verdict on whether searches can use the new models, from a comparison with the earlier models. The new
        models were fine-tuned from the earlier models, and the errors of both are compared for each part of a step.
        Without earlier models, the verdict is positive.
        """
        worse = [part for part in self._refitted_parts if self.metrics[part].test.mape > _WORSE * self.before[part]]
        better = [part for part in self._refitted_parts if self.before[part] > _WORSE * self.metrics[part].test.mape]
        if worse and not better:
            return UseVerdict(
                False,
                f"these models are worse than those they were fitted from ({self._errors(worse)})",
                "keep the old models, or collect more samples and pre-train again",
            )
        if worse:
            return UseVerdict(
                True,
                f"some models are better than those they were fitted from ({self._errors(better)}), and others are "
                f"worse ({self._errors(worse)})",
                "collect more samples to improve the worse models",
            )
        if self.before and not better:
            return UseVerdict(True, "these models are about as good as those they were fitted from")
        return UseVerdict(True, f"on unseen tables the error of predictions is below {_FIT_ERROR:.0%}")

    @property
    def _refitted_parts(self) -> list[str]:
        """The names of the parts of a step for which both errors are known: the error of the new model and the error of
        the earlier model.
        """
        return [part for part in self.metrics if part in self.before]

    def _noise(self, part: str) -> float:
        return self.metrics[part].noise_p90 if part in self.metrics else 0.0

    def _errors(self, parts: list[str]) -> str:
        """Return a text with the error (MAPE) of each part of a step in `parts`, such as "compute error 3.1%, before
        4.2%". After "before" comes the error of the earlier models from which the new models were fitted, if known.
        """
        return ", ".join(
            f"{part} error {self.metrics[part].test.mape:.1%}"
            + (f", before {self.before[part]:.1%}" if part in self.before else "")
            for part in parts
        )


def _left_out(part: str, sizes: dict[str, int]) -> Message:
    """Return a message for users that one part of a training step has no cost model. `part` is the name of this part. A
    model needs samples in every split, so the message lists `sizes`, the number of samples in each split.
    """
    counts = ", ".join(f"{split} {count}" for split, count in sizes.items())
    return Message(
        "part-without-model",
        f"no cost model was fitted to {part!r}",
        limit=f"each split needs 1 sample or more (samples: {counts})",
        remedy=f"Collect more samples of {part!r}",
    )


@dataclass(frozen=True)
class Predicted:
    """Predicted and measured times in ms, with the standard deviation of each prediction over the members of an
    ensemble. The arrays have one value for each of n predicted times, (n,).

    Exchanges have one value for each device.

    Attributes:
        wait_ms: (n,) the part of predictions and measurements that is waiting for other devices; it does not scale with
            the machine's speed.
        devices: (s,) number of devices of each of the s samples; the values of a sample follow each other.
    """

    predicted_ms: FloatArray
    spread_ms: FloatArray
    measured_ms: FloatArray
    wait_ms: FloatArray
    devices: IntArray

    @classmethod
    def alone(cls, predicted_ms: FloatArray, spread_ms: FloatArray, measured_ms: FloatArray) -> "Predicted":
        """Return the predicted and measured times of samples that use one device each. All waiting times are 0."""
        count = len(measured_ms)
        return cls(predicted_ms, spread_ms, measured_ms, np.zeros(count), np.ones(count, dtype=np.int64))

    @property
    def typical_ratio(self) -> float:
        """The median, over all predictions, of the ratio of the measured time to the predicted time. The time that a
        device waits for other devices is first subtracted from both times.
        """
        took, foreseen = (np.maximum(ms - self.wait_ms, _LEAST_MS) for ms in (self.measured_ms, self.predicted_ms))
        return float(np.median(took / foreseen))

    def relative_error(self, factor: float = 1.0) -> float:
        """Return the mean relative error of the predicted times, after each time is multiplied by `factor`."""
        return float(self._relative_errors(factor).mean())

    def is_beaten_by(self, other: "Predicted") -> bool:
        """Return True if the predictions of `other` are clearly better than the predictions of this object. The mean
        relative error of this object must be more than 1.1 times the mean relative error of `other`. The difference
        must also be too large to be chance.

        A paired t-test decides about chance. The devices of one exchange have similar errors, so each sample counts
        once. A single sample cannot decide.
        """
        if len(self.devices) < 2 or self.relative_error() <= _WORSE * other.relative_error():
            return False
        return bool(ttest_rel(self._by_sample, other._by_sample, alternative="greater").pvalue < _BY_CHANCE)

    @property
    def _by_sample(self) -> FloatArray:
        """The mean relative error of each of s samples, (s,). The mean is over the devices of the sample."""
        return sums_of(self._relative_errors(), self.devices) / self.devices

    def _relative_errors(self, factor: float = 1.0) -> FloatArray:
        """Return the relative error of each predicted time, (n,), after each time is multiplied by `factor`."""
        return np.abs(factor * self.predicted_ms / np.maximum(self.measured_ms, _LEAST_MS) - 1)


def tested(predicted: Predicted, margin: Margin, everything: list[Measurement[Any]]) -> ModelTest:
    """Return the test result of the cost model of one part of a step: the errors on test samples, and the noise of the
    measurements. `predicted` has the predictions and the measured times of the test samples. The noise is the relative
    difference between two measurement passes over the same samples, computed from `everything`, the measurements in all
    splits.

    The result also has the share of the measurements that are inside the intervals around the predictions. `margin`
    gives half the width of each interval.
    """
    noise = pass_repeatability(everything)
    noise = noise if len(noise) else np.zeros(1)
    p50, p90 = (float(np.quantile(noise, level)) for level in (0.5, 0.9))
    error = np.abs(predicted.predicted_ms - predicted.measured_ms)
    inside = error <= margin(predicted.predicted_ms, predicted.spread_ms)
    accuracy = accuracy_of(predicted.predicted_ms, predicted.measured_ms)
    return ModelTest(accuracy, float(noise.mean()), p50, p90, float(inside.mean()))
