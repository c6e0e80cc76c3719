"""What a kernel call saves where none of its tables is wide, as numbers beside a sum over tables."""

from dataclasses import dataclass, replace

import numpy as np

from neuroshard.models.interface import ReluHead
from neuroshard.plumbing.arrays import Float32Array, FloatArray

_WIDER = 65536.0  # in units of the costs: more than narrow tables save on any device


@dataclass(frozen=True, eq=False)
class NarrowCalls:
    """Shares of costs that a call saves where none of its tables is wider than some width.

    FBGEMM's CUDA kernels give every row as many threads as the call's widest table needs (8 up to 32 columns, 16 up to
    64, else 32) and as many registers: a narrow table costs less beside others as narrow. So of each table there are
    numbers d_w, one for each width w: the part of its cost that is saved where none is wider, negative and larger than
    any sum of them where it is wider itself. Then relu(sum of d_w) is what the set saves by w. A share of a cost is
    below 1, so that a table more never makes a set cheaper.

    Attributes:
        widths: (W,) rising.
        shares: (W,) of the part of a cost that the next larger width leaves, what this one saves.
    """

    widths: tuple[int, ...]
    shares: Float32Array

    def saved_of(self, cost: Float32Array, dim: FloatArray) -> Float32Array:
        """Compute d_w of loads, (n, W), from their costs beside wide ones, (n,), and their columns, (n,)."""
        saved = np.full((len(cost), len(self.widths)), -_WIDER, dtype=np.float32)
        left = cost.copy()
        for number in reversed(range(len(self.widths))):
            narrow = dim <= self.widths[number]
            saved[narrow, number] = left[narrow] * self.shares[number]
            left[narrow] -= saved[narrow, number]
        return saved

    def left_of(self, dim: FloatArray) -> FloatArray:
        """Compute the share of a cost that is left in a call whose widest table has so many columns, (n,)."""
        left: FloatArray = np.where(
            dim[:, None] <= np.array(self.widths), 1 - self.shares.astype(np.float64), 1.0
        ).prod(axis=1)
        return left

    def less_saved(self, head: ReluHead) -> ReluHead:
        """Extend a head of costs to vectors with these W numbers more."""
        bias = np.concatenate([head.bias, np.zeros(len(self.widths), np.float32)])
        weight = np.concatenate([head.weight, np.full(len(self.widths), -1, np.float32)])
        return replace(head, bias=bias, weight=weight)
