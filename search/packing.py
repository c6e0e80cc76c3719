"""Packing by bytes alone: whether anything fits, and what to give the devices when nothing does.

Tables can be cut at every 4 columns, so what is packed are slices of 4 columns, all of a table's of equal size.
Slices go in descending size to the device with the most room left; only when less than one slice is free everywhere
does a packing fail, so it fails only close to the limit.
"""

import heapq

import numpy as np

from neuroshard.arrays import IntArray
from neuroshard.search.catalog import Catalog

_PRECISION = 1.002  # of the smallest cap that is reported


def pack(catalog: Catalog, memory_bytes: IntArray) -> IntArray | None:
    """`held` (T, D) that keeps within memory_bytes (D,), with few cuts; None if none is found."""
    slice_bytes = catalog.size_bytes[catalog.first + 1]
    held = np.zeros((catalog.num_tables, len(memory_bytes)), dtype=np.int64)
    room = [(-int(free), device) for device, free in enumerate(memory_bytes)]
    heapq.heapify(room)
    for table in np.argsort(-slice_bytes, kind="stable"):
        left, size = int(catalog.full_width[table]), int(slice_bytes[table])
        while left:
            free, device = heapq.heappop(room)
            fitting = min(left, -free // size)
            if not fitting:
                return None
            held[table, device] += fitting
            left -= fitting
            heapq.heappush(room, (free + fitting * size, device))
    return held


def smallest_cap(catalog: Catalog, num_devices: int) -> int:
    """Bytes on each device, within 0.2%, for which `pack` finds a plan."""
    slices = catalog.size_bytes[catalog.first + 1]
    low = max(-(-int(catalog.size_bytes[catalog.first + catalog.full_width].sum()) // num_devices), int(slices.max()))
    high = low
    while pack(catalog, np.full(num_devices, high)) is None:
        low, high = high, 2 * high
    while high > low * _PRECISION + 1:
        middle = (low + high) // 2
        if pack(catalog, np.full(num_devices, middle)) is None:
            low = middle
        else:
            high = middle
    return high
