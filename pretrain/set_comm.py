"""Fitting communication models for any number of devices."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from neuroshard.arrays import FloatArray
from neuroshard.models.mlp import Normaliser
from neuroshard.models.set_comm import NUM_FEATURES, SetComm, set_features
from neuroshard.perceptron import perceptron
from neuroshard.pretrain.examples import FORWARD, FlatExamples
from neuroshard.pretrain.fitting import HiddenLayers, OnEpoch, check_start
from neuroshard.pretrain.measured import Measured
from neuroshard.pretrain.networks import load_mlp, to_mlp
from neuroshard.pretrain.training import fit
from neuroshard.samples import CommSample, Measurement
from neuroshard.timing import typical_ms

_LEAST_TRANSFER_MS = 1e-2  # noise can make what is left after the wait negative, but its logarithm must exist


class SetNetwork(nn.Module):
    """The trainable form of `SetComm`."""

    def __init__(self, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.network = perceptron((NUM_FEATURES, *hidden, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(B, 1) transfers from features (B, F) of devices."""
        costs: torch.Tensor = self.network(features).exp()
        return costs


@dataclass(frozen=True)
class SetCommunication(HiddenLayers):
    """One network for every device, which sees the others as a set."""

    hidden: tuple[int, ...] = (64, 32)

    def fit(self, measured: Measured, direction: int, start: Any, seed: int, on_epoch: OnEpoch) -> SetComm:
        """Fitted to every device of the training exchanges; from `start` on, with its scales and widths.

        Raises:
            UserError: the start is of another form.
        """
        check_start(start, SetComm)
        (features, transfer), valid = (_devices(part, direction) for part in (measured.train, measured.valid))
        normaliser = Normaliser.fitted(features) if start is None else start.normaliser
        scale_ms = float(np.median(transfer)) if start is None else start.scale_ms
        torch.manual_seed(seed)
        network = SetNetwork(self.hidden if start is None else tuple(start.network.widths[1:-1]))
        if start is not None:
            load_mlp(network.network, start.network)
        train = FlatExamples.of(normaliser(features), transfer / scale_ms)
        fit(network, train, FlatExamples.of(normaliser(valid[0]), valid[1] / scale_ms), self.training, seed, on_epoch)
        return SetComm(normaliser, to_mlp(network.network), scale_ms)


def _devices(measurements: list[Measurement[CommSample]], direction: int) -> tuple[FloatArray, FloatArray]:
    """(n, F) features and (n,) transfers in ms of every device of every exchange."""
    features, transfers = [], []
    for m in measurements:
        assert m.repeats is not None
        dims, starts = np.array([m.sample.dims], dtype=np.float64), np.array([m.sample.start_ms])
        wait = (starts.max() - starts) * (direction == FORWARD)
        features.append(set_features(dims, wait, np.array([m.sample.batch_size]))[0])
        transfers.append(typical_ms(m.repeats.times_ms)[direction] - wait[0])
    return np.concatenate(features), np.maximum(np.concatenate(transfers), _LEAST_TRANSFER_MS)
