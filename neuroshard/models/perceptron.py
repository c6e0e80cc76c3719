"""Multi-layer perceptrons: the trainable networks of all cost models."""

from itertools import pairwise
from typing import Annotated

from msgspec import Meta
from torch import nn

Width = Annotated[int, Meta(ge=1, le=4096)]  # of a layer
Widths = Annotated[tuple[Width, ...], Meta(min_length=1, max_length=16)]
AnyWidths = Annotated[tuple[Width, ...], Meta(max_length=16)]  # empty: without this network


def perceptron(widths: tuple[int, ...]) -> nn.Sequential:
    """Return a trainable network of linear layers with the given widths, and with ReLU between the layers."""
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
