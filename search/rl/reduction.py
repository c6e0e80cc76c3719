"""How representations of tables, or of devices, become one: what lets a network serve any number of them."""

from dataclasses import dataclass

import torch

from neuroshard.errors import unknown_name

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
