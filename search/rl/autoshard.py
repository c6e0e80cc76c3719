"""AutoShard's policy (section 4): an LSTM over the tables, scores from per-device representations, a critic."""

import torch
from torch import nn

from neuroshard.models.perceptron import AnyWidths, Width, Widths, perceptron
from neuroshard.plumbing.checked import checked
from neuroshard.stages.search.rl.batch import Reduction, TableEncoder, TaskBatch
from neuroshard.stages.search.rl.policy import Policy


class AutoShardPolicy(Policy):
    """A policy that scores a device by its tables' representations, the sequence up to the next, and its compute cost.

    Args:
        table: widths of the table network's layers. Its output is shared by the LSTM and the devices.
        memory: width of the LSTM's state.
        cost: widths of the layers that see what devices cost so far; [] sees nothing of it.
        head: width of the head's hidden layer. Of the scoring network and of the critic.
    """

    kind = "autoshard"

    @checked
    def __init__(
        self, table: Widths = (128, 32), memory: Width = 64, cost: AnyWidths = (64, 32), head: Width = 64
    ) -> None:
        super().__init__()
        self.settings = {"table": list(table), "memory": memory, "cost": list(cost), "head": head}
        self.reduction = Reduction("sum")
        self.encoder = TableEncoder(tuple(table))
        self.memory = nn.LSTM(table[-1], memory, batch_first=True)
        self.cost = perceptron((1, *cost)) if cost else None
        context = table[-1] + memory
        self.head = perceptron((table[-1] + context + (cost[-1] if cost else 0), head, 1))
        self.critic = perceptron((2 * table[-1] + context, head, 1))

    def encode(self, batch: TaskBatch, order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode the items by the table network, and their context by that and the LSTM."""
        ordered = self.ordered(batch, order)
        remembered, _ = self.memory(ordered)
        return ordered, torch.cat([ordered, remembered], dim=-1)

    def scores(self, devices: torch.Tensor, context: torch.Tensor, costs: torch.Tensor) -> torch.Tensor:
        """Score the devices, (..., D); of the costs, compute alone counts."""
        return super().scores(devices, context, costs[..., :1])

    def values(self, devices: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Predict the reward, (...,), from devices (..., D, H) and context (..., C)."""
        seen = torch.cat([devices.mean(dim=-2), devices.amax(dim=-2), context], dim=-1)
        values: torch.Tensor = self.critic(seen)[..., 0]
        return values
