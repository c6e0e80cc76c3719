"""The work that placements give devices: loads of kernels, and traffic between devices, the inputs of cost models."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.tables import Table
from neuroshard.tables.table import NUM_REUSE_BINS
from neuroshard.words.collective import ELEMENT_BYTES, IN_FULL_PRECISION, Collective, Precision
from neuroshard.words.form import CALLS, FORMS, IN_COLUMNS, Call
from neuroshard.words.placement import ON_DEVICE, TIERS, Tier, TierAssignment

_NUMBER = {call: number for number, call in enumerate(CALLS)}

# (tiers, pooled or not, `FORMS`): places in `CALLS`; len(CALLS) if there is no such call.
_CALL_NUMBERS: IntArray = np.array(
    [
        [[_NUMBER.get(Call(form, pooled, tier), len(CALLS)) for form in FORMS] for pooled in (False, True)]
        for tier in TIERS
    ]
)
_TYPES, _WIDTHS = 1 << 4, 1 << 20  # more than there are bytes of an element, and columns of a table


def calls_of(kernels: IntArray) -> IntArray:
    """Return the kernel call of each `Loads.kernel`, by its place in `CALLS`."""
    return kernels // (_TYPES * _WIDTHS)


@dataclass(frozen=True, eq=False)
class Loads:
    """n loads, as arrays: the work that tables, or their shards, give the device that holds them.

    Attributes:
        rows: (n,) rows on the device.
        dim: (n,) columns on the device.
        table_dim: (n,) columns of the whole table.
        lookups: (n,) lookups of a batch, over all samples.
        samples: (n,) samples of these lookups: the global batch size, or a device's share of it.
        bags: (n,) lists of lookups in a batch: one for each sample and feature.
        pooled: (n,) True if each bag is summed up; else every lookup is an output.
        bytes_per_element: (n,) bytes of each weight.
        reuse: (n, 17) histogram, as in `Table`.
        tier: (n,) memory that holds the weights, by its place in `TIERS`.
        cached: (n,) share of the rows that device memory has room for: 1 in tier device, the cache load factor in tier
            uvm_caching, 0 in tier uvm.
        form: (n,) family of the table's sharding type, by its place in `FORMS`.
        sharers: (n,) devices whose partial sums make up an output: the group of a block of rows; else 1.
    """

    rows: FloatArray
    dim: FloatArray
    table_dim: FloatArray
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
        """Make the loads of whole tables in device memory, in order, at a global batch size: one for all, or (n,)."""
        rows_of = [(t.rows, t.dim, t.pooling_factor, t.bytes_per_element, t.features) for t in tables]
        plain = np.array(rows_of, dtype=np.float64).reshape(len(tables), 5)
        reuse = np.array([t.reuse for t in tables], dtype=np.float64).reshape(len(tables), NUM_REUSE_BINS)
        rows, dim, pooling_factor, bytes_per_element, features = plain.T
        samples = np.broadcast_to(np.asarray(batch_size, dtype=np.float64), rows.shape)
        tier, cached = np.full(len(tables), TIERS.index(Tier.DEVICE)), np.ones(len(tables))
        form, sharers = np.full(len(tables), FORMS.index(IN_COLUMNS.form)), np.ones(len(tables), dtype=np.int64)
        amounts = samples * pooling_factor, samples, samples * features
        pooled = np.array([t.pooled for t in tables], dtype=np.bool_)
        return cls(rows, dim, dim, *amounts, pooled, bytes_per_element, reuse, tier, cached, form, sharers)

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
        """(n,) bytes of the outputs, as they travel."""
        return self.outputs * self.dim * ELEMENT_BYTES

    @property
    def call(self) -> IntArray:
        """(n,) the kernel call of each load, by its place in `CALLS`."""
        return _CALL_NUMBERS[self.tier, self.pooled.astype(np.int64), self.form]

    @property
    def kernel(self) -> IntArray:
        """(n,) numbers, equal where one kernel looks both up: of one call, data type and width of sequence tables."""
        width = np.where(self.pooled, 0, self.table_dim).astype(np.int64)
        return (self.call * _TYPES + self.bytes_per_element.astype(np.int64)) * _WIDTHS + width

    def take(self, indices: IntArray) -> "Loads":
        """Pick the loads at `indices` (m,)."""
        return Loads(**{field.name: getattr(self, field.name)[indices] for field in fields(self)})

    def at(self, homes: Sequence[TierAssignment]) -> "Loads":
        """Put the tables of the loads in these memories (n,)."""
        tier = np.array([TIERS.index(home.tier) for home in homes], dtype=np.int64)
        return replace(self, tier=tier, cached=np.array([home.cached_share for home in homes], dtype=np.float64))

    def on_device(self) -> "Loads":
        """Put the tables of the loads in device memory."""
        return self.at([ON_DEVICE] * len(self))

    def columns(self, dim: FloatArray | IntArray) -> "Loads":
        """Make the loads of shards of the same rows that are `dim` (n,) wide."""
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
        """Make the sets of loads of sets of whole tables."""
        counts = np.array([len(tables) for tables in sets], dtype=np.int64)
        return cls(Loads.of([table for tables in sets for table in tables], batch_size), counts)

    @classmethod
    def joined(cls, several: Sequence["LoadSets"]) -> "LoadSets":
        """Join all their sets, in order."""
        arrays = {
            field.name: np.concatenate([getattr(sets.loads, field.name) for sets in several]) for field in fields(Loads)
        }
        return cls(Loads(**arrays), np.concatenate([sets.counts for sets in several]))

    @classmethod
    def alone(cls, loads: Loads) -> "LoadSets":
        """Put every load on a device of its own."""
        return cls(loads, np.ones(len(loads), dtype=np.int64))

    @classmethod
    def grouped(cls, loads: Loads, places: IntArray, num_sets: int) -> "LoadSets":
        """Group loads (n,) in sets by `places` (n,), the number of each one's set; order within a set is kept."""
        order = np.argsort(places, kind="stable")
        return cls(loads.take(order), np.bincount(places, minlength=num_sets))

    def by_kernel(self) -> tuple["LoadSets", IntArray]:
        """Split each set by `Loads.kernel`, (B G): a set for each of the G that there are, one after the other.

        One stands for none. With the kernel call of each, (G,), by its place in `CALLS`.
        """
        kernels, which = np.unique(self.loads.kernel, return_inverse=True)
        kernels = kernels if len(kernels) else np.zeros(1, dtype=np.int64)
        places = self.owners * len(kernels) + which
        return LoadSets.grouped(self.loads, places, len(self) * len(kernels)), calls_of(kernels)

    @property
    def owners(self) -> IntArray:
        """(n,) the number of each load's set."""
        return np.repeat(np.arange(len(self)), self.counts)

    def totals(self, amounts: FloatArray) -> FloatArray:
        """Sum over each set, (B,), what its loads have of amounts (n,)."""
        return np.bincount(self.owners, amounts, minlength=len(self)).astype(np.float64)

    @property
    def calls(self) -> IntArray:
        """(B,) the call of each set's first load, by its place in `CALLS`; -1 of an empty set."""
        calls = np.full(len(self), -1, dtype=np.int64)
        filled = self.counts > 0
        calls[filled] = self.loads.call[(self.counts.cumsum() - self.counts)[filled]]
        return calls

    def take(self, indices: IntArray) -> "LoadSets":
        """Pick the sets at `indices` (m,)."""
        counts, starts = self.counts[indices], (self.counts.cumsum() - self.counts)[indices]
        within = np.arange(int(counts.sum())) - np.repeat(counts.cumsum() - counts, counts)
        return LoadSets(self.loads.take(np.repeat(starts, counts) + within), counts)

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True, eq=False)
class Traffic:
    """B exchanges between D devices each.

    Attributes:
        size_bytes: (B, D, C) that each device puts into every collective for all samples of a batch, what it would
            send to itself included; of the first C collectives only: there is nothing of the others.
        batch_size: (B,) samples over all devices.
        host_size: devices that share a host, or a domain of fast links of several; None where one has all, or nothing
            is exchanged by hosts.
    """

    size_bytes: FloatArray
    batch_size: IntArray
    host_size: int | None = None

    @classmethod
    def of_columns(
        cls, dims: FloatArray | IntArray, batch_size: int | IntArray, host_size: int | None = None
    ) -> "Traffic":
        """Make the traffic of column shards from `dims` (B, D), the columns that a sample gets of each device.

        The global batch size is one for all, or (B,). These are all-to-alls alone, without the input: what costs of
        columns hang on, and quick to make.
        """
        sizes = np.broadcast_to(np.asarray(batch_size, dtype=np.int64), len(dims))
        return cls((dims * (ELEMENT_BYTES * sizes.astype(np.float64))[:, None])[..., None], sizes, host_size)

    @classmethod
    def of(
        cls, device_loads: LoadSets, given: FloatArray, num_devices: int, batch_size: int, host_size: int | None
    ) -> "Traffic":
        """Sum up the traffic of B plans from the loads of their devices, (B D) sets, one plan after the other.

        The plans train at a global batch size, on hosts of `host_size` devices. Each load makes its device put
        `given` (n, C) bytes into every collective.
        """
        size_bytes = np.stack([device_loads.totals(given[:, collective]) for collective in Collective], axis=-1)
        plans = len(device_loads) // num_devices
        return cls(size_bytes.reshape(plans, num_devices, -1), np.full(plans, batch_size), host_size)

    @classmethod
    def joined(cls, several: Sequence["Traffic"]) -> "Traffic":
        """Join all their exchanges, in order: of the same devices and collectives."""
        size_bytes = np.concatenate([its.size_bytes for its in several])
        return cls(size_bytes, np.concatenate([its.batch_size for its in several]), several[0].host_size)

    def __len__(self) -> int:
        return len(self.size_bytes)

    @property
    def num_devices(self) -> int:
        """D, the number of devices that take part."""
        return int(self.size_bytes.shape[1])

    @property
    def held(self) -> tuple[Collective, ...]:
        """The collectives of which there may be anything."""
        return tuple(Collective)[: self.size_bytes.shape[2]]

    def given(self, collective: Collective) -> FloatArray:
        """Look up (B, D) bytes that each device puts into a collective."""
        if collective < self.size_bytes.shape[2]:
            return self.size_bytes[..., collective]
        return np.zeros(self.size_bytes.shape[:2])

    def alone(self, collective: Collective) -> "Traffic":
        """Take a collective by itself, as if it were an all-to-all: (B G, M, 1), one group's exchange after the other.

        Within `groups` (G, M); of the input, what a device puts in is what comes to it.
        """
        groups = self.groups(collective)
        size_bytes = self.given(collective)[:, groups].reshape(-1, groups.shape[1], 1)
        host_size = self.host_size if len(groups) == 1 else None
        return Traffic(size_bytes, np.repeat(self.batch_size, len(groups)), host_size)

    def groups(self, collective: Collective) -> IntArray:
        """Group devices, (G, M), that take part in one exchange: all, or those of a host or a place on it."""
        ranks, host = np.arange(self.num_devices), self.host_size or self.num_devices
        if collective is Collective.HOST_REDUCE_SCATTER:
            return ranks.reshape(-1, host)
        return ranks.reshape(-1, host).T if collective is Collective.HOST_ALL_TO_ALL else ranks[None]

    def with_columns(self, dims: FloatArray) -> "Traffic":
        """Replace all-to-alls by those of (B, D) columns on each device; one exchange (B = 1) is repeated for all."""
        size_bytes = np.repeat(self.size_bytes, len(dims) // len(self), axis=0)
        batch_size = np.repeat(self.batch_size, len(dims) // len(self))
        size_bytes[..., Collective.ALL_TO_ALL] = dims * (ELEMENT_BYTES * batch_size.astype(np.float64))[:, None]
        return replace(self, size_bytes=size_bytes, batch_size=batch_size)

    def in_precision(self, precision: Precision) -> "Traffic":
        """Return the traffic with elements of embeddings and gradients in another data type than fp32."""
        if precision is Precision.FP32:
            return self
        return replace(self, size_bytes=self.size_bytes * relative_bytes(precision)[: self.size_bytes.shape[2]])

    @property
    def forward(self) -> "Traffic":
        """The traffic of the forward pass, without all-reduces: data-parallel tables then exchange nothing."""
        if self.size_bytes.shape[2] <= Collective.ALL_REDUCE:
            return self
        size_bytes = self.size_bytes.copy()
        size_bytes[..., Collective.ALL_REDUCE] = 0
        return replace(self, size_bytes=size_bytes)

    @property
    def columns(self) -> FloatArray:
        """(B, D) columns that a sample gets of each device."""
        pooled = self.given(Collective.ALL_TO_ALL)
        return pooled / (ELEMENT_BYTES * self.batch_size.astype(np.float64))[:, None]


def relative_bytes(precision: Precision) -> FloatArray:
    """Compute the bytes that each collective carries in a data type relative to fp32, (C,)."""
    share = precision.element_bytes / ELEMENT_BYTES
    return np.array([1.0 if one in IN_FULL_PRECISION else share for one in Collective])
