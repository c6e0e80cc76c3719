"""What devices exchange in a step: what communication models are asked with."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from neuroshard.arrays import FloatArray, IntArray

ELEMENT_BYTES = 4  # pooled embeddings and gradients travel as fp32
INDEX_BYTES = 8  # so do indices, and the number of them in each sample, as 64 bits


class Collective(IntEnum):
    """How devices exchange, by its place on the last axis of `Traffic.size_bytes`.

    Attributes:
        ALL_TO_ALL: columns: pooled embeddings go to the devices of their samples, their gradients come back.
        REDUCE_SCATTER: blocks of rows on all devices: every device has a part of every pooled embedding; the parts are
            added up on the devices of their samples. On the way back an all-gather brings every device all gradients.
        HOST_REDUCE_SCATTER: the same among the devices of each host, of blocks of rows on those of one host.
        HOST_ALL_TO_ALL: what they have then added up goes to other hosts, each device's to those with its place there;
            gradients come back so, before they are gathered.
        ALL_REDUCE: copies: gradients of all their weights are added up everywhere; on the way back only.
        INPUT: indices and lengths that come to a device for its shards, before anything else; none for copies.
    """

    ALL_TO_ALL = 0
    REDUCE_SCATTER = 1
    HOST_REDUCE_SCATTER = 2
    HOST_ALL_TO_ALL = 3
    ALL_REDUCE = 4
    INPUT = 5


@dataclass(frozen=True, eq=False)
class Traffic:
    """B exchanges between D devices each.

    Attributes:
        size_bytes: (B, D, C) that the shards on each device give out for all samples of a batch, by collective; on
            the way back as many come in.
        batch_size: (B,) samples over all devices.
    """

    size_bytes: FloatArray
    batch_size: IntArray

    @classmethod
    def of_columns(cls, dims: FloatArray | IntArray, batch_size: int | IntArray) -> "Traffic":
        """Of column shards: (B, D) columns on each device, at a global batch size, one for all or (B,)."""
        sizes = np.broadcast_to(np.asarray(batch_size, dtype=np.int64), len(dims))
        return cls((dims * (ELEMENT_BYTES * sizes.astype(np.float64))[:, None])[..., None], sizes)

    def __len__(self) -> int:
        return len(self.size_bytes)

    @property
    def num_devices(self) -> int:
        """D."""
        return int(self.size_bytes.shape[1])

    @property
    def columns(self) -> FloatArray:
        """(B, D) columns whose pooled embeddings each device gives out."""
        pooled = self.size_bytes[..., Collective.ALL_TO_ALL]
        columns: FloatArray = pooled / (ELEMENT_BYTES * self.batch_size.astype(np.float64))[:, None]
        return columns
