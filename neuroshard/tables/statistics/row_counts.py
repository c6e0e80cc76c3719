"""Counters that use bounded memory to count the lookups of each table row in one batch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from neuroshard.plumbing.arrays import IntArray

BYTES_PER_ROW = 64  # memory for each row in memory while new lookups are merged into the counts
_LEAST_WAITING = 256  # number of lookups that are collected before they are counted together
FEWEST_ROWS = 4 * _LEAST_WAITING  # minimum number of rows per table, on average, that must fit in memory
_HASH_BITS = 64
_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class RowCounts:
    """A counter of the lookups of each row that a batch touches in one table.
    To save memory, the counter can be limited to a random share of the rows. The counts of these rows remain exact.

    A row belongs to the share if a hash of the row's index begins with h zero bits, where h is the number of times that
    the share was halved. The choice does not depend on the number of lookups, so the rows in the share are a random
    sample of the touched rows.
    """

    def __init__(self, salt: int) -> None:
        """Create an empty counter. `salt` is the seed of the hash by which `halve` chooses rows: after `halve`, the
        counter counts only a random share of the rows.
        """
        self._salt = np.uint64(salt)
        self._halvings = 0
        self._rows: IntArray = np.zeros(0, dtype=np.int64)
        self._counts: IntArray = np.zeros(0, dtype=np.int64)
        self._waiting: list[IntArray] = []
        self._num_waiting = 0

    @property
    def share(self) -> float:
        """Share of the table's rows that this counter counts: 1 at first, and half as much after each call of `halve`.
        It is an expected share, because the rows are chosen at random.
        """
        return float(2.0**-self._halvings)

    @property
    def held(self) -> int:
        """Number of entries in memory: rows with counts, and lookups that are still waiting to be counted."""
        return len(self._rows) + self._num_waiting

    @property
    def counts(self) -> IntArray:
        """The number of lookups of each of U rows of the table, (U,). Rows without lookups are left out. If the counter
        is limited to a share of the rows, all other rows are left out, too.
        """
        self._count()
        return self._counts

    def add(self, indices: IntArray) -> None:
        """Add one lookup for each row index in `indices` (n,).

        Lookups are collected until they are more than the rows in memory, and then counted together.
        """
        inside = indices[self._in_share(indices)] if self._halvings else indices
        self._waiting.append(inside)
        self._num_waiting += len(inside)
        if self._num_waiting > max(_LEAST_WAITING, len(self._rows)):
            self._count()

    def halve(self) -> None:
        """Halve the share of the table's rows that this counter counts.
        The counts of rows that are outside the smaller share are dropped.
        """
        self._count()
        self._halvings += 1
        kept = self._in_share(self._rows)
        self._rows, self._counts = self._rows[kept], self._counts[kept]

    def _count(self) -> None:
        if not self._num_waiting:
            return
        rows, counts = np.unique(np.concatenate(self._waiting), return_counts=True)
        self._waiting, self._num_waiting = [], 0
        if not len(self._rows):
            self._rows, self._counts = rows, counts
            return
        places = np.searchsorted(self._rows, rows)
        present = self._rows.take(places, mode="clip") == rows
        self._counts[places[present]] += counts[present]
        new = places[~present]
        self._rows, self._counts = (
            np.insert(self._rows, new, rows[~present]),
            np.insert(self._counts, new, counts[~present]),
        )

    def _in_share(self, rows: IntArray) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = _hashed(rows, self._salt) >> np.uint64(_HASH_BITS - self._halvings) == 0
        return inside


def _hashed(rows: IntArray, salt: np.uint64) -> NDArray[np.uint64]:
    """Return a hash of each row index (n,), spread evenly over 64 bits, by the finaliser of SplitMix64."""
    with np.errstate(over="ignore"):  # overflow is part of the hash
        mixed = rows.astype(np.uint64) + salt * _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


class SharedRoom:
    """Counters of row lookups (`RowCounts`) for several tables that share one memory limit.

    If the limit is passed, the share of the table with the most rows and lookups in memory is halved.
    """

    def __init__(self, tables: int, most_held: int, salt: int) -> None:
        """Create an empty counter for each of `tables` tables.
        Together, the counters keep at most `most_held` rows and lookups in memory.

        `most_held` must be at least `FEWEST_ROWS` for each table.
        """
        self._most_held = most_held
        self._held = 0
        self.tables: Sequence[RowCounts] = tuple(RowCounts(salt) for _ in range(tables))

    def add(self, table: int, indices: IntArray) -> None:
        """Count one lookup for each row index in `indices` (n,), in the table with the index `table`. If the counters
        together then exceed the memory limit, the largest counter is halved: it counts only half as many rows. This is
        repeated until the counters fit the limit.
        """
        counts = self.tables[table]
        self._held -= counts.held
        counts.add(indices)
        self._held += counts.held
        while self._held > self._most_held:
            largest = max(self.tables, key=lambda counts: counts.held)
            self._held -= largest.held
            largest.halve()
            self._held += largest.held


def block_counts(indices: IntArray, rows: int, blocks: int) -> IntArray:
    """Divide the rows of a table into K = `blocks` equal blocks, and return the number of lookups in each block, (K,).

    If a block boundary divides a row, the row belongs to the block in which the row begins.

    Args:
        indices: (n,) index of the row of each lookup.
        rows: number of rows of the table.
        blocks: number of blocks.
    """
    return np.bincount(indices * blocks // rows, minlength=blocks).astype(np.int64)
