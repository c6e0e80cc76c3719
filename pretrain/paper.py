"""Fit the cost models of the paper, with the published layer widths (NeuroShard, section 3.2)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from neuroshard.models.comm_models import NeuralComm
from neuroshard.models.compute_models import NeuralCompute
from neuroshard.models.features import FeatureSet
from neuroshard.models.perceptron import Width, Widths, perceptron
from neuroshard.models.stored import Normaliser
from neuroshard.plumbing.checked import checked
from neuroshard.stages.pretrain.examples import CommTable
from neuroshard.stages.pretrain.fitting import (
    CommFitter,
    ComputeFitter,
    HiddenLayers,
    OnEpoch,
    compute_tables,
    only_value,
)
from neuroshard.stages.pretrain.measurements import SplitMeasurements
from neuroshard.stages.pretrain.networks import ComputeNetwork, to_mlp
from neuroshard.stages.pretrain.training import TrainingSettings, fit


@dataclass(frozen=True)
@checked
class PaperCompute(ComputeFitter):
    """Fits the paper's compute model. A table network encodes each table of a kernel call, the encodings are summed
    over the tables, and a head with one hidden layer predicts the kernel time from the sum.

    Attributes:
        features: paper | paper_batch | log | physical | physical_reuse | physical_bags: table features: paper (as
            published), paper_batch (also batch size), log (logarithms of paper), physical (lookups and bytes per
            batch), physical_reuse (also row reuse), physical_bags (also number of outputs); keep the default unless you
            compare feature sets.
        table: list of widths of the layers of the network that encodes one table, such as [128,32]; the last width is
            the size of the encoding.
        head: width of the hidden layer of the network that predicts a kernel time from the sum of the table encodings.
            The head has one hidden layer, so that the search can compile it into its inner loop.
        training: settings of the training.
    """

    features: str = "paper"
    table: Widths = (128, 32)
    head: Width = 64
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def __post_init__(self) -> None:
        FeatureSet(self.features)

    @property
    def epochs(self) -> int:
        """The maximum number of training epochs."""
        return self.training.epochs

    def fit(self, measured: SplitMeasurements, start: Any, seed: int, on_epoch: OnEpoch) -> NeuralCompute:
        """Fit a model to the training samples, always from scratch.

        Raises:
            UserError: the samples have several batch sizes, which the features do not include.
        """
        features = FeatureSet(self.features)
        train, valid = compute_tables(measured, features)
        normaliser, scale_ms = Normaliser.fitted(train.features), float(train.cost_ms.mean())
        torch.manual_seed(seed)
        network = ComputeNetwork(len(features.columns), self.table, self.head)
        fit(network, [table.examples(normaliser, scale_ms) for table in (train, valid)], self.training, seed, on_epoch)
        return NeuralCompute(features, normaliser, to_mlp(network.table), to_mlp(network.head), scale_ms)


@dataclass(frozen=True)
class PaperComm(HiddenLayers, CommFitter):
    """Fits the paper's communication model: one network that predicts exchange times for a fixed number of devices.

    The network's inputs are the columns and start times of all devices, sorted; the outputs are the devices' costs.
    """

    hidden: Widths = (128, 64, 32, 16)

    def fit(self, measured: SplitMeasurements, direction: int, start: Any, seed: int, on_epoch: OnEpoch) -> NeuralComm:
        """Fit a new model to the training samples of exchanges. This fitter cannot fine-tune models, so `start` is
        ignored.

        Raises:
            UserError: the exchanges have several batch sizes or numbers of devices.
        """
        limit = "comm_model=paper needs samples of one batch size and one number of devices"
        remedy = "Set comm_model=set"
        only_value([m.sample.batch_size for m in measured.everything], "batch sizes", limit, remedy)
        counts = [m.sample.num_devices for split in (measured.train, measured.valid, measured.test) for m in split]
        num_devices = only_value(counts, "numbers of devices", limit, remedy)
        train, valid = (CommTable.of(split, direction) for split in (measured.train, measured.valid))
        normaliser, scale_ms = Normaliser.fitted(train.features), float(np.abs(train.transfer_ms).mean())
        torch.manual_seed(seed)
        network = perceptron((2 * num_devices, *self.hidden, num_devices))
        fit(network, [table.examples(normaliser, scale_ms) for table in (train, valid)], self.training, seed, on_epoch)
        return NeuralComm(normaliser, to_mlp(network), scale_ms)
