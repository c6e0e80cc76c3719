"""Packing by integer programming: a solver fits all items into the memory of the devices. The solver finds packings
that nearly fill the memory, where placing the items in order of size may find none.

The bytes of a shard are a fixed amount (buffers, rowwise state) and an amount for every unit of 4 columns. So the
program has two unknowns for each item on each device: the units there, and whether there are any.
"""

from typing import Any

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.stages.search.published.shard_table import PlacementRules, ShardTable
from neuroshard.stages.search.space.room import keeps_rules
from neuroshard.stages.search.space.search_space import SearchSpace

_MOST_UNKNOWNS = 4000  # with more unknowns, a single node of the solver's tree takes long
_EFFORT = 400_000  # unknowns x nodes: counted, so that every machine gives the same answer
_SCALE = 1 << 20  # memory of a device in the program: the solver computes exactly with numbers up to this
_MARGINS = (0, 4)  # memory left free, in units of 1 / _SCALE: rounded bytes may make the first packing too large


def pack_exactly(space: SearchSpace, memory_bytes: IntArray) -> IntArray | None:
    """Return a packing of all items (tables, pinned shards, or tables kept together), found by integer programming.
    Return None if no packing is found.
    The packing is an array (I, D): the width of each of I items on each of D devices, in units of 4 columns. The
    packing fits in memory_bytes (D,) and keeps the rules of the items.

    None does not prove that there is no packing: the task may be too large, or the solver may have used up its budget.
    """
    for margin in _MARGINS:
        widths = _solved(space.shards, memory_bytes, margin)
        if widths is None or keeps(space.shards, widths, memory_bytes):
            return widths
    return None


def _solved(shards: ShardTable, memory_bytes: IntArray, margin: int) -> IntArray | None:
    """Return the packing that the solver finds. Return None if the solver finds no packing, or if there are no items or
    too many unknowns for the solver. The packing is an array (I, D): the width of each of I items on each of D devices,
    in units of 4 columns.

    On devices with large memory, the solver computes with rounded bytes, so the packing may need slightly more memory
    than such a device has. To make this less likely, the solver leaves `margin` units of memory free on such a device.
    A unit is 1 / `_SCALE` of the memory of the device.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import: only where it is used
    from scipy.sparse import block_diag, coo_array, eye_array, hstack, kron

    rules, width = shards.rules, shards.full_width
    count, devices = rules.allowed.shape
    unknowns = 2 * count * devices
    if not 0 < unknowns <= _MOST_UNKNOWNS:
        return None
    whole = np.minimum(rules.max_shards, rules.allowed.sum(axis=1)) == 1
    narrowest = np.where(whole, width, rules.min_width)
    cells = eye_array(count * devices)
    over_devices = kron(eye_array(count), np.ones((1, devices)))
    pairs = _rival_pairs(rules)
    apart, no_units = kron(pairs, eye_array(devices)), coo_array((len(pairs) * devices, count * devices))
    counts = _joined(width, rules.min_shards), _joined(width, rules.max_shards)
    rows: tuple[tuple[Any, Any, Any], ...] = (
        (block_diag([over_devices, over_devices]), *counts),
        (hstack([cells, -kron(np.diag(narrowest), eye_array(devices))]), 0, np.inf),
        (hstack([cells, -kron(np.diag(width), eye_array(devices))]), -np.inf, 0),
        (hstack([no_units, apart]), -np.inf, 1),
        _bytes_fit(shards, whole, memory_bytes, margin),
    )
    answer: Any = milp(
        np.zeros(unknowns),
        integrality=np.ones(unknowns, dtype=np.int64),
        bounds=Bounds(0, _joined((rules.allowed * width[:, None]).ravel(), rules.allowed.ravel().astype(np.int64))),
        constraints=[LinearConstraint(matrix, lower, upper) for matrix, lower, upper in rows if matrix.shape[0]],
        options={"node_limit": max(1, _EFFORT // unknowns)},
    )
    if answer.x is None:
        return None
    widths: IntArray = np.round(answer.x[: count * devices]).astype(np.int64).reshape(count, devices)
    return widths


def _bytes_fit(
    shards: ShardTable, whole: BoolArray, memory_bytes: IntArray, margin: int
) -> tuple[FloatArray, float, FloatArray]:
    """Return a linear constraint for the solver: the shards on each device fit in the memory of the device. The
    constraint is a triple: a matrix (D, n), a lower limit and the upper limits (D,), for D devices and n unknowns of
    the solver. The matrix times the unknowns is the used memory of each device, and the upper limits are the memory of
    the devices.

    If the bytes of a device are rounded, `margin` is subtracted from the upper limit. The lower limit is minus
    infinity, that is, no limit. The unit of memory can be different on each device.
    """
    entry = shards.first + 1
    unit = np.where(whole, 0, shards.size_bytes[np.minimum(entry + 1, shards.whole)] - shards.size_bytes[entry])
    fixed = np.where(whole, shards.size_bytes[shards.whole], shards.size_bytes[entry] - unit)
    common = max(int(np.gcd.reduce(_joined(unit, fixed))), 1)  # memory is used in multiples of it
    memory = np.maximum(memory_bytes, 0) // common
    scale = np.maximum(memory / _SCALE, 1)
    weights, devices = np.zeros((len(memory), 2, shards.num_items, len(memory))), np.arange(len(memory))
    for which, size in enumerate((unit, fixed)):
        scaled = size // common / scale[:, None]
        weights[devices, which, :, devices] = np.minimum(scaled, 2 * _SCALE)  # larger shards do not fit anyway
    return weights.reshape(len(memory), -1), -np.inf, memory / scale - np.where(scale > 1, margin, 0)


def keeps(shards: ShardTable, widths: IntArray, memory_bytes: IntArray) -> bool:
    """Return True if a packing is valid: all columns of the items are placed, the rules of the items are kept, and the
    shards fit in the memory of the devices. The packing is `widths` (I, D): the width of each of I items on each of D
    devices, in units of 4 columns. `memory_bytes` (D,) is the memory of each device.

    This function computes with exact bytes, while the solver computes with rounded bytes.
    """
    size = [sum(column) for column in shards.size_bytes[shards.first[:, None] + widths].T.tolist()]
    return bool(
        (widths.sum(axis=1) == shards.full_width).all()
        and keeps_rules(shards.rules, widths)
        and all(used <= room for used, room in zip(size, memory_bytes.tolist(), strict=True))
    )


def _rival_pairs(rules: PlacementRules) -> IntArray:
    """Return the P pairs of items that may not share a device, as an array (P, I) with one row for each pair. An entry
    is 1 for the two items of the pair, and 0 for all other items.
    """
    pairs = [
        (one, other) for one in range(len(rules.min_shards)) for other in rules.rivals_of(one).tolist() if one < other
    ]
    both = np.zeros((len(pairs), len(rules.min_shards)), dtype=np.int64)
    both[np.repeat(np.arange(len(pairs)), 2), np.array(pairs, dtype=np.int64).ravel()] = 1
    return both


def _joined(of_units: IntArray, of_presence: IntArray) -> IntArray:
    joined: IntArray = np.concatenate([of_units, of_presence])
    return joined
