"""How often the rows of tables are looked up in one batch, counted in bounded memory."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from neuroshard.plumbing.arrays import IntArray

BYTES_PER_ROW = 64  # of memory, for each row that is held, while counts are brought together
_LEAST_WAITING = 256  # lookups that wait to be counted together
FEWEST_ROWS = 4 * _LEAST_WAITING  # that may be held of each table, on average
_HASH_BITS = 64
_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class RowCounts:
    """Exact counts of the rows that one table's lookups touch: of all of these rows, or of a share of them.

    A row belongs to the share if a hash of its number begins with so many zeros; each time the share is halved, with
    one more. How often a row is looked up plays no role: the rows in the share are a random sample of those that are
    touched.
    """

    def __init__(self, salt: int) -> None:
        """Begin without any counts; those of other salts choose other rows."""
        self._salt = np.uint64(salt)
        self._halvings = 0
        self._rows: IntArray = np.zeros(0, dtype=np.int64)
        self._counts: IntArray = np.zeros(0, dtype=np.int64)
        self._waiting: list[IntArray] = []
        self._num_waiting = 0

    @property
    def share(self) -> float:
        """Share of all rows whose lookups are counted, by expectation."""
        return float(2.0**-self._halvings)

    @property
    def held(self) -> int:
        """Number of rows and lookups in memory."""
        return len(self._rows) + self._num_waiting

    @property
    def counts(self) -> IntArray:
        """(U,) lookups of each row that is touched and in the share."""
        self._count()
        return self._counts

    def add(self, indices: IntArray) -> None:
        """Count lookups (n,), at once or, while they are fewer than the rows that are held, later."""
        inside = indices[self._in_share(indices)] if self._halvings else indices
        self._waiting.append(inside)
        self._num_waiting += len(inside)
        if self._num_waiting > max(_LEAST_WAITING, len(self._rows)):
            self._count()

    def halve(self) -> None:
        """Leave out the rows in one half of the share."""
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
        known = self._rows.take(places, mode="clip") == rows
        self._counts[places[known]] += counts[known]
        new = places[~known]
        self._rows, self._counts = (
            np.insert(self._rows, new, rows[~known]),
            np.insert(self._counts, new, counts[~known]),
        )

    def _in_share(self, rows: IntArray) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = _hashed(rows, self._salt) >> np.uint64(_HASH_BITS - self._halvings) == 0
        return inside


def _hashed(rows: IntArray, salt: np.uint64) -> NDArray[np.uint64]:
    """Hash rows (n,) to numbers spread evenly over 64 bits: the finaliser of SplitMix64."""
    with np.errstate(over="ignore"):  # numbers wrap around
        mixed = rows.astype(np.uint64) + salt * _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


class SharedRoom:
    """Row counts of several tables that share one limit; where it is passed, those that hold most are halved."""

    def __init__(self, tables: int, most_held: int, salt: int) -> None:
        """Limit rows and lookups in memory, of all tables, to `most_held`: at least `FEWEST_ROWS` for each."""
        self._most_held = most_held
        self._held = 0
        self.tables: Sequence[RowCounts] = tuple(RowCounts(salt) for _ in range(tables))

    def add(self, table: int, indices: IntArray) -> None:
        """Count lookups (n,) of one of the tables."""
        counts = self.tables[table]
        self._held -= counts.held
        counts.add(indices)
        self._held += counts.held
        while self._held > self._most_held:
            largest = max(self.tables, key=lambda its: its.held)
            self._held -= largest.held
            largest.halve()
            self._held += largest.held


def block_counts(indices: IntArray, rows: int, blocks: int) -> IntArray:
    """Count lookups (n,) in each of so many equal blocks of a table's rows, (K,); a row is counted where it begins."""
    return np.bincount(indices * blocks // rows, minlength=blocks).astype(np.int64)
