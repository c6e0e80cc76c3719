"""A buffer of CPU memory that all prepared kernel calls with weights of one data type share for their weights.
All pages of the buffer are allocated before kernel calls are timed.

If each sample allocated new weights, page faults would take longer than the kernels. It does not matter to a measured
time that the rows of operators overlap: the cache is flushed before every run, and each operator starts at a random
place.
"""

from pathlib import Path

import numpy as np
import torch

_ALIGNMENT_BYTES = 4096
_TILE_ELEMENTS = 1 << 20
_LARGEST_SHARE = 0.9  # of the available memory; indices, outputs and other processes need the rest


class Arena:
    """A buffer in CPU memory, of a single dtype, that grows when more elements are needed."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._buffer = torch.empty(0, dtype=dtype)

    def reserve(self, elements: int) -> None:
        """Grow the buffer to `elements` elements if the buffer is smaller. All memory of the grown buffer is paged in.
        Tensors that were taken from the buffer earlier stay valid.

        Raises:
            MemoryError: the machine does not have enough free memory.
        """
        if elements <= len(self._buffer):
            return
        check_room(elements * self._buffer.element_size())
        self._buffer = _touched(elements, self._buffer.dtype)

    def view(self, elements: int, rng: np.random.Generator) -> torch.Tensor:
        """Return a view of `elements` consecutive elements of the buffer, (elements,), that starts at a random page."""
        self.reserve(elements)
        step = _ALIGNMENT_BYTES // self._buffer.element_size()
        start = step * int(rng.integers((len(self._buffer) - elements) // step + 1))
        return self._buffer[start : start + elements]


def _touched(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor, (elements,), that is filled with small random numbers.
    All memory of the tensor is paged in, because all of it was written.

    The values are neither zeros, which share a page, nor denormals, which are slow.
    """
    tile = torch.randn(min(elements, _TILE_ELEMENTS), generator=torch.Generator().manual_seed(0)).mul_(0.01).to(dtype)
    buffer = torch.empty(elements, dtype=dtype)
    for start in range(0, elements, len(tile)):
        chunk = buffer[start : start + len(tile)]
        chunk.copy_(tile[: len(chunk)])
    return buffer


def check_room(needed_bytes: int) -> None:
    """Raise MemoryError if the machine does not have enough free memory for `needed_bytes` more bytes of weights."""
    free = available_bytes()
    if needed_bytes > _LARGEST_SHARE * free:
        raise MemoryError(f"out of memory: {needed_bytes / 2**30:.2f} GiB of weights, {free / 2**30:.2f} GiB available")


def available_bytes() -> int:
    """Return the bytes of memory that are available without swapping, as Linux reports in `/proc/meminfo`."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
