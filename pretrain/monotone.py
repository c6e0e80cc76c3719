"""Networks that go the right way with their inputs, whatever they are fitted to."""

from collections.abc import Sequence

import torch
from torch import nn

from neuroshard.models.mlp import Mlp
from neuroshard.models.perceptron import perceptron
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.pretrain.networks import linear_layers, load_mlp, to_mlp


class MonotoneNetwork(nn.Module):
    """Linear layers with ReLU between them, in which the signs of the weights are given.

    Every input has a sign: the outputs never fall (1) or never rise (-1) as it grows, or may do either (0). Hidden
    units have signs by turns, and a weight between two units has the product of theirs: units of either sign bend
    outputs up or down, and no path from an input to an output has the wrong sign. What is exported is a plain network.

    Weights that are drawn with the wrong sign are 0 and stay so: networks that begin with all weights of the right sign
    see little but the sum of their inputs, and fit worse.
    """

    def __init__(self, signs: Sequence[int], hidden: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.network = perceptron((len(signs), *hidden, outputs))
        ends = [*(alternating(width) for width in hidden), torch.ones(outputs)]
        starts = [torch.tensor(signs, dtype=torch.float32), *ends[:-1]]
        self._signs = [end[:, None] * start[None, :] for start, end in zip(starts, ends, strict=True)]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(..., outputs) of inputs (..., F)."""
        hidden = inputs
        for i, (layer, sign) in enumerate(zip(linear_layers(self.network), self._signs, strict=True)):
            hidden = nn.functional.linear(torch.relu(hidden) if i else hidden, _kept(layer.weight, sign), layer.bias)
        return hidden

    def to_mlp(self) -> Mlp:
        """The trained layers, for inference."""
        self._keep()
        return to_mlp(self.network)

    def load(self, mlp: Mlp) -> None:
        """Take the weights of a network of the same widths.

        Raises:
            UserError: they don't have the signs.
        """
        load_mlp(self.network, mlp)
        before = [layer.weight.detach().clone() for layer in linear_layers(self.network)]
        self._keep()
        after = [layer.weight.detach() for layer in linear_layers(self.network)]
        if any((one != other).any() for one, other in zip(before, after, strict=True)):
            raise UserError("init is a model whose costs fall where they must rise; leave init out")

    def _keep(self) -> None:
        with torch.no_grad():
            for layer, sign in zip(linear_layers(self.network), self._signs, strict=True):
                layer.weight.copy_(_kept(layer.weight, sign))


def alternating(count: int) -> torch.Tensor:
    """(count,) 1, -1, 1, ..."""
    return 1 - 2 * (torch.arange(count) % 2).to(torch.float32)


def _kept(weight: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
    """The weights, 0 where they have the wrong sign."""
    return torch.where(sign == 0, weight, (weight * sign).clamp(min=0) * sign)
