"""What devices exchange in a step: what communication models are asked with."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from neuroshard.arrays import FloatArray, IntArray

ELEMENT_BYTES = 4  # pooled embeddings and their gradients travel as fp32


class Collective(IntEnum):
    """How devices exchange, by its place on the last axis of `Traffic.size_bytes`."""

    ALL_TO_ALL = 0  # of pooled embeddings, or of their gradients on the way back


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
