"""What devices are called to do in a step: kernels by call, and counts that other parts of a step hang on."""

from typing import NamedTuple

from neuroshard.plumbing.arrays import FloatArray, IntArray


class Called(NamedTuple):
    """What D devices of B plans do, by the K kernel calls in `CALLS`.

    Attributes:
        ms: (B, D, K) of kernels.
        spread_ms: (B, D, K) by which the models' members disagree; zeros where nobody asks.
        shards: (B, D, K) that each call looks up in.
        counts: (B, D, C) of `COUNTS`; C = 0 where no part of a step hangs on them.
    """

    ms: FloatArray
    spread_ms: FloatArray
    shards: IntArray
    counts: FloatArray

    def beside(self, other: "Called") -> "Called":
        """These calls and others that the same devices make besides."""
        ms, spread_ms = self.ms + other.ms, self.spread_ms + other.spread_ms
        return Called(ms, spread_ms, self.shards + other.shards, self.counts + other.counts)
