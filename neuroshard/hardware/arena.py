"""One block of touched memory that all live operators share.

Allocating each sample's weights afresh costs more time in page faults than the kernels take. Which rows overlap
does not matter to a timing: the cache is flushed before every run, and each operator starts at a random place.
"""

from pathlib import Path

import numpy as np
import torch

_ALIGNMENT_BYTES = 4096
_TILE_ELEMENTS = 1 << 20
_LARGEST_SHARE = 0.9  # of the available memory: the rest is for indices, outputs and everybody else


class Arena:
    """A growing buffer of one dtype on the CPU."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._buffer = torch.empty(0, dtype=dtype)

    def reserve(self, elements: int) -> None:
        """Touch memory for views of up to `elements`, or raise MemoryError; earlier views stay valid."""
        if elements <= len(self._buffer):
            return
        check_room(elements * self._buffer.element_size())
        self._buffer = _touched(elements, self._buffer.dtype)

    def view(self, elements: int, rng: np.random.Generator) -> torch.Tensor:
        """Return (elements,) of the buffer, from a random page boundary on."""
        self.reserve(elements)
        step = _ALIGNMENT_BYTES // self._buffer.element_size()
        start = step * int(rng.integers((len(self._buffer) - elements) // step + 1))
        return self._buffer[start : start + elements]


def _touched(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Fill memory with small normal values: neither zeros, which share a page, nor denormals, which are slow."""
    tile = torch.randn(min(elements, _TILE_ELEMENTS), generator=torch.Generator().manual_seed(0)).mul_(0.01).to(dtype)
    buffer = torch.empty(elements, dtype=dtype)
    for start in range(0, elements, len(tile)):
        chunk = buffer[start : start + len(tile)]
        chunk.copy_(tile[: len(chunk)])
    return buffer


def check_room(needed_bytes: int) -> None:
    """Raise MemoryError if the machine has no room for so many bytes of weights."""
    free = available_bytes()
    if needed_bytes > _LARGEST_SHARE * free:
        raise MemoryError(f"out of memory: {needed_bytes / 2**30:.2f} GiB of weights, {free / 2**30:.2f} GiB available")


def available_bytes() -> int:
    """Read how much memory the kernel says can be taken without swapping."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
