"""What a pretrain run gives: metrics on tables never seen in training, beside the noise floor."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from neuroshard.arrays import FloatArray
from neuroshard.models import CommModel, ComputeModel, CostModels
from neuroshard.models.trust import LEVEL, Margin, Margins
from neuroshard.noise import pass_repeatability
from neuroshard.pretrain.examples import BACKWARD, FORWARD
from neuroshard.pretrain.measured import Measured
from neuroshard.pretrain.metrics import Metrics
from neuroshard.samples import CommSample, ComputeSample, Measurement
from neuroshard.timing import typical_ms


@dataclass(frozen=True)
class TestedModel:
    """A model on unseen tables, and the noise floor: how far two passes over the same samples differ.

    `coverage` is the share of the measurements inside the model's 90% intervals.
    """

    test: Metrics
    noise_mean: float
    noise_p50: float
    noise_p90: float
    coverage: float

    @classmethod
    def of(cls, predicted: "Predicted", margin: Margin, everything: list[Measurement[Any]]) -> "TestedModel":
        """From test predictions and all measurements, second passes included."""
        noise = pass_repeatability(everything)
        noise = noise if len(noise) else np.zeros(1)
        p50, p90 = (float(np.quantile(noise, level)) for level in (0.5, 0.9))
        inside = np.abs(predicted.predicted_ms - predicted.measured_ms) <= margin(
            predicted.predicted_ms, predicted.spread_ms
        )
        metrics = Metrics.of(predicted.predicted_ms, predicted.measured_ms)
        return cls(metrics, float(noise.mean()), p50, p90, float(inside.mean()))


@dataclass(frozen=True)
class PretrainResult:
    """Where the bundle is and how its models do."""

    path: Path
    metrics: dict[str, TestedModel]

    def show(self, console: Console) -> None:
        """Print a table of the metrics."""
        grid = Grid(title=f"Cost models in {self.path}, on unseen tables")
        grid.add_column("model")
        for column in ("n", "MSE ms²", "MAPE", "tau", "noise", "p50", "p90", f"in {LEVEL:.0%}"):
            grid.add_column(column, justify="right")
        for name, model in self.metrics.items():
            test = model.test
            grid.add_row(
                name, str(test.samples), f"{test.mse:.3g}", f"{test.mape:.1%}", f"{test.kendall_tau:.3f}",
                f"{model.noise_mean:.1%}", f"{model.noise_p50:.1%}", f"{model.noise_p90:.1%}", f"{model.coverage:.0%}",
            )  # fmt: skip
        console.print(grid)
        console.print("noise: how far two passes of the measurement itself differ on the same samples")
        console.print(
            f"in {LEVEL:.0%}: share of the measurements inside the intervals that are meant to hold {LEVEL:.0%}"
        )


@dataclass(frozen=True)
class Predicted:
    """Predictions, what ensembles disagree by, and measurements, (n,) each; one for every device of an exchange."""

    predicted_ms: FloatArray
    spread_ms: FloatArray
    measured_ms: FloatArray

    def margin(self) -> Margin:
        """Set on these."""
        return Margin.fitted(self.predicted_ms, self.spread_ms, self.measured_ms)


def tested(models: CostModels, margins: Margins, compute: Measured, comm: Measured) -> dict[str, TestedModel]:
    """Every model on its test samples, by name."""
    return {
        "compute": TestedModel.of(predict_compute(models.compute, compute.test), margins.compute, compute.everything),
        "forward": TestedModel.of(predict_comm(models.forward, comm.test, FORWARD), margins.forward, comm.everything),
        "backward": TestedModel.of(
            predict_comm(models.backward, comm.test, BACKWARD), margins.backward, comm.everything
        ),
    }


def margins_of(models: CostModels, compute: Measured, comm: Measured) -> Margins:
    """Margins of every model, set on validation samples."""
    return Margins(
        predict_compute(models.compute, compute.valid).margin(),
        predict_comm(models.forward, comm.valid, FORWARD).margin(),
        predict_comm(models.backward, comm.valid, BACKWARD).margin(),
    )


def predict_compute(model: ComputeModel, measurements: list[Measurement[ComputeSample]]) -> Predicted:
    """Of compute samples, in groups of one batch size."""
    parts = []
    for group, batch_size in _grouped(measurements, lambda sample: sample.batch_size):
        sets = [m.sample.tables for m in group]
        measured = np.array([_typical(m) for m in group])
        parts.append((model.predict(sets, batch_size), model.spread_ms(sets, batch_size), measured))
    return Predicted(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def predict_comm(model: CommModel, measurements: list[Measurement[CommSample]], direction: int) -> Predicted:
    """Of every device of exchanges, in groups of one batch size and number of devices."""
    parts = []
    for group, (batch_size, _) in _grouped(measurements, lambda sample: (sample.batch_size, len(sample.dims))):
        dims = np.array([m.sample.dims for m in group], dtype=np.float64)
        starts = np.array([m.sample.start_ms for m in group]) * (direction == FORWARD)
        measured = np.array([_typical(m)[direction] for m in group])
        parts.append((model.predict(dims, starts, batch_size).ravel(), measured.ravel()))
    predicted, measured = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Predicted(predicted, np.zeros(len(predicted)), measured)


def _typical(measurement: Measurement[Any]) -> Any:
    assert measurement.repeats is not None
    return typical_ms(measurement.repeats.times_ms)


def _grouped(
    measurements: list[Measurement[Any]], key: Callable[[Any], Any]
) -> Iterator[tuple[list[Measurement[Any]], Any]]:
    groups: dict[Any, list[Measurement[Any]]] = defaultdict(list)
    for measurement in measurements:
        groups[key(measurement.sample)].append(measurement)
    for value in sorted(groups):
        yield groups[value], value
