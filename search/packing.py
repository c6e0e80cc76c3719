"""Packing by bytes alone: whether anything fits, and what to give the devices when nothing does.

Items can be cut at every 4 columns, so what is packed are slices of 4 columns, all of an item's of about equal size.
Items go in descending size of a slice, as much of each as fits to the device with the most room left; only when less
than one slice is free everywhere does a packing fail, so without constraints it fails only close to the limit.
"""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from neuroshard.arrays import BoolArray, IntArray
from neuroshard.search.sizes import Sizes

_EXACT_LIMIT_S = 2.0  # saying that nothing fits must not take long
_MOST_UNKNOWNS = 2000
_PRECISION = 1.002  # of the smallest factor that is reported


def pack(sizes: Sizes, memory_bytes: IntArray) -> IntArray | None:
    """`held` (I, D) that keeps within memory_bytes (D,) and the items' limits, with few cuts; None if none is found."""
    held = np.zeros((sizes.num_items, len(memory_bytes)), dtype=np.int64)
    free = memory_bytes.astype(np.int64)
    slice_bytes = sizes.size_bytes[sizes.first + np.where(sizes.items.limits.max_shards > 1, 1, sizes.full_width)]
    for item in np.lexsort((-slice_bytes, ~sizes.items.confined)).tolist():
        rivals = held[sizes.items.rivals_of(item)].any(axis=0)
        if not _pack_item(sizes, item, free, sizes.items.limits.allowed[item] & ~rivals, held[item]):
            return None
    return held


def pack_exactly(sizes: Sizes, memory_bytes: IntArray) -> IntArray | None:
    """As `pack`, by integer programming: finds a packing wherever there is one, if it can in two seconds.

    For tasks without limits on shards and without bytes that every shard takes anew; None for others.
    """
    slices = sizes.size_bytes[sizes.first + 1]
    limits, width = sizes.items.limits, sizes.full_width
    linear = bool((sizes.size_bytes[sizes.whole] == slices * width).all())
    limited = (limits.min_shards > 1) | (limits.max_shards < width) | (limits.min_width > 1)
    if not linear or sizes.items.confined.any() or limited.any():
        return None
    num_items, num_devices = len(slices), len(memory_bytes)
    if num_items * num_devices > _MOST_UNKNOWNS:
        return None
    scale = float(memory_bytes.max())
    placed = LinearConstraint(np.kron(np.eye(num_items), np.ones(num_devices)), width, width)
    fits = LinearConstraint(np.kron(slices / scale, np.eye(num_devices)), -np.inf, memory_bytes / scale)
    unknowns = num_items * num_devices
    bounds = Bounds(0, np.repeat(width, num_devices))
    answer = milp(
        np.zeros(unknowns), integrality=np.ones(unknowns, dtype=np.int64), bounds=bounds, constraints=[placed, fits],
        options={"time_limit": _EXACT_LIMIT_S},
    )  # fmt: skip
    if answer.x is None:
        return None
    held: IntArray = np.round(answer.x).astype(np.int64).reshape(num_items, num_devices)
    fitting = (sizes.size_bytes[sizes.first[:, None] + held].sum(axis=0) <= memory_bytes).all()
    return held if fitting and (held.sum(axis=1) == width).all() else None


def _pack_item(sizes: Sizes, item: int, free: IntArray, open_to: BoolArray, held: IntArray) -> bool:
    """Put all of an item on devices `open_to` (D,) it, changing `free` and `held`, both (D,); False if it can't be."""
    left, shards = int(sizes.full_width[item]), 0
    limits = sizes.items.limits
    least, most, narrowest = int(limits.min_shards[item]), int(limits.max_shards[item]), int(limits.min_width[item])
    size = sizes.size_bytes[sizes.first[item] : sizes.first[item] + left + 1]
    for device in sorted(np.flatnonzero(open_to).tolist(), key=lambda device: (-free[device], device)):
        fitting = int(np.searchsorted(size, free[device], side="right")) - 1
        width = min(left - narrowest * max(least - shards - 1, 0), fitting)
        if 0 < left - width < narrowest:
            width = left - narrowest
        if shards == most - 1 and width < left:
            return False
        if width < narrowest:
            return False
        held[device], left, shards = width, left - width, shards + 1
        free[device] -= size[width]
        if not left:
            return True
    return False


def smallest_factor(sizes: Sizes, memory_bytes: IntArray) -> float | None:
    """How many times memory_bytes (D,) are enough for `pack`, within 0.2%; None if no amount is."""
    total = int(sizes.size_bytes[sizes.whole].sum()) + int(sizes.size_bytes[sizes.first + 1].sum())
    low, high = 0.0, max(2.0 * total / max(int(memory_bytes.min()), 1), 1.0) * 2
    if pack(sizes, _scaled(memory_bytes, high)) is None:
        return None
    while high > max(low, 1e-9) * _PRECISION:
        middle = (low + high) / 2
        if pack(sizes, _scaled(memory_bytes, middle)) is None:
            low = middle
        else:
            high = middle
    return high


def _scaled(memory_bytes: IntArray, factor: float) -> IntArray:
    scaled: IntArray = np.ceil(memory_bytes * factor).astype(np.int64)
    return scaled
