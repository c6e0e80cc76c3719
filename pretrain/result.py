"""What a pretrain run gives: metrics on tables never seen in training, beside the noise floor."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from neuroshard.arrays import FloatArray
from neuroshard.models import NeuralModels
from neuroshard.models.neural import NeuralComm
from neuroshard.noise import pass_repeatability
from neuroshard.pretrain.examples import BACKWARD, FORWARD, CommTable, ComputeTable
from neuroshard.pretrain.measured import Measured
from neuroshard.pretrain.metrics import Metrics
from neuroshard.samples import Measurement


@dataclass(frozen=True)
class TestedModel:
    """A model's metrics on unseen tables, and the noise floor: how far two passes over the same samples differ."""

    test: Metrics
    noise_mean: float
    noise_p50: float
    noise_p90: float

    @classmethod
    def of(cls, predicted_ms: FloatArray, measured_ms: FloatArray, everything: list[Measurement[Any]]) -> "TestedModel":
        """From test predictions and all measurements, second passes included."""
        noise = pass_repeatability(everything)
        noise = noise if len(noise) else np.zeros(1)
        quantiles = (float(np.quantile(noise, level)) for level in (0.5, 0.9))
        return cls(Metrics.of(predicted_ms, measured_ms), float(noise.mean()), *quantiles)


@dataclass(frozen=True)
class PretrainResult:
    """Where the bundle is and how its models do."""

    path: Path
    metrics: dict[str, TestedModel]

    def show(self, console: Console) -> None:
        """Print a table of the metrics."""
        grid = Grid(title=f"Cost models in {self.path}: test samples, tables never seen in training")
        grid.add_column("model")
        for column in ("samples", "MSE ms²", "MAPE", "Kendall's tau", "noise p50", "noise p90"):
            grid.add_column(column, justify="right")
        for name, model in self.metrics.items():
            test = model.test
            grid.add_row(
                name, str(test.samples), f"{test.mse:.3g}", f"{test.mape:.1%}", f"{test.kendall_tau:.3f}",
                f"{model.noise_p50:.1%}", f"{model.noise_p90:.1%}",
            )  # fmt: skip
        console.print(grid)
        console.print("noise: how far two passes of the measurement itself differ on the same samples")


def tested(models: NeuralModels, compute: Measured, comm: Measured) -> dict[str, TestedModel]:
    """Every model on its test samples, by name."""
    return {
        "compute": _test_compute(models, compute),
        "forward": _test_comm(models.forward, comm, FORWARD),
        "backward": _test_comm(models.backward, comm, BACKWARD),
    }


def _test_compute(models: NeuralModels, split: Measured) -> TestedModel:
    predicted = models.compute.predict([m.sample.tables for m in split.test], models.batch_size)
    measured = ComputeTable.of(split.test, models.compute.features).cost_ms
    return TestedModel.of(predicted, measured, split.everything)


def _test_comm(model: NeuralComm, split: Measured, direction: int) -> TestedModel:
    table = CommTable.of(split.test, direction)
    return TestedModel.of(model.predict(table.dims, table.start_ms), table.cost_ms, split.everything)
