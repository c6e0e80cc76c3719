"""The papers' networks, trainable: NeuroShard, section 3.2 and its published layer widths."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from neuroshard.models.mlp import Mlp
from neuroshard.models.perceptron import perceptron
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import shown

_MOST_UNITS = 4096


def checked_widths(name: str, widths: Sequence[int]) -> None:
    """Raise UserError unless the widths of layers are whole numbers from 1 to 4,096."""
    if not widths or any(type(width) is not int or not 1 <= width <= _MOST_UNITS for width in widths):
        raise UserError(f"network: {name}={shown(list(widths))} must be whole numbers from 1 to {_MOST_UNITS}")


class ComputeNetwork(nn.Module):
    """Table network, sum over each set's tables, head."""

    def __init__(self, num_features: int, table: tuple[int, ...], head: int) -> None:
        super().__init__()
        self.table = perceptron((num_features, *table))
        self.head = perceptron((table[-1], head, 1))

    def forward(self, features: torch.Tensor, segments: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """(B, 1) costs of B = len(count) sets; features (N, F) of all their tables, the set of each, (N,)."""
        sums = segment_sums(self.table[:-1](features), segments, len(count))
        last = last_layer(self.table)
        costs: torch.Tensor = self.head(sums @ last.weight.T + count[:, None] * last.bias)
        return costs


def last_layer(network: nn.Sequential) -> nn.Linear:
    """The linear layer at the end of a network that `perceptron` made."""
    return cast(nn.Linear, network[-1])


def segment_sums(values: torch.Tensor, segments: torch.Tensor, num_segments: int) -> torch.Tensor:
    """(B, K) sums of values (N, K) by the segment of each, (N,).

    Where a linear layer stands before a sum, the sum is better taken first: the layer then sees B rows instead of N.
    """
    return values.new_zeros(num_segments, values.shape[1]).index_add(0, segments, values)


def to_mlp(trained: nn.Module) -> Mlp:
    """The trained layers, for inference."""
    layers = linear_layers(trained)
    weights = tuple(layer.weight.detach().numpy().T.copy() for layer in layers)
    return Mlp(weights, tuple(layer.bias.detach().numpy().copy() for layer in layers))


def load_mlp(network: nn.Module, mlp: Mlp) -> None:
    """Give a network of the same widths the weights of `mlp`."""
    with torch.no_grad():
        for layer, weight, bias in zip(linear_layers(network), mlp.weights, mlp.biases, strict=True):
            layer.weight.copy_(torch.from_numpy(weight.T.copy()))
            layer.bias.copy_(torch.from_numpy(bias.copy()))


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    """Those within a network, in order."""
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
