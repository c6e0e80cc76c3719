"""How tables become vectors, and many vectors one: what lets a network serve any number of tables."""

from dataclasses import dataclass

import torch
from torch import nn

from neuroshard.models.perceptron import perceptron
from neuroshard.plumbing.errors import unknown_name
from neuroshard.stages.search.rl.batch import FEATURES, TaskBatch

_KINDS = ("sum", "mean", "max")


@dataclass(frozen=True)
class Reduction:
    """The sum, mean or max; max starts from 0."""

    kind: str

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise unknown_name("reduction", self.kind, _KINDS)

    def add(self, total: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        """`total` with `more` in it, shapes alike; zeros change nothing, if representations aren't negative."""
        return torch.maximum(total, more) if self.kind == "max" else total + more

    def finish(self, total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """(..., H) what a total of `count` (...) representations stands for."""
        return total / count.clamp(min=1)[..., None] if self.kind == "mean" else total

    def before(self, steps: torch.Tensor) -> torch.Tensor:
        """(B, I, D, H) totals before each of I steps that add `steps` (B, I, D, H)."""
        through = steps.cummax(dim=1).values if self.kind == "max" else steps.cumsum(dim=1)
        start = torch.zeros_like(steps[:, :1])
        return torch.cat([start, through[:, :-1]], dim=1)

    def total(self, values: torch.Tensor, dim: int) -> torch.Tensor:
        """What adding all representations along one dimension gives, for `finish`."""
        return values.amax(dim=dim) if self.kind == "max" else values.sum(dim=dim)

    def over(self, values: torch.Tensor, dim: int) -> torch.Tensor:
        """All representations along one dimension."""
        return values.mean(dim=dim) if self.kind == "mean" else self.total(values, dim)


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
