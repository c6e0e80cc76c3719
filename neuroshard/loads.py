"""What placements ask of a device's kernels: what compute models are asked with."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from neuroshard.arrays import FloatArray, IntArray
from neuroshard.plans.shard import TIERS, Placement, Tier
from neuroshard.tables import Table
from neuroshard.tables.table import NUM_REUSE_BINS


@dataclass(frozen=True, eq=False)
class Loads:
    """n loads, as arrays; only this file knows what a table, or a part of one, asks of the device that holds it.

    Attributes:
        rows: (n,) that lie on the device.
        dim: (n,) columns that lie there.
        lookups: (n,) of a batch, over all samples.
        samples: (n,) whose lookups they are: the global batch size.
        outputs: (n,) pooled embeddings that come of a batch.
        bytes_per_element: (n,) of the weights.
        reuse: (n, 17) histogram, as in `Table`.
        tier: (n,) memory that holds the weights, by its place in `Tier`.
    """

    rows: FloatArray
    dim: FloatArray
    lookups: FloatArray
    samples: FloatArray
    outputs: FloatArray
    bytes_per_element: FloatArray
    reuse: FloatArray
    tier: IntArray

    @classmethod
    def of(cls, tables: Sequence[Table], batch_size: int | IntArray) -> "Loads":
        """Of whole tables in device memory, in order, at a global batch size: one for all, or (n,)."""
        plain = np.array([(t.rows, t.dim, t.pooling_factor, t.bytes_per_element) for t in tables], dtype=np.float64)
        reuse = np.array([t.reuse for t in tables], dtype=np.float64).reshape(len(tables), NUM_REUSE_BINS)
        rows, dim, pooling_factor, bytes_per_element = plain.reshape(len(tables), 4).T
        samples = np.broadcast_to(np.asarray(batch_size, dtype=np.float64), rows.shape)
        tier = np.full(len(tables), TIERS.index(Tier.DEVICE))
        return cls(rows, dim, samples * pooling_factor, samples, samples, bytes_per_element, reuse, tier)

    @classmethod
    def placed(cls, tables: Sequence[Table], placements: Sequence[Placement], batch_size: int) -> "Loads":
        """Of placements of some tables' shards, in order: a column shard needs all lookups of its table."""
        table = np.array([placement.shard.table for placement in placements], dtype=np.int64)
        dim = np.array([placement.shard.dim for placement in placements], dtype=np.int64)
        tier = np.array([TIERS.index(placement.tier) for placement in placements], dtype=np.int64)
        return replace(cls.of(tables, batch_size).take(table).columns(dim), tier=tier)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size_bytes(self) -> FloatArray:
        """(n,) bytes of the weights."""
        return self.rows * self.dim * self.bytes_per_element

    @property
    def pooling_factor(self) -> FloatArray:
        """(n,) mean lookups of a sample."""
        return self.lookups / self.samples

    def take(self, indices: IntArray) -> "Loads":
        """The loads at `indices` (m,)."""
        return Loads(**{field.name: getattr(self, field.name)[indices] for field in fields(self)})

    def columns(self, dim: FloatArray | IntArray) -> "Loads":
        """Of shards of the same rows that are `dim` (n,) wide."""
        return replace(self, dim=np.asarray(dim, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class LoadSets:
    """B sets of loads, each what one device holds, one after the other.

    Attributes:
        loads: (n,) of all sets.
        counts: (B,) loads in each; 0 for an empty device.
    """

    loads: Loads
    counts: IntArray

    @classmethod
    def of(cls, sets: Sequence[Sequence[Table]], batch_size: int) -> "LoadSets":
        """Of sets of whole tables."""
        counts = np.array([len(tables) for tables in sets], dtype=np.int64)
        return cls(Loads.of([table for tables in sets for table in tables], batch_size), counts)

    @classmethod
    def joined(cls, parts: Sequence["LoadSets"]) -> "LoadSets":
        """The sets of all parts, in order."""
        arrays = {
            field.name: np.concatenate([getattr(part.loads, field.name) for part in parts]) for field in fields(Loads)
        }
        return cls(Loads(**arrays), np.concatenate([part.counts for part in parts]))

    @classmethod
    def alone(cls, loads: Loads) -> "LoadSets":
        """Every load on a device of its own."""
        return cls(loads, np.ones(len(loads), dtype=np.int64))

    @classmethod
    def grouped(cls, loads: Loads, places: IntArray, num_sets: int) -> "LoadSets":
        """Loads (n,) in sets by `places` (n,), the number of each one's set; order within a set is kept."""
        order = np.argsort(places, kind="stable")
        return cls(loads.take(order), np.bincount(places, minlength=num_sets))

    def __len__(self) -> int:
        return len(self.counts)
