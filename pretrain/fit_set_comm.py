"""Fit communication models, which predict exchange times, for any number of devices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from neuroshard.measure.store.sample_loads import starts_of, traffic_of
from neuroshard.measure.store.samples import FORWARD, CommSample, Measurement
from neuroshard.models.comm_models import FEATURE_SIGNS, HOST_SIGNS, SetComm, host_features, set_features
from neuroshard.models.interface import NUM_WAITS, device_waits, waits
from neuroshard.models.perceptron import Width, Widths
from neuroshard.models.stored import Normaliser
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.pretrain.examples import Examples, in_multiples
from neuroshard.stages.pretrain.fitting import CommFitter, HiddenLayers, OnEpoch
from neuroshard.stages.pretrain.measurements import SplitMeasurements
from neuroshard.stages.pretrain.networks import MonotoneNetwork
from neuroshard.stages.pretrain.training import FURTHER, RELATIVE, TrainingSettings, fit

_LEAST_TRANSFER_MS = 1e-2  # a transfer is a time minus the wait, which noise can make negative


class SetNetwork(nn.Module):
    """A PyTorch network that learns the weights of a `SetComm` model. The fitted model then predicts exchange times
    without PyTorch.
    """

    def __init__(self, signs: tuple[int, ...], hidden: tuple[int, ...], segments: int) -> None:
        super().__init__()
        self.network = MonotoneNetwork(signs, hidden, 1 + segments)
        self.share = nn.Parameter(torch.zeros(segments))
        self.lead = nn.Parameter(2 * torch.eye(1 + NUM_WAITS).repeat(-(-segments // (1 + NUM_WAITS)), 1)[:segments])

    def forward(self, features: torch.Tensor, waits: torch.Tensor) -> torch.Tensor:
        """Return the predicted transfer times of B devices, (B, 1). `features` has F features of each device, (B, F).
        `waits` has W statistics of the time that devices wait for the straggler, the device that starts last, (B, W).

        Waits and transfer times are multiples of the scale. See `SetComm` for the formula.
        """
        segments = self.network(features).exp()
        share, lead = self._shares()
        transfer: torch.Tensor = segments[:, :1] + torch.relu(segments[:, 1:] - waits @ lead.T) @ share[:, None]
        return transfer

    def _shares(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights `share` (G,) and `lead` (G, W) of the formula below, all at least 0. A transfer consists
        of segment 0 and of G further segments, which are shorter if devices wait; `waits` has W statistics.

        The formula is transfer = segment_0 + sum over g of share_g * relu(segment_g - lead_g . waits). The shares add
        up to 1. The leads of a segment add up to at most 1; the rest, up to 1, applies to no wait.
        """
        return self.share.softmax(dim=0), self.lead.softmax(dim=1)[:, 1:]

    def load(self, model: SetComm) -> None:
        """Copy the weights of a fitted `SetComm` model into this network."""
        self.network.load(model.network)
        share, lead = torch.from_numpy(model.share), torch.from_numpy(model.lead)
        lead = torch.cat([1 - lead.sum(dim=1, keepdim=True), lead], dim=1)
        with torch.no_grad():
            for parameter, value in ((self.share, share), (self.lead, lead)):
                parameter.copy_(value.clamp(min=1e-8).log())

    def model(self, normaliser: Normaliser, scale_ms: float) -> SetComm:
        """Return the trained weights as a `SetComm` model for inference."""
        share, lead = (parameter.detach().numpy().copy() for parameter in self._shares())
        return SetComm(normaliser, self.network.to_mlp(), scale_ms, share, lead)


@dataclass(frozen=True)
class _Devices:
    """The n devices of measured exchanges in one split, training or validation. For each device, there are features,
    statistics of waiting times, and the transfer time.

    Attributes:
        features: (n, F) features of each device.
        waits: (n, W) statistics of the ms that devices wait for the straggler, the device that starts last (see
            `device_waits`).
        transfer_ms: (n,) transfer time of each device.
    """

    features: FloatArray
    waits: FloatArray
    transfer_ms: FloatArray

    @classmethod
    def of(cls, measurements: Sequence[Measurement[CommSample]], direction: int, signs: tuple[int, ...]) -> "_Devices":
        """Return the features, waits and transfer times of the devices in all exchanges between two or more devices.

        Only the first len(`signs`) features are returned, because `signs` has one entry for each feature that the model
        uses. The features of host links come last, and some models do not use these features.

        In direction FORWARD exchanges begin after start delays, in direction BACKWARD without delays.

        Raises:
            UserError: there is no such exchange.
        """
        exchanges = [_devices(m, direction) for m in measurements if m.sample.num_devices > 1]
        if not exchanges:
            raise UserError(
                "exchanges-between-devices-missing",
                "the training samples or the validation samples have no exchange between devices",
                limit="the communication model is fitted to exchanges between 2 or more devices",
                remedy="Collect exchanges with comm.num_devices=[2,4], or use the exchanges of a datasheet: set "
                "exchanges=roofline:h100",
            )
        features, wait, transfer = (np.concatenate(arrays) for arrays in zip(*exchanges, strict=True))
        return cls(features[:, : len(signs)], wait, transfer)

    def examples(self, normaliser: Normaliser, scale_ms: float) -> Examples:
        """Return one training example for each device. The inputs are the normalised features and the waits (statistics
        of waiting times) of the device; the target is the transfer time of the device. Waits and transfer times are
        divided by `scale_ms`.
        """
        inputs = torch.from_numpy(normaliser(self.features)), in_multiples(self.waits, scale_ms)
        return Examples(inputs, in_multiples(self.transfer_ms[:, None], scale_ms))


