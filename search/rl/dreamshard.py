"""DreamShard's policy network (section 3.3): device and table representations, cost features, softmax over devices."""

import torch

from neuroshard.models.perceptron import AnyWidths, Width, Widths, perceptron
from neuroshard.plumbing.checked import checked
from neuroshard.stages.search.rl.batch import Reduction, TableEncoder, TaskBatch
from neuroshard.stages.search.rl.cost_network import NUM_PARTS
from neuroshard.stages.search.rl.policy import Policy


class DreamShardPolicy(Policy):
    """A policy that scores a device by what lies on it, what comes next, and what the device costs so far.

    Representations are multiples of an even share of all tables', so that tasks of any size look alike.

    Args:
        table: widths of the table network's layers.
        cost: widths of the layers that see what devices cost so far; [] sees nothing of it.
        head: width of the head's hidden layer.
        reduction: of tables to a device: sum, mean or max. The paper's is "sum".
    """

    kind = "dreamshard"

    @checked
    def __init__(
        self, table: Widths = (128, 32), cost: AnyWidths = (64, 32), head: Width = 64, reduction: str = "sum"
    ) -> None:
        super().__init__()
        self.settings = {"table": list(table), "cost": list(cost), "head": head, "reduction": reduction}
        self.reduction = Reduction(reduction)
        self.encoder = TableEncoder(tuple(table))
        self.cost = perceptron((NUM_PARTS, *cost)) if cost else None
        self.head = perceptron((2 * table[-1] + (cost[-1] if cost else 0), head, 1))

    def encode(self, batch: TaskBatch, order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode the items by the table network, and their context by the same."""
        ordered = self.ordered(batch, order)
        return ordered, ordered
