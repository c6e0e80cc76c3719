"""Fitting what tables in host memory cost: the figures of `HostTiers`, none negative, of the least relative error."""

from collections.abc import Sequence

import numpy as np

from neuroshard.models.host_tiers import HostTiers, host_amounts
from neuroshard.plumbing.arrays import FloatArray, sums_of
from neuroshard.records.sample_loads import loads_of
from neuroshard.records.samples import ComputeSample, Measurement

_LEAST_MS = 1e-6  # what takes no time at all would outweigh everything else
_TINY = 1e-12


def fit_host_tiers(measurements: Sequence[Measurement[ComputeSample]]) -> HostTiers:
    """Fit the figures that say best what kernel calls of one type took, of tables in host memory; each has repeats.

    They are solved for at once, and what was measured says less the more alike the samples are: figures that it doesn't
    tell apart may take each other's place.
    """
    from scipy.optimize import nnls  # slow to import: only where it is used

    calls = loads_of([m.sample for m in measurements])
    cost_ms = np.array([m.typical_ms for m in measurements])
    sums = np.column_stack([sums_of(host_amounts(calls.loads), calls.counts), np.ones(len(calls))])
    amounts: FloatArray = sums / np.maximum(cost_ms, _LEAST_MS)[:, None]
    unit = np.maximum(amounts.max(axis=0), _TINY)  # amounts are of very different sizes
    solved, _ = nnls(amounts / unit, np.ones(len(amounts)))
    return HostTiers(*(solved / unit).tolist())
