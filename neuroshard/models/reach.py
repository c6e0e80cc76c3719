"""How far models of other forms than columns reach: what was measured of each part, by name."""

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.loads import LoadSets
from neuroshard.traffic import Traffic


def of_calls(calls: LoadSets) -> dict[str, FloatArray]:
    """What kernel calls of one form hang on, (n,) or (B,) each; calls with nothing to do left out."""
    loads = calls.loads
    return {
        "rows": loads.rows,
        "dim": loads.dim,
        "lookups of a sample": loads.pooling_factor,
        "outputs of a sample": loads.outputs / loads.samples,
        "bytes per element": loads.bytes_per_element,
        "samples": loads.samples,
        "tables in a call": calls.counts[calls.counts > 0].astype(np.float64),
    }


def of_exchanges(alone: Traffic) -> dict[str, FloatArray]:
    """What exchanges of one collective hang on, from its traffic by itself: (B,) or (B D,); idle groups left out."""
    given = alone.size_bytes[..., 0]
    held = given[given.sum(axis=1) > 0]
    return {"devices": np.full(len(held), float(alone.num_devices)), "bytes from a device": held.ravel()}
