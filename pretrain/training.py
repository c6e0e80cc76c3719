"""The training loop, which all networks share."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from msgspec import Meta
from torch import nn

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import check_name
from neuroshard.plumbing.schema import PositiveCount
from neuroshard.stages.pretrain.examples import Examples

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _relative(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (predicted - target) / target.abs().clamp(min=1e-3)


_LOSSES: dict[str, Loss] = {
    "mse": lambda predicted, target: ((predicted - target) ** 2).mean(),
    "relative": lambda predicted, target: (_relative(predicted, target) ** 2).mean(),
    "absolute_relative": lambda predicted, target: _relative(predicted, target).abs().mean(),
}
_SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True)
@checked
class TrainingSettings:
    """Settings of the training of networks, such as epochs, batch size and learning rate.

    Attributes:
        epochs: maximum number of passes over the training samples; larger values can take longer. The best epoch on the
            validation set is kept.
        batch_size: number of training samples per optimizer step.
        learning_rate: initial learning rate of the Adam optimizer, above 0 and at most 1.
        schedule: constant | cosine: schedule of the learning rate; cosine lowers the rate to zero over the epochs.
        loss: mse | relative | absolute_relative: training loss: mean squared error (as in the papers), mean squared
            relative error, or mean absolute relative error (MAPE). With "relative" cheap samples count as much as
            expensive samples.
        patience: number of epochs without a lower validation loss after which training stops early.
    """

    epochs: PositiveCount = 1000
    batch_size: PositiveCount = 512
    learning_rate: Annotated[float, Meta(gt=0, le=1)] = 1e-3
    schedule: str = "constant"
    loss: str = "mse"
    patience: PositiveCount = 1000

    def __post_init__(self) -> None:
        check_name("loss", self.loss, _LOSSES)
        check_name("schedule", self.schedule, _SCHEDULES)


RELATIVE = TrainingSettings(
    epochs=200, batch_size=128, learning_rate=3e-3, schedule="cosine", loss="absolute_relative", patience=200
)  # relative errors, smaller batches and a rate that falls to zero: for all networks except the paper's
FURTHER = TrainingSettings(
    epochs=60, batch_size=8, learning_rate=3e-3, schedule="cosine", loss="absolute_relative", patience=60
)  # fine-tuning of another machine's models with few samples: many small steps


def fit(
    network: nn.Module,
    examples: Sequence[Examples],
    settings: TrainingSettings,
    seed: int,
    on_epoch: Callable[[int, float], None],
) -> None:
    """Train `network` in place with training and validation examples; keep the weights with the lowest validation loss.

    The function calls `on_epoch(epoch, validation loss)` after every epoch. The order of the samples depends on `seed`
    alone.
    """
    (train, valid), loss_of = examples, _LOSSES[settings.loss]
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate, fused=True)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs)
    generator = torch.Generator().manual_seed(seed)
    everything = torch.arange(len(valid.targets))
    best = copy.deepcopy(network.state_dict())
    best_loss, best_epoch = float("inf"), -1
    for epoch in range(settings.epochs):
        for chosen in torch.split(torch.randperm(len(train.targets), generator=generator), settings.batch_size):
            loss = loss_of(network(*train.inputs(chosen)), train.targets[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if settings.schedule == "cosine":
            cosine.step()
        with torch.no_grad():
            valid_loss = float(loss_of(network(*valid.inputs(everything)), valid.targets))
        on_epoch(epoch, valid_loss)
        if best_epoch < 0 or valid_loss < best_loss:
            best, best_loss, best_epoch = copy.deepcopy(network.state_dict()), valid_loss, epoch
        elif epoch - best_epoch >= settings.patience:
            break
    network.load_state_dict(best)
