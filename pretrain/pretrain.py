"""The pretrain run: fit the three cost models to a data directory, write a bundle."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table as Grid

from neuroshard.arrays import FloatArray
from neuroshard.errors import UserError
from neuroshard.features import FeatureSet
from neuroshard.hardware.fingerprint import versions
from neuroshard.models import Card, NeuralModels, save_bundle
from neuroshard.models.mlp import Normaliser
from neuroshard.models.neural import NeuralComm, NeuralCompute
from neuroshard.noise import pass_repeatability
from neuroshard.pretrain.examples import CommTable, ComputeTable
from neuroshard.pretrain.metrics import Metrics
from neuroshard.pretrain.networks import CommNetwork, ComputeNetwork, NetworkWidths, to_mlp
from neuroshard.pretrain.training import TrainingSettings, fit
from neuroshard.progress import progress_bar
from neuroshard.records import DataDirectory
from neuroshard.samples import Measurement, Sample
from neuroshard.splits import TEST, TRAIN, VALID

_FORWARD, _BACKWARD = 0, 1
OnEpoch = Callable[[int, float], None]


@dataclass(frozen=True)
class Pretrain:
    """Everything `neuroshard pretrain` needs.

    Attributes:
        data: a data directory that `neuroshard collect` wrote.
        out: where the bundle goes.
        features: name of the feature set.
        network: layer widths.
        training: how the compute network is fitted; comm_training: how the communication networks are.
        seed: of the initial weights and the order of samples.
    """

    data: str
    out: str
    features: str
    network: NetworkWidths
    training: TrainingSettings
    comm_training: TrainingSettings
    seed: int

    def run(self) -> "PretrainResult":
        """Fit, test on unseen tables, save."""
        directory = DataDirectory(Path(self.data))
        manifest = directory.manifest()
        features = FeatureSet(self.features)
        compute = _Split.of(directory.compute().read(), "compute samples", directory.path)
        comm = _Split.of(directory.comm().read(), "exchanges", directory.path)
        batch_size = _one_batch_size([*compute.everything, *comm.everything])
        torch.manual_seed(self.seed)
        with progress_bar() as progress:

            def bar(name: str, settings: TrainingSettings) -> OnEpoch:
                task = progress.add_task(name, total=settings.epochs)
                return lambda epoch, loss: progress.update(
                    task, completed=epoch + 1, description=f"{name}: validation loss {loss:.4g}"
                )

            compute_model = self._fit_compute(compute, features, bar("compute", self.training))
            forward = self._fit_comm(comm, _FORWARD, bar("forward", self.comm_training))
            backward = self._fit_comm(comm, _BACKWARD, bar("backward", self.comm_training))
        models = NeuralModels(compute_model, forward, backward, batch_size)
        metrics = {
            "compute": _test_compute(models, compute),
            "forward": _test_comm(forward, comm, _FORWARD),
            "backward": _test_comm(backward, comm, _BACKWARD),
        }
        card = Card(
            hardware=manifest.hardware,
            versions=manifest.versions | versions(),
            data={
                "directory": self.data,
                "seed": manifest.seed,
                "compute_samples": compute.sizes,
                "comm_samples": comm.sizes,
                "batch_size": batch_size,
                "num_devices": forward.num_devices,
            },
            training=asdict(self),
            metrics={name: asdict(metric) for name, metric in metrics.items()},
        )
        save_bundle(Path(self.out), models, card)
        return PretrainResult(Path(self.out), metrics)

    def _fit_compute(self, split: "_Split", features: FeatureSet, on_epoch: OnEpoch) -> NeuralCompute:
        train, valid = ComputeTable.of(split.train, features), ComputeTable.of(split.valid, features)
        normaliser, scale_ms = Normaliser.fitted(train.features), float(train.cost_ms.mean())
        network = ComputeNetwork(len(features.columns), self.network)
        train_examples, valid_examples = (part.examples(normaliser, scale_ms) for part in (train, valid))
        fit(network, train_examples, valid_examples, self.training, self.seed, on_epoch)
        return NeuralCompute(features, normaliser, to_mlp(network.table), to_mlp(network.head), scale_ms)

    def _fit_comm(self, split: "_Split", direction: int, on_epoch: OnEpoch) -> NeuralComm:
        train, valid = CommTable.of(split.train, direction), CommTable.of(split.valid, direction)
        normaliser, scale_ms = Normaliser.fitted(train.features), float(np.abs(train.transfer_ms).mean())
        network = CommNetwork(train.dims.shape[1], self.network)
        train_examples, valid_examples = (part.examples(normaliser, scale_ms) for part in (train, valid))
        fit(network, train_examples, valid_examples, self.comm_training, self.seed, on_epoch)
        return NeuralComm(normaliser, to_mlp(network.network), scale_ms)


@dataclass(frozen=True)
class _Split:
    """Measurements by split; `everything` holds the second passes too."""

    train: list[Measurement[Any]]
    valid: list[Measurement[Any]]
    test: list[Measurement[Any]]
    everything: list[Measurement[Any]]

    @classmethod
    def of(cls, measurements: Sequence[Measurement[Sample]], what: str, directory: Path) -> "_Split":
        """The measurements that succeeded.

        Raises:
            UserError: a split is empty.
        """
        good = [m for m in measurements if m.error is None]
        parts = {name: [m for m in good if m.split == name and not m.second_pass] for name in (TRAIN, VALID, TEST)}
        for name, part in parts.items():
            if not part:
                raise UserError(f"{directory} holds no {what} for the {name} split; collect more (found {len(good)})")
        return cls(parts[TRAIN], parts[VALID], parts[TEST], good)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples in each split."""
        return {TRAIN: len(self.train), VALID: len(self.valid), TEST: len(self.test)}


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


def _one_batch_size(measurements: list[Measurement[Any]]) -> int:
    sizes = {m.sample.batch_size for m in measurements}
    if len(sizes) != 1:
        raise UserError(
            f"the data mixes batch sizes {sorted(sizes)}; these networks don't take the batch size as input"
        )
    return int(sizes.pop())


def _test_compute(models: NeuralModels, split: _Split) -> TestedModel:
    predicted = models.compute.predict([m.sample.tables for m in split.test], models.batch_size)
    measured = ComputeTable.of(split.test, models.compute.features).cost_ms
    return TestedModel.of(predicted, measured, split.everything)


def _test_comm(model: NeuralComm, split: _Split, direction: int) -> TestedModel:
    table = CommTable.of(split.test, direction)
    return TestedModel.of(model.predict(table.dims, table.start_ms), table.cost_ms, split.everything)
