"""The pretrain run: fit the three cost models to a data directory, write a bundle."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neuroshard.errors import UserError
from neuroshard.features import FeatureSet
from neuroshard.hardware.fingerprint import versions
from neuroshard.models import Card, NeuralModels, save_bundle
from neuroshard.models.mlp import Normaliser
from neuroshard.models.neural import NeuralComm, NeuralCompute
from neuroshard.pretrain.examples import BACKWARD, FORWARD, CommTable, ComputeTable
from neuroshard.pretrain.measured import Measured
from neuroshard.pretrain.networks import CommNetwork, ComputeNetwork, NetworkWidths, to_mlp
from neuroshard.pretrain.result import PretrainResult, TestedModel, tested
from neuroshard.pretrain.training import TrainingSettings, fit
from neuroshard.progress import progress_bar
from neuroshard.records import DataDirectory, Manifest
from neuroshard.samples import Measurement

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

    def run(self) -> PretrainResult:
        """Fit, test on unseen tables, save."""
        directory = DataDirectory(Path(self.data))
        manifest = directory.manifest()
        features = FeatureSet(self.features)
        compute = Measured.of(directory.compute().read(), "compute samples", directory.path)
        comm = Measured.of(directory.comm().read(), "exchanges", directory.path)
        batch_size = _one_batch_size([*compute.everything, *comm.everything])
        torch.manual_seed(self.seed)
        with progress_bar() as progress:

            def bar(name: str, settings: TrainingSettings) -> OnEpoch:
                task = progress.add_task(name, total=settings.epochs)
                return lambda epoch, loss: progress.update(
                    task, completed=epoch + 1, description=f"{name}: validation loss {loss:.4g}"
                )

            compute_model = self._fit_compute(compute, features, bar("compute", self.training))
            forward = self._fit_comm(comm, FORWARD, bar("forward", self.comm_training))
            backward = self._fit_comm(comm, BACKWARD, bar("backward", self.comm_training))
        models = NeuralModels(compute_model, forward, backward, batch_size)
        metrics = tested(models, compute, comm)
        card = self._card(manifest, compute, comm, models, metrics)
        save_bundle(Path(self.out), models, card)
        return PretrainResult(Path(self.out), metrics)

    def _card(
        self,
        manifest: Manifest,
        compute: Measured,
        comm: Measured,
        models: NeuralModels,
        metrics: dict[str, TestedModel],
    ) -> Card:
        return Card(
            hardware=manifest.hardware,
            versions=manifest.versions | versions(),
            data={
                "directory": self.data,
                "seed": manifest.seed,
                "compute_samples": compute.sizes,
                "comm_samples": comm.sizes,
                "batch_size": models.batch_size,
                "num_devices": models.num_devices,
            },
            training=asdict(self),
            metrics={name: asdict(metric) for name, metric in metrics.items()},
        )

    def _fit_compute(self, split: Measured, features: FeatureSet, on_epoch: OnEpoch) -> NeuralCompute:
        train, valid = ComputeTable.of(split.train, features), ComputeTable.of(split.valid, features)
        normaliser, scale_ms = Normaliser.fitted(train.features), float(train.cost_ms.mean())
        network = ComputeNetwork(len(features.columns), self.network)
        train_examples, valid_examples = (part.examples(normaliser, scale_ms) for part in (train, valid))
        fit(network, train_examples, valid_examples, self.training, self.seed, on_epoch)
        return NeuralCompute(features, normaliser, to_mlp(network.table), to_mlp(network.head), scale_ms)

    def _fit_comm(self, split: Measured, direction: int, on_epoch: OnEpoch) -> NeuralComm:
        train, valid = CommTable.of(split.train, direction), CommTable.of(split.valid, direction)
        normaliser, scale_ms = Normaliser.fitted(train.features), float(np.abs(train.transfer_ms).mean())
        network = CommNetwork(train.dims.shape[1], self.network)
        train_examples, valid_examples = (part.examples(normaliser, scale_ms) for part in (train, valid))
        fit(network, train_examples, valid_examples, self.comm_training, self.seed, on_epoch)
        return NeuralComm(normaliser, to_mlp(network.network), scale_ms)


def _one_batch_size(measurements: list[Measurement[Any]]) -> int:
    sizes = {m.sample.batch_size for m in measurements}
    if len(sizes) != 1:
        raise UserError(
            f"the data mixes batch sizes {sorted(sizes)}; these networks don't take the batch size as input"
        )
    return int(sizes.pop())
