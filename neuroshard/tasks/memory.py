"""Bytes that a table takes on a device: weights and, where asked for, optimizer state and buffers of batches."""

from dataclasses import dataclass
from math import ceil
from typing import Annotated

import numpy as np
from msgspec import Meta

from neuroshard.arrays import FloatArray, IntArray
from neuroshard.checked import checked
from neuroshard.errors import UserError, unknown_name
from neuroshard.loads import Loads
from neuroshard.plans.form import FORMS, Form
from neuroshard.plans.shard import TIERS, Tier
from neuroshard.units import MAX_BYTES

_FLOAT_BYTES = 4  # optimizer state, pooled embeddings and gradients are fp32
_INDEX_BYTES = 8

# Floats of optimizer state: for every element of the weights, and for every row of a shard.
_STATE_FLOATS = {"sgd": (0, 0), "rowwise_adagrad": (0, 1), "adam": (2, 0)}


@dataclass(frozen=True)
@checked
class MemoryUse:
    """What counts against a device's memory besides the weights. Bytes are exact, or refused beyond 2^60.

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

    def state_bytes(self, loads: Loads) -> IntArray:
        """(n,) bytes of the weights and optimizer state of n loads: what moves when a shard moves."""
        per_element, per_row = _STATE_FLOATS[self.optimizer]
        element_bytes = _whole(loads.bytes_per_element) + per_element * _FLOAT_BYTES
        row_bytes = _whole(loads.dim) * element_bytes + per_row * _FLOAT_BYTES
        state: IntArray = _whole(loads.rows) * row_bytes  # below 2^60 for every table there may be
        return state

    def device_bytes(self, loads: Loads) -> IntArray:
        """(n,) bytes of device memory that n loads take; see `tier_bytes`."""
        return self.tier_bytes(loads)[:, TIERS.index(Tier.DEVICE)]

    def tier_bytes(self, loads: Loads) -> IntArray:
        """(n, M) bytes that n loads take of every tier of memory, with their part of the buffers.

        A batch's buffers are a load's indices and offsets, and its outputs and their gradients; they lie in device
        memory. Blocks of rows have pooled embeddings of all samples, as column shards have; those of a copy are
        what the device's own samples receive (`received_bytes`). Where buffers count, so does a copy's gradient: an
        fp32 for each of its elements, once.

        Raises:
            UserError: a load takes more than 2^60 bytes.
        """
        copied = loads.form == FORMS.index(Form.COPIES)
        outputs = np.where(copied, 0, _times(_whole(np.ceil(loads.outputs)), 2 * _FLOAT_BYTES * _whole(loads.dim)))
        buffers = _index_bytes(loads.lookups) + _index_bytes(loads.bags) + outputs  # (n,) of a batch, below 2^61
        gradient = np.where(copied, _FLOAT_BYTES * _whole(loads.rows) * _whole(loads.dim), 0)
        size = self.state_bytes(loads) + _times(buffers, self.batches_in_flight)
        size = size + gradient * min(self.batches_in_flight, 1)
        if (size > MAX_BYTES).any():
            raise UserError(
                f"memory: a table takes more than 2^60 bytes with its optimizer state ({self.optimizer}) and the "
                f"buffers of {self.batches_in_flight} batches of {int(loads.samples.max())} samples; "
                "count fewer batches in flight"
            )
        in_tiers = np.zeros((len(loads), len(TIERS)), dtype=np.int64)
        in_tiers[np.arange(len(loads)), loads.tier] = size
        return in_tiers

    def received_bytes(self, output_columns: float, batch_size: int, num_devices: int) -> int:
        """Bytes on every device, whatever the plan, of the embeddings (and gradients) of its own samples.

        A sample gets `output_columns` of all tables together.
        """
        own_samples = -(-batch_size // num_devices)
        return self.batches_in_flight * 2 * _FLOAT_BYTES * ceil(own_samples * output_columns)


def _whole(values: FloatArray) -> IntArray:
    """Whole numbers held as float64, as tables' rows and dims are: below 2^53 nothing is lost."""
    whole: IntArray = values.astype(np.int64)
    return whole


def _times(size: IntArray, count: int | IntArray) -> IntArray:
    """Sizes (n,), so many times, for all or (n,); 2^60 + 1 where it is more than 2^60: it must not wrap around."""
    most = np.where(np.equal(count, 0), np.iinfo(np.int64).max, MAX_BYTES // np.maximum(count, 1))
    product: IntArray = np.where(size > most, MAX_BYTES + 1, np.minimum(size, most) * count)
    return product


def _index_bytes(count: FloatArray) -> IntArray:
    """(n,) bytes of so many indices or offsets, rounded up; multiplying by a power of two is exact."""
    index_bytes: IntArray = np.ceil(_INDEX_BYTES * count).astype(np.int64)
    return index_bytes
