"""Bytes that a table takes on a device: weights and, where asked for, optimizer state and buffers of batches."""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import IntArray
from neuroshard.errors import UserError, unknown_name
from neuroshard.tables.columns import TableColumns

_FLOAT_BYTES = 4  # optimizer state, pooled embeddings and gradients are fp32
_INDEX_BYTES = 8

_GIB, _MIB = 1 << 30, 1 << 20

# Floats of optimizer state: for every element of the weights, and for every row of a shard.
_STATE_FLOATS = {"sgd": (0, 0), "rowwise_adagrad": (0, 1), "adam": (2, 0)}


@dataclass(frozen=True)
class MemoryUse:
    """What counts against a device's memory besides the weights.

    Attributes:
        optimizer: "sgd" keeps nothing, "rowwise_adagrad" a float for every row of a shard, "adam" two for every
            element.
        batches_in_flight: batches whose buffers are in memory at once: 0 counts no buffers, as the papers do; 1 is
            plain training, more are a pipeline that prefetches.
    """

    optimizer: str = "sgd"
    batches_in_flight: int = 0

    def __post_init__(self) -> None:
        if self.optimizer not in _STATE_FLOATS:
            raise unknown_name("optimizer", self.optimizer, _STATE_FLOATS)
        if not isinstance(self.batches_in_flight, int) or self.batches_in_flight < 0:
            raise UserError(f"memory: batches_in_flight={self.batches_in_flight!r} must be a whole number, 0 or more")

    def state_bytes(self, shards: TableColumns) -> IntArray:
        """(n,) bytes of the weights and optimizer state of n shards: what moves when a shard moves."""
        per_element, per_row = _STATE_FLOATS[self.optimizer]
        element_bytes = shards.bytes_per_element + per_element * _FLOAT_BYTES
        state: IntArray = (shards.rows * (shards.dim * element_bytes + per_row * _FLOAT_BYTES)).astype(np.int64)
        return state

    def shard_bytes(self, shards: TableColumns, batch_size: int) -> IntArray:
        """(n,) bytes of n shards with their part of the buffers, at a global batch size.

        A batch's buffers are a shard's indices and offsets, and its pooled embeddings and their gradients for all
        samples.
        """
        inputs = _INDEX_BYTES * batch_size * (shards.pooling_factor + 1)
        outputs = 2 * _FLOAT_BYTES * batch_size * shards.dim
        buffers = self.batches_in_flight * np.ceil(inputs + outputs).astype(np.int64)
        return self.state_bytes(shards) + buffers

    def received_bytes(self, total_dim: int, batch_size: int, num_devices: int) -> int:
        """Bytes on every device, whatever the plan, of the embeddings (and gradients) of its own samples."""
        own_samples = -(-batch_size // num_devices)
        return self.batches_in_flight * 2 * _FLOAT_BYTES * own_samples * total_dim


def readable_bytes(size_bytes: float) -> str:
    """The size for people."""
    return f"{size_bytes / _GIB:.3g} GiB" if size_bytes >= _GIB / 100 else f"{size_bytes / _MIB:.3g} MiB"
