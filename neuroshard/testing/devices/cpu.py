"""A made-up CPU, whose costs are arithmetic on caches, vector registers and memory."""

from dataclasses import dataclass, fields

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.models import ComputeModel
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.testing.devices.kernel_work import dense_update_bytes, hit_share, rounded_up, unique_rows
from neuroshard.words.form import ON_DEVICE_CALLS, Call

_LINE_BYTES = 64
_GRADIENT_BYTES = 4
_LANES = 16


@dataclass(frozen=True)
class MadeUpCpu(ComputeModel):
    """Tables one after the other, so forward costs add up; backward finds in the last cache what all of them left.

    A row is served by the second cache, the last one or memory, each with a latency and a time for every line. Vector
    registers hold 16 columns; a rest of fewer takes as long as several full ones.

    Attributes:
        table_ms: of a table, forward and backward together.
        near_bytes, last_bytes: sizes of the two caches.
        near_ms, last_ms, memory_ms: of a row from each.
        last_line_ms, memory_line_ms: of each of its lines.
        vector_ms: of 16 columns of a lookup.
        rest_vectors: that a rest of fewer columns is worth.
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

    @property
    def calls(self) -> frozenset[Call]:
        """All of tables in device memory: blocks of rows as other tables, copies with an update of every row."""
        return frozenset(ON_DEVICE_CALLS)

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
        """(n,) of a row from the last cache, and from memory."""
        lines = rounded_up(loads.dim * loads.bytes_per_element, _LINE_BYTES) / _LINE_BYTES
        return self.last_ms + lines * self.last_line_ms, self.memory_ms + lines * self.memory_line_ms

    def _vectors_ms(self, loads: Loads) -> FloatArray:
        full, rest = np.divmod(loads.dim, _LANES)
        vectors_ms: FloatArray = loads.lookups * (full + self.rest_vectors * (rest > 0)) * self.vector_ms
        return vectors_ms


_LEAST_REST, _MOST_REST = 1.0, 3.0


def drawn_cpu(rng: np.random.Generator, times: float = 3.0) -> MadeUpCpu:
    """A CPU whose every size and time is the usual one times or over a factor of up to `times`, each its own."""
    usual = MadeUpCpu()
    changed = {
        field.name: getattr(usual, field.name) * times ** rng.uniform(-1, 1)
        for field in fields(usual)
        if field.name != "rest_vectors"
    }
    return MadeUpCpu(**changed, rest_vectors=rng.uniform(_LEAST_REST, _MOST_REST))
