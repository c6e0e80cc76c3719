"""Kernels of made-up devices, whose costs are computed from caches, vector registers, warps, sectors and memory."""

from dataclasses import dataclass, fields

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.layouts import are
from neuroshard.models import ComputeModel
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.tables.reuse import MEAN_COUNTS
from neuroshard.words.collective import ELEMENT_BYTES
from neuroshard.words.form import ON_DEVICE_CALLS

_SHARPNESS = 4.0  # of the transition between bounds
_LINE_BYTES = 64
_GRADIENT_BYTES = 4
_LANES = 16
_LEAST_REST, _MOST_REST = 1.0, 3.0
_SECTOR_BYTES = 32
_WARP_COLUMNS = 32


def unique_rows(loads: Loads) -> FloatArray:
    """Return the unique rows (n,) that a batch looks up."""
    lookups = np.maximum(loads.lookups, 1)
    unique: FloatArray = np.clip(lookups / (loads.reuse @ MEAN_COUNTS), 1, np.minimum(loads.rows, lookups))
    return unique


def rounded_up(size_bytes: FloatArray, piece_bytes: int) -> FloatArray:
    """Round bytes (n,) up to whole pieces, in which memory is moved."""
    whole: FloatArray = np.ceil(size_bytes / piece_bytes) * piece_bytes
    return whole


def hit_share(cache_bytes: float, used_bytes: FloatArray) -> FloatArray:
    """Return the hit rates (n,) of repeated lookups in a cache: 1 if all rows fit, else those of the hottest rows."""
    share: FloatArray = np.minimum(1.0, np.sqrt(cache_bytes / np.maximum(used_bytes, 1.0)))
    return share


def bounded_by(*times_ms: FloatArray) -> FloatArray:
    """Return approximately the largest of overlapping times (n,), in ms; times near the largest add to it."""
    largest: FloatArray = sum(time**_SHARPNESS for time in times_ms) ** (1 / _SHARPNESS)
    return largest


def dense_update_bytes(loads: Loads) -> FloatArray:
    """Return the bytes (n,) of a dense update, 0 if not dense: gradients cleared and read, weights read and written."""
    dense = are(loads, lambda layout: layout.dense)
    moved: FloatArray = 2 * loads.rows * loads.dim * (loads.bytes_per_element + ELEMENT_BYTES) * dense
    return moved


class _OnDevice(ComputeModel):
    """Kernels in device memory only."""

    calls = frozenset(ON_DEVICE_CALLS)  # row-wise as other tables, data-parallel with an update of every row


@dataclass(frozen=True)
class MadeUpCpu(_OnDevice):
    """A CPU that computes table after table: costs add up, except that all tables share the last cache backward.

    A row comes from the second-level cache, the last-level cache or memory, each with a latency and a time per line.
    Vector registers hold 16 columns; a rest of fewer columns takes as long as `rest_vectors` full registers.

    Attributes:
        table_ms: fixed time of a table, forward and backward together.
        near_bytes, last_bytes: sizes of the two caches.
        near_ms, last_ms, memory_ms: latency of a row from each cache and from memory.
        last_line_ms, memory_line_ms: time of each line of a row from the last cache and from memory.
        vector_ms: time of 16 columns of a lookup.
        rest_vectors: registers that take as long as a rest of fewer than 16 columns.
    """

    table_ms: float = 0.03
    near_bytes: float = 1e6
    last_bytes: float = 32e6
    near_ms: float = 1e-6
    last_ms: float = 5e-6
    memory_ms: float = 20e-6
    last_line_ms: float = 0.5e-6
    memory_line_ms: float = 2e-6
    vector_ms: float = 0.8e-6
    rest_vectors: float = 1.6

    def predict(self, sets: LoadSets) -> FloatArray:
        """Compute (B,) ms of each of the B sets of loads."""
        loads, unique = sets.loads, unique_rows(sets.loads)
        used = unique * rounded_up(loads.dim * loads.bytes_per_element, _LINE_BYTES)
        kept = hit_share(self.last_bytes, sets.totals(used))[sets.owners]
        cost = self.table_ms + self._forward_ms(loads, unique, used) + self._backward_ms(loads, unique, kept)
        return sets.totals(cost + dense_update_bytes(loads) / _LINE_BYTES * self.memory_line_ms)

    def _forward_ms(self, loads: Loads, unique: FloatArray, used: FloatArray) -> FloatArray:
        near, last = hit_share(self.near_bytes, used), hit_share(self.last_bytes, used)
        from_last, from_memory = self._row_ms(loads)
        again = near * self.near_ms + (last - near) * from_last + (1 - last) * from_memory
        return unique * from_memory + (loads.lookups - unique) * again + self._vectors_ms(loads)

    def _backward_ms(self, loads: Loads, unique: FloatArray, kept: FloatArray) -> FloatArray:
        from_last, from_memory = self._row_ms(loads)
        update = unique * (kept * from_last + (1 - kept) * from_memory + from_memory)  # read, then written
        gradients = loads.outputs * loads.dim * _GRADIENT_BYTES / _LINE_BYTES * self.memory_line_ms
        return update + gradients + self._vectors_ms(loads)

    def _row_ms(self, loads: Loads) -> tuple[FloatArray, FloatArray]:
        """Return the ms of a row from the last cache and from memory, (n,) each."""
        lines = rounded_up(loads.dim * loads.bytes_per_element, _LINE_BYTES) / _LINE_BYTES
        return self.last_ms + lines * self.last_line_ms, self.memory_ms + lines * self.memory_line_ms

    def _vectors_ms(self, loads: Loads) -> FloatArray:
        full, rest = np.divmod(loads.dim, _LANES)
        vectors_ms: FloatArray = loads.lookups * (full + self.rest_vectors * (rest > 0)) * self.vector_ms
        return vectors_ms


def drawn_cpu(rng: np.random.Generator, times: float = 3.0) -> MadeUpCpu:
    """Draw a CPU with each size and time multiplied by its own random factor between 1 / `times` and `times`."""
    usual = MadeUpCpu()
    changed = {
        field.name: getattr(usual, field.name) * times ** rng.uniform(-1, 1)
        for field in fields(usual)
        if field.name != "rest_vectors"
    }
    return MadeUpCpu(**changed, rest_vectors=rng.uniform(_LEAST_REST, _MOST_REST))


@dataclass(frozen=True)
class MadeUpGpu(_OnDevice):
    """A GPU with one fused call forward and one backward, each bounded by its slowest resource; not a sum over tables.

    Memory moves sectors of 32 bytes. All tables of a call share the L2, so each table's misses depend on all others. A
    call is bound by memory, by the L2, by instructions (one for every 32 columns of a lookup), or, backward, by the
    table with the most updates per row.

    Attributes:
        launch_ms: launch time of a call.
        memory_bytes_per_ms, l2_bytes_per_ms, l2_bytes: bandwidths and the cache's size.
        instruction_ms, sort_ms: time of 32 columns of a lookup; time per lookup of grouping gradients by row.
        crowd_ms: time of an update that waits for another update of the same row.
    """

    launch_ms: float = 0.03
    memory_bytes_per_ms: float = 3e9
    l2_bytes_per_ms: float = 8e9
    l2_bytes: float = 40e6
    instruction_ms: float = 1e-8
    sort_ms: float = 3e-8
    crowd_ms: float = 2e-6

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
    """Return how often the row of a lookup is looked up, on average over lookups, (n,)."""
    lookups = reuse * MEAN_COUNTS
    uses: FloatArray = (lookups @ MEAN_COUNTS) / lookups.sum(axis=1)
    return uses
