"""Trainable networks: the networks of the paper (NeuroShard, section 3.2),
and networks that are monotone in their inputs.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from neuroshard.models.perceptron import perceptron
from neuroshard.models.stored import Mlp
from neuroshard.plumbing.errors import UserError


class ComputeNetwork(nn.Module):
    """The paper's compute network, which predicts the times of kernel calls. A table network encodes each table of a
    call, the encodings are summed over the tables, and a head network predicts the time from the sum.
    """

    def __init__(self, num_features: int, table: tuple[int, ...], head: int) -> None:
        super().__init__()
        self.table = perceptron((num_features, *table))
        self.head = perceptron((table[-1], head, 1))

    def forward(self, features: torch.Tensor, segments: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """Return the predicted times of B kernel calls, (B, 1). `features` (N, F) has F features of each of N tables,
        for the tables of all calls. The index of the call that looks up table n is `segments[n]`.

        The times are multiples of `scale_ms`, a unit of time that is chosen before training.

        Args:
            features: (N, F), features of the tables of all kernel calls.
            segments: (N,), index of the kernel call of each table.
            count: (B,), number of tables in each kernel call.
        """
        sums = segment_sums(self.table[:-1](features), segments, len(count))
        last = cast(nn.Linear, self.table[-1])
        costs: torch.Tensor = self.head(sums @ last.weight.T + count[:, None] * last.bias)
        return costs


def segment_sums(values: torch.Tensor, segments: torch.Tensor, num_segments: int) -> torch.Tensor:
    """Sum the N rows of `values`, (N, K), by segment, and return the sums of the K columns for each of the
    B = `num_segments` segments, (B, K). `segments`, (N,), has the index of the segment that each row belongs to.

    If a linear layer precedes a sum, it is cheaper to sum first: the layer then sees B rows instead of N.
    """
    return values.new_zeros(num_segments, values.shape[1]).index_add(0, segments, values)


def to_mlp(trained: nn.Module) -> Mlp:
    """Return the linear layers of `trained` as an `Mlp`, a network that predicts in NumPy, without PyTorch."""
    layers = linear_layers(trained)
    weights = tuple(layer.weight.detach().numpy().T.copy() for layer in layers)
    return Mlp(weights, tuple(layer.bias.detach().numpy().copy() for layer in layers))


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a network, in order."""
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


class MonotoneNetwork(nn.Module):
    """A network of linear layers with ReLU between the layers. The weights of the layers have fixed signs, so that the
    outputs are monotone in the inputs.

    Every input has a sign: if the input grows, the outputs never fall (1), never rise (-1), or may do either (0).
    Hidden units have alternating signs, and the weight between two units has the product of their signs. So no path
    from an input to an output has the wrong sign, and units of both signs can bend outputs up and down. The exported
    network is a plain one.

    Weights that are drawn with the wrong sign are 0 and stay 0. Networks whose weights all start with the right sign
    see little more than the sum of their inputs, and fit worse.
    """

    def __init__(self, signs: Sequence[int], hidden: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.network = perceptron((len(signs), *hidden, outputs))
        self._layers = linear_layers(self.network)
        ends = [*(alternating(width) for width in hidden), torch.ones(outputs)]
        starts = [torch.tensor(signs, dtype=torch.float32), *ends[:-1]]
        self._signs = [end[:, None] * start[None, :] for start, end in zip(starts, ends, strict=True)]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the network, (..., outputs), for `inputs` (..., F) with F features each."""
        hidden = inputs
        for i, (layer, sign) in enumerate(zip(self._layers, self._signs, strict=True)):
            hidden = nn.functional.linear(
                torch.relu(hidden) if i else hidden, _with_sign(layer.weight, sign), layer.bias
            )
        return hidden

    def to_mlp(self) -> Mlp:
        """Return this network as an `Mlp`, which predicts in NumPy, without PyTorch. Weights with a wrong sign are set
        to 0.
        """
        with torch.no_grad():
            for layer, sign in zip(self._layers, self._signs, strict=True):
                layer.weight.copy_(_with_sign(layer.weight, sign))
        return to_mlp(self.network)

    def load(self, mlp: Mlp) -> None:
        """Copy the weights of a network with the same widths into this network.

        Raises:
            UserError: the weights do not have the signs that this network's weights must have.
        """
        for layer, sign, columns, bias in zip(self._layers, self._signs, mlp.weights, mlp.biases, strict=True):
            weight = torch.from_numpy(columns.T.copy())
            if (_with_sign(weight, sign) != weight).any():
                raise UserError(
                    "init-weight-signs",
                    "a cost model of init has weights of the wrong sign",
                    limit="with these weights predicted costs fall where costs must rise, and such a model can't be "
                    "fine-tuned",
                    remedy="Remove init, or start from other models, such as init=cpu",
                )
            with torch.no_grad():
                layer.weight.copy_(weight)
                layer.bias.copy_(torch.from_numpy(bias.copy()))


def alternating(count: int) -> torch.Tensor:
    """Return alternating signs, (count,): 1, -1, 1, ..."""
    return 1 - 2 * (torch.arange(count) % 2).to(torch.float32)


def _with_sign(weight: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
    """Return the weights, with 0 in place of each weight whose sign is opposite to `sign`."""
    return weight * (weight.detach() * sign >= 0)