@dataclass(frozen=True)
class SetCommunication(HiddenLayers, CommFitter):
    """Fits one network that predicts the exchange time of each device, from features of the device and of all devices
    together.

    Attributes:
        parts: number of learned terms that model how much of an exchange a device completes while it waits for the
            slowest device; larger values can fit this overlap more closely, and predictions take longer.
        training_further: settings for fine-tuning a model of another machine.
    """

    goes_on_from: ClassVar[Any] = SetComm

    hidden: Widths = (64, 32)
    training: TrainingSettings = RELATIVE
    parts: Width = 8
    training_further: TrainingSettings = FURTHER

    @property
    def further(self) -> "SetCommunication":
        """A copy of this fitter with the settings for fine-tuning a model that was fitted on another machine."""
        return replace(self, training=self.training_further)

    def fit(self, measured: SplitMeasurements, direction: int, start: Any, seed: int, on_epoch: OnEpoch) -> SetComm:
        """Fit a model that predicts the exchange time of each device to the training samples of exchanges. If `start`
        is a model, fine-tune this model: the scales of features and times, and the layer widths stay the same.

        In the backward direction no device waited when the exchanges were measured, so the overlap with waiting is
        unknown. The model then assumes that devices complete nothing while they wait.
        """
        signs = _signs(measured, start)
        train, valid = (_Devices.of(split, direction, signs) for split in (measured.train, measured.valid))
        normaliser = Normaliser.fitted(train.features) if start is None else start.normaliser
        scale_ms = float(np.median(train.transfer_ms)) if start is None else start.scale_ms
        torch.manual_seed(seed)
        network = self._network(signs, start)
        fit(
            network,
            [devices.examples(normaliser, scale_ms) for devices in (train, valid)],
            self.training,
            seed,
            on_epoch,
        )
        model = network.model(normaliser, scale_ms)
        return model if direction == FORWARD else replace(model, lead=np.zeros_like(model.lead))

    def _network(self, signs: tuple[int, ...], start: SetComm | None) -> SetNetwork:
        """Return the network to train. If `start`, a fitted model, is given, the network gets the layer widths and the
        weights of `start`. If `start` is None, the network gets the layer widths of this fitter and initial weights.
        `signs` has one sign for each input feature (see `MonotoneNetwork`).
        """
        if start is None:
            return SetNetwork(signs, self.hidden, self.parts)
        network = SetNetwork(signs, tuple(start.network.widths[1:-1]), len(start.share))
        network.load(start)
        return network


def _signs(measured: SplitMeasurements, start: SetComm | None) -> tuple[int, ...]:
    """Return one sign for each feature that the communication model uses: 1 if the exchange time can only rise when the
    feature rises, and 0 if the exchange time may rise or fall. If the model is fine-tuned from an earlier model
    `start`, both models use the same features.

    Otherwise the features of host links are included only if some exchanges cross hosts and some do not.
    """
    every = (*FEATURE_SIGNS, *HOST_SIGNS)
    if start is not None:
        return every[: start.network.widths[0]]
    crossed = {m.sample.host_size < m.sample.num_devices for m in measured.train if m.sample.num_devices > 1}
    return every if len(crossed) > 1 else FEATURE_SIGNS


def _devices(measurement: Measurement[CommSample], direction: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return three arrays for the D devices of one exchange: features, waits and transfer times. Features (D, F) are
    the F inputs that describe each device. Waits (D, W) are W statistics of the ms that devices wait for the straggler,
    the device that starts last. Transfer times (D,) are in ms.
    """
    wait, traffic = waits(starts_of([measurement.sample], direction)), traffic_of([measurement.sample])
    features = np.concatenate([set_features(traffic), host_features(traffic)], axis=2)
    transfer = measurement.typical_ms[direction] - wait[0]
    return features[0], device_waits(wait)[0], np.maximum(transfer, _LEAST_TRANSFER_MS)
