"""Bytes that a table takes on a device: weights and, where asked for, optimizer state and buffers of batches."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from neuroshard.arrays import IntArray
from neuroshard.checked import checked
from neuroshard.errors import unknown_name
from neuroshard.tables.columns import TableColumns

_FLOAT_BYTES = 4  # optimizer state, pooled embeddings and gradients are fp32
_INDEX_BYTES = 8

# Floats of optimizer state: for every element of the weights, and for every row of a shard.
_STATE_FLOATS = {"sgd": (0, 0), "rowwise_adagrad": (0, 1), "adam": (2, 0)}


@dataclass(frozen=True)
@checked
class MemoryUse:
    """What counts against a device's memory besides the weights.

    Attributes:
        optimizer: "sgd" keeps nothing, "rowwise_adagrad" a float for every row of a shard, "adam" two for every
            element.
        batches_in_flight: batches whose buffers are in memory at once: 0 counts no buffers, as the papers do; 1 is
            plain training, more are a pipeline that prefetches.
    """

    optimizer: str = "sgd"
    batches_in_flight: Annotated[int, Meta(ge=0, le=1000)] = 0

    def __post_init__(self) -> None:
        if self.optimizer not in _STATE_FLOATS:
            raise unknown_name("optimizer", self.optimizer, _STATE_FLOATS)

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
