"""The papers' networks, trainable: NeuroShard, section 3.2 and its published layer widths."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from neuroshard.errors import UserError
from neuroshard.models.mlp import Mlp


@dataclass(frozen=True)
class NetworkWidths:
    """Widths of the hidden layers and, for `table`, of its output.

    The head has one hidden layer, so that the search can compile it into its inner loop.
    """

    table: tuple[int, ...] = (128, 32)
    head: int = 64
    comm: tuple[int, ...] = (128, 64, 32, 16)

    def __post_init__(self) -> None:
        for name, widths in (("table", self.table), ("head", [self.head]), ("comm", self.comm)):
            if not widths or any(not isinstance(width, int) or width < 1 for width in widths):
                raise UserError(f"network: {name}={list(widths)} must be a list of positive whole numbers")


class ComputeNetwork(nn.Module):
    """Table network, sum over each set's tables, head."""

    def __init__(self, num_features: int, widths: NetworkWidths) -> None:
        super().__init__()
        self.table = _perceptron((num_features, *widths.table))
        self.head = _perceptron((widths.table[-1], widths.head, 1))

    def forward(self, features: torch.Tensor, segments: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """(B, 1) costs of B = len(count) sets; features (N, F) of all their tables, the set of each, (N,)."""
        embedded = self.table(features)
        sums = embedded.new_zeros(len(count), embedded.shape[1]).index_add(0, segments, embedded)
        costs: torch.Tensor = self.head(sums)
        return costs


class CommNetwork(nn.Module):
    """From the columns and starts of all devices to the cost of each."""

    def __init__(self, num_devices: int, widths: NetworkWidths) -> None:
        super().__init__()
        self.network = _perceptron((2 * num_devices, *widths.comm, num_devices))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(B, D) costs from features (B, 2 D)."""
        costs: torch.Tensor = self.network(features)
        return costs


def to_mlp(perceptron: nn.Module) -> Mlp:
    """The trained layers, for inference."""
    layers = [layer for layer in perceptron.modules() if isinstance(layer, nn.Linear)]
    weights = tuple(layer.weight.detach().numpy().T.copy() for layer in layers)
    return Mlp(weights, tuple(layer.bias.detach().numpy().copy() for layer in layers))


def _perceptron(widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
