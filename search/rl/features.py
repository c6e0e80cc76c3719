"""Tables as the networks see them: features with mean 0 and deviation 1 over the training tasks."""

import torch
from torch import nn

from neuroshard.perceptron import perceptron
from neuroshard.stages.search.rl.batch import FEATURES, TaskBatch


class TableEncoder(nn.Module):
    """Normalised features through a perceptron, not negative at the end."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        count = len(FEATURES.columns)
        self.register_buffer("mean", torch.zeros(count))
        self.register_buffer("scale", torch.ones(count))
        self.network = perceptron((count, *widths))

    def normalise(self, batch: TaskBatch) -> None:
        """Take mean and deviation from the tables of a batch."""
        tables = batch.features[batch.present > 0]
        self.mean.copy_(tables.mean(dim=0))
        self.scale.copy_(tables.std(dim=0).clamp(min=1e-3))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(..., H) representations of tables with features (..., F)."""
        return torch.relu(self.network((features - self.mean) / self.scale))
