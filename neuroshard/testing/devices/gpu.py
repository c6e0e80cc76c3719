"""A made-up GPU, whose costs are arithmetic on warps, sectors and caches."""

from dataclasses import dataclass

import numpy as np

from neuroshard.cost.loads import LoadSets
from neuroshard.models import ComputeModel
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.tables.reuse import MEAN_COUNTS
from neuroshard.testing.devices.kernel_work import bounded_by, dense_update_bytes, hit_share, rounded_up, unique_rows
from neuroshard.words.form import ON_DEVICE_CALLS, Call

_SECTOR_BYTES = 32
_GRADIENT_BYTES = 4
_WARP_COLUMNS = 32


@dataclass(frozen=True)
class MadeUpGpu(ComputeModel):
    """One fused call forward and one backward, each as long as its tightest bound; not a sum over tables.

    Memory moves sectors of 32 bytes. All tables of a call share the L2, so each table's misses hang on all others. A
    call is bound by memory, by the L2, by instructions (one for every 32 columns of a lookup), or, backward, by the
    table whose updates crowd most on few rows.

    Attributes:
        launch_ms: of a call.
        memory_bytes_per_ms, l2_bytes_per_ms, l2_bytes: bandwidths and the cache's size.
        instruction_ms, sort_ms: of 32 columns of a lookup; of a lookup, when gradients are grouped by row.
        crowd_ms: of an update that waits for another one of the same row.
    """

    launch_ms: float = 0.03
    memory_bytes_per_ms: float = 3e9
    l2_bytes_per_ms: float = 8e9
    l2_bytes: float = 40e6
    instruction_ms: float = 1e-8
    sort_ms: float = 3e-8
    crowd_ms: float = 2e-6

    @property
    def calls(self) -> frozenset[Call]:
        """All of tables in device memory: blocks of rows as other tables, copies with an update of every row."""
        return frozenset(ON_DEVICE_CALLS)

    def predict(self, sets: LoadSets) -> FloatArray:
        """Compute (B,) ms of each of the B sets of loads."""
        dense = sets.totals(dense_update_bytes(sets.loads)) / self.memory_bytes_per_ms
        calls = 2 * self.launch_ms + self._forward_ms(sets) + self._backward_ms(sets) + dense
        cost: FloatArray = calls * (sets.counts > 0)
        return cost

    def _forward_ms(self, sets: LoadSets) -> FloatArray:
        loads, unique = sets.loads, unique_rows(sets.loads)
        sectors = rounded_up(loads.dim * loads.bytes_per_element, _SECTOR_BYTES)
        missed = 1 - hit_share(self.l2_bytes, sets.totals(unique * sectors))[sets.owners]
        moved = (unique + (loads.lookups - unique) * missed) * sectors + loads.outputs * loads.dim * _GRADIENT_BYTES
        return bounded_by(
            sets.totals(moved) / self.memory_bytes_per_ms,
            sets.totals(loads.lookups * sectors) / self.l2_bytes_per_ms,
            sets.totals(loads.lookups * np.ceil(loads.dim / _WARP_COLUMNS)) * self.instruction_ms,
        )

    def _backward_ms(self, sets: LoadSets) -> FloatArray:
        loads, unique = sets.loads, unique_rows(sets.loads)
        sectors = rounded_up(loads.dim * loads.bytes_per_element, _SECTOR_BYTES)
        gradients = rounded_up(loads.dim * _GRADIENT_BYTES, _SECTOR_BYTES)
        missed = 1 - hit_share(self.l2_bytes, sets.totals(loads.outputs * gradients))[sets.owners]
        again = np.maximum(loads.lookups - loads.outputs, 0) * missed
        moved = 2 * unique * sectors + (loads.outputs + again) * gradients
        crowd = np.zeros(len(sets))
        np.maximum.at(crowd, sets.owners, _rows_uses(loads.reuse))
        bound = bounded_by(
            sets.totals(moved) / self.memory_bytes_per_ms,
            sets.totals(loads.lookups * gradients) / self.l2_bytes_per_ms,
            sets.totals(loads.lookups * np.ceil(loads.dim / _WARP_COLUMNS)) * self.instruction_ms,
            crowd * self.crowd_ms,
        )
        return bound + sets.totals(loads.lookups) * self.sort_ms


def _rows_uses(reuse: FloatArray) -> FloatArray:
    """(n,) how often the row of a lookup is looked up, mean over lookups."""
    lookups = reuse * MEAN_COUNTS
    uses: FloatArray = (lookups @ MEAN_COUNTS) / lookups.sum(axis=1)
    return uses
