"""What placements ask of a device's kernels: what compute models are asked with."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.tables import Table
from neuroshard.tables.table import NUM_REUSE_BINS
from neuroshard.words.collective import ELEMENT_BYTES
from neuroshard.words.form import CALLS, FORMS, IN_COLUMNS, Call
from neuroshard.words.home import ON_DEVICE, TIERS, Home, Tier

_NUMBER = {call: number for number, call in enumerate(CALLS)}

# (tiers, pooled or not, forms): places in `CALLS`; beyond them, where there is no such call.
_CALL_NUMBERS: IntArray = np.array(
    [
        [[_NUMBER.get(Call(form, pooled, tier), len(CALLS)) for form in FORMS] for pooled in (False, True)]
        for tier in TIERS
    ]
)


@dataclass(frozen=True, eq=False)
class Loads:
    """n loads, as arrays: what tables, or parts of them, ask of the device that holds them.

    Attributes:
        rows: (n,) that lie on the device.
        dim: (n,) columns that lie there.
        lookups: (n,) of a batch, over all samples.
        samples: (n,) whose lookups they are: the global batch size, or a device's part of it.
        bags: (n,) lists of lookups in a batch: one for each sample and feature.
        pooled: (n,) whether each bag is summed up; else every lookup is an output.
        bytes_per_element: (n,) of the weights.
        reuse: (n, 17) histogram, as in `Table`.
        tier: (n,) memory that holds the weights, by its place in `TIERS`.
        cached: (n,) share of the rows that the device holds: 1 of those in its memory, 0 of those in the host's.
        form: (n,) how the table is laid out, by its place in `FORMS`.
        sharers: (n,) devices that have a part in each of its outputs: those of a row block's group; else 1.
    """

    rows: FloatArray
    dim: FloatArray
    lookups: FloatArray
    samples: FloatArray
    bags: FloatArray
    pooled: BoolArray
    bytes_per_element: FloatArray
    reuse: FloatArray
    tier: IntArray
    cached: FloatArray
    form: IntArray
    sharers: IntArray

    @classmethod
    def of(cls, tables: Sequence[Table], batch_size: int | IntArray) -> "Loads":
        """Of whole tables in device memory, in order, at a global batch size: one for all, or (n,)."""
        rows_of = [(t.rows, t.dim, t.pooling_factor, t.bytes_per_element, t.features) for t in tables]
        plain = np.array(rows_of, dtype=np.float64).reshape(len(tables), 5)
        reuse = np.array([t.reuse for t in tables], dtype=np.float64).reshape(len(tables), NUM_REUSE_BINS)
        rows, dim, pooling_factor, bytes_per_element, features = plain.T
        samples = np.broadcast_to(np.asarray(batch_size, dtype=np.float64), rows.shape)
        tier, cached = np.full(len(tables), TIERS.index(Tier.DEVICE)), np.ones(len(tables))
        form, sharers = np.full(len(tables), FORMS.index(IN_COLUMNS.form)), np.ones(len(tables), dtype=np.int64)
        amounts = samples * pooling_factor, samples, samples * features
        pooled = np.array([t.pooled for t in tables], dtype=np.bool_)
        return cls(rows, dim, *amounts, pooled, bytes_per_element, reuse, tier, cached, form, sharers)

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

    @property
    def outputs(self) -> FloatArray:
        """(n,) embeddings that come of a batch."""
        return np.where(self.pooled, self.bags, self.lookups)

    @property
    def output_bytes(self) -> FloatArray:
        """(n,) bytes of them, as they travel."""
        return self.outputs * self.dim * ELEMENT_BYTES

    @property
    def call(self) -> IntArray:
        """(n,) what kernels are called with for each, by its place in `CALLS`."""
        return _CALL_NUMBERS[self.tier, self.pooled.astype(np.int64), self.form]

    def take(self, indices: IntArray) -> "Loads":
        """The loads at `indices` (m,)."""
        return Loads(**{field.name: getattr(self, field.name)[indices] for field in fields(self)})

    def at(self, homes: Sequence[Home]) -> "Loads":
        """The same loads of tables that lie in these memories (n,)."""
        tier = np.array([TIERS.index(home.tier) for home in homes], dtype=np.int64)
        return replace(self, tier=tier, cached=np.array([home.cached_share for home in homes], dtype=np.float64))

    def on_device(self) -> "Loads":
        """The same loads of tables that lie in device memory."""
        return self.at([ON_DEVICE] * len(self))

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

    def by_call(self) -> "LoadSets":
        """(B K) each set's loads of every kernel call, one set of each of the K in `CALLS` after the other."""
        places = self.owners * len(CALLS) + self.loads.call
        return LoadSets.grouped(self.loads, places, len(self) * len(CALLS))

    @property
    def owners(self) -> IntArray:
        """(n,) the number of each load's set."""
        return np.repeat(np.arange(len(self)), self.counts)

    def totals(self, amounts: FloatArray) -> FloatArray:
        """(B,) sums over each set of what its loads have of amounts (n,)."""
        sums: FloatArray = np.bincount(self.owners, amounts, minlength=len(self)).astype(np.float64)
        return sums

    @property
    def calls(self) -> IntArray:
        """(B,) the call of each set's first load, by its place in `CALLS`; -1 of an empty set."""
        calls = np.full(len(self), -1, dtype=np.int64)
        filled = self.counts > 0
        calls[filled] = self.loads.call[(self.counts.cumsum() - self.counts)[filled]]
        return calls

    def take(self, indices: IntArray) -> "LoadSets":
        """The sets at `indices` (m,)."""
        counts, starts = self.counts[indices], (self.counts.cumsum() - self.counts)[indices]
        within = np.arange(int(counts.sum())) - np.repeat(counts.cumsum() - counts, counts)
        return LoadSets(self.loads.take(np.repeat(starts, counts) + within), counts)

    def __len__(self) -> int:
        return len(self.counts)
