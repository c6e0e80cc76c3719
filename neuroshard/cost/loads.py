"""The inputs of cost models: loads (work of the kernels on each device) and traffic (bytes that devices exchange)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray, evenly
from neuroshard.tables import Table
from neuroshard.tables.table import NUM_REUSE_BINS
from neuroshard.words.collective import ELEMENT_BYTES, IN_FULL_PRECISION, Collective, Precision
from neuroshard.words.form import CALLS, COLUMN_WISE_CALL, FORMS, Call
from neuroshard.words.placement import ON_DEVICE, TIERS, Tier, TierAssignment

_NUMBER = {call: number for number, call in enumerate(CALLS)}

# Index in `CALLS` by [tier, pooled, family]; len(CALLS) if there is no such call.
_CALL_NUMBERS: IntArray = np.array(
    [
        [[_NUMBER.get(Call(form, pooled, tier), len(CALLS)) for form in FORMS] for pooled in (False, True)]
        for tier in TIERS
    ]
)
_TYPES, _WIDTHS = 1 << 4, 1 << 20  # larger than the bytes of an element, and than the columns of a table


def calls_of(kernels: IntArray) -> IntArray:
    """Return the type of kernel call of each kernel, as an index in `CALLS`, the tuple of all types of kernel calls.
    `kernels` has a number for each kernel. The number encodes the type of call, the data type and the width.
    """
    return kernels // (_TYPES * _WIDTHS)


@dataclass(frozen=True, eq=False)
class Loads:
    """n loads as arrays; a load is the work that a table or shard causes for the kernels of a device in one batch.

    Attributes:
        rows: (n,) number of rows on the device.
        dim: (n,) number of columns on the device.
        table_dim: (n,) number of columns of the whole table.
        lookups: (n,) number of lookups in a batch, over all samples.
        samples: (n,) number of samples with these lookups: the global batch size, or the device's own samples.
        bags: (n,) number of bags (lists of lookups) in a batch: one for each sample and feature.
        pooled: (n,) True if each bag is summed up to one output; False if every lookup is an output.
        bytes_per_element: (n,) bytes of each weight.
        reuse: (n, 17) reuse histogram, as in `Table`.
        tier: (n,) tier of the weights, as an index in `TIERS`.
        cached: (n,) share of the rows that fit in device memory: 1 in tier device, the cache load factor in tier
            uvm_caching, 0 in tier uvm.
        form: (n,) family of the table's sharding type, as an index in `FORMS`.
        sharers: (n,) number of devices with blocks of rows of the same columns, whose partial sums are added up if the
            table is pooled; 1 for tables that are not row-wise.
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
        """Return one load for each of n tables, in the order of `tables`.
        Each load is the work of a device that has the whole table in device memory and looks up the whole batch.

        `batch_size` is the global batch size, one for all tables or (n,).
        """
        rows_of = [(t.rows, t.dim, t.pooling_factor, t.bytes_per_element, t.features) for t in tables]
        plain = np.array(rows_of, dtype=np.float64).reshape(len(tables), 5)
        reuse = np.array([t.reuse for t in tables], dtype=np.float64).reshape(len(tables), NUM_REUSE_BINS)
        rows, dim, pooling_factor, bytes_per_element, features = plain.T
        samples = np.broadcast_to(np.asarray(batch_size, dtype=np.float64), rows.shape)
        tier, cached = np.full(len(tables), TIERS.index(Tier.DEVICE)), np.ones(len(tables))
        form, sharers = np.full(len(tables), FORMS.index(COLUMN_WISE_CALL.form)), np.ones(len(tables), dtype=np.int64)
        amounts = samples * pooling_factor, samples, samples * features
        pooled = np.array([t.pooled for t in tables], dtype=np.bool_)
        return cls(rows, dim, dim, *amounts, pooled, bytes_per_element, reuse, tier, cached, form, sharers)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size_bytes(self) -> FloatArray:
        """(n,) size in bytes of the table or shard that causes each load."""
        return self.rows * self.dim * self.bytes_per_element

    @property
    def pooling_factor(self) -> FloatArray:
        """(n,) mean number of lookups per sample for each load."""
        return self.lookups / self.samples

    @property
    def outputs(self) -> FloatArray:
        """(n,) number of output embeddings of each load in a batch."""
        return np.where(self.pooled, self.bags, self.lookups)

    @property
    def output_bytes(self) -> FloatArray:
        """(n,) bytes of the output embeddings of each load (the work of a shard), if sent as fp32."""
        return self.outputs * self.dim * ELEMENT_BYTES

    @property
    def call(self) -> IntArray:
        """(n,) type of kernel call of each load, as an index in `CALLS`, the tuple of all types of kernel calls."""
        return _CALL_NUMBERS[self.tier, self.pooled.astype(np.int64), self.form]

    @property
    def kernel(self) -> IntArray:
        """(n,) key of the kernel that processes each load, as a whole number.
        On a device, one kernel processes all loads with the same key.

        Such loads have the same call and data type and, if they are of sequence tables, the same table width.
        """
        width = np.where(self.pooled, 0, self.table_dim).astype(np.int64)
        return (self.call * _TYPES + self.bytes_per_element.astype(np.int64)) * _WIDTHS + width

    def take(self, indices: IntArray) -> "Loads":
        """Return the loads at the positions in `indices` (m,)."""
        return Loads(**{field.name: getattr(self, field.name)[indices] for field in fields(self)})

    def at(self, assignments: Sequence[TierAssignment]) -> "Loads":
        """Return a copy of the loads in which the weights are moved to other memory tiers.
        `assignments` (n,) has the new tier assignment of each load: the tier, and the share of rows in the cache.
        """
        tier = np.array([TIERS.index(assignment.tier) for assignment in assignments], dtype=np.int64)
        return replace(
            self, tier=tier, cached=np.array([assignment.cached_share for assignment in assignments], dtype=np.float64)
        )

    def on_device(self) -> "Loads":
        """Return the loads with all weights in device memory."""
        return self.at([ON_DEVICE] * len(self))

    def columns(self, dim: FloatArray | IntArray) -> "Loads":
        """Return a copy of the loads in which each table or shard has a new width, as for column shards of the tables.
        `dim` (n,) has the number of columns for each of the n loads; nothing else changes.
        """
        return replace(self, dim=np.asarray(dim, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class LoadSets:
    """B sets of loads. A load is the work of a table or shard for the kernels; each set has the loads of one device.

    Attributes:
        loads: (n,) the loads of all sets, one set after the other.
        counts: (B,) number of loads in each set; 0 for an empty device.
    """

    loads: Loads
    counts: IntArray

    @classmethod
    def of(cls, sets: Sequence[Sequence[Table]], batch_size: int) -> "LoadSets":
        """Return the loads of B devices at a global batch size.
        `sets` (B,) has the whole tables that each device has.
        """
        counts = np.array([len(tables) for tables in sets], dtype=np.int64)
        return cls(Loads.of([table for tables in sets for table in tables], batch_size), counts)

    @classmethod
    def joined(cls, several: Sequence["LoadSets"]) -> "LoadSets":
        """Return one `LoadSets` that has the sets of all the `LoadSets` in `several`, in order."""
        arrays = {
            field.name: np.concatenate([getattr(sets.loads, field.name) for sets in several]) for field in fields(Loads)
        }
        return cls(Loads(**arrays), np.concatenate([sets.counts for sets in several]))

    @classmethod
    def alone(cls, loads: Loads) -> "LoadSets":
        """Return n sets for n loads, in the order of `loads`: each set has a single load."""
        return cls(loads, np.ones(len(loads), dtype=np.int64))

    @classmethod
    def grouped(cls, loads: Loads, places: IntArray, num_sets: int) -> "LoadSets":
        """Return loads (n,) grouped into `num_sets` sets; `places` (n,) has the index of the set for each load.

        Loads of one set keep their order.
        """
        order = np.argsort(places, kind="stable")
        return cls(loads.take(order), np.bincount(places, minlength=num_sets))

    def by_kernel(self) -> tuple["LoadSets", IntArray]:
        """Split each of the B sets into G smaller sets, one for each kernel: the loads that this kernel processes.
        Return the B x G smaller sets, and the type of kernel call of each of the G kernels, (G,). G counts the
        different kernels of all B sets together, so a smaller set may be empty.

        Returns:
            (B G) sets: the G sets of the first set, then those of the second set, and so on; and (G,) the index in
            `CALLS` of each kernel. G is at least 1: if there are no loads, the only kernel has no loads.
        """
        kernels, which = np.unique(self.loads.kernel, return_inverse=True)
        kernels = kernels if len(kernels) else np.zeros(1, dtype=np.int64)
        places = self.owners * len(kernels) + which
        return LoadSets.grouped(self.loads, places, len(self) * len(kernels)), calls_of(kernels)

    @property
    def owners(self) -> IntArray:
        """(n,) index of the set that contains each of the n loads."""
        return np.repeat(np.arange(len(self)), self.counts)

    def totals(self, amounts: FloatArray) -> FloatArray:
        """Return the sum of `amounts` over the loads of each set, (B,); `amounts` (n,) has a number for each load."""
        return np.bincount(self.owners, amounts, minlength=len(self)).astype(np.float64)

    @property
    def calls(self) -> IntArray:
        """(B,) type of kernel call of each of B sets of loads; -1 for an empty set.
        A type is an index in `CALLS`, the tuple of all types of kernel calls. The first load of a set determines the
        type, so all loads of a set should have the same type.
        """
        calls = np.full(len(self), -1, dtype=np.int64)
        filled = self.counts > 0
        calls[filled] = self.loads.call[(self.counts.cumsum() - self.counts)[filled]]
        return calls

    def take(self, indices: IntArray) -> "LoadSets":
        """Return the sets at the positions in `indices` (m,)."""
        counts, starts = self.counts[indices], (self.counts.cumsum() - self.counts)[indices]
        within = np.arange(int(counts.sum())) - np.repeat(counts.cumsum() - counts, counts)
        return LoadSets(self.loads.take(np.repeat(starts, counts) + within), counts)

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True, eq=False)
class Traffic:
    """The bytes that D devices exchange in a step, for each of B plans.

    Attributes:
        size_bytes: (B, D, C) bytes that each device sends into each of the first C collectives for all samples of a
            batch, including bytes for itself; for the input dist, bytes that it receives. The other collectives have
            no traffic.
        batch_size: (B,) global batch size: samples over all devices.
        host_size: number of devices on a host, or in a domain of fast links over several hosts; None if all devices are
            on one host, or if nothing is exchanged by hosts.
    """

    size_bytes: FloatArray
    batch_size: IntArray
    host_size: int | None = None

    @classmethod
    def of_columns(
        cls, dims: FloatArray | IntArray, batch_size: int | IntArray, host_size: int | None = None
    ) -> "Traffic":
        """Return the traffic of B column-wise plans, given the output columns of each device.
        The result has only the bytes of the all-to-all of output embeddings, not the bytes of the input dist.

        This is all that the cost of column-wise plans depends on, and it is quick to compute.

        Args:
            dims: (B, D) output columns per sample of each device.
            batch_size: global batch size, one for all plans or (B,).
            host_size: number of devices on a host, as in `Traffic`.
        """
        sizes = np.broadcast_to(np.asarray(batch_size, dtype=np.int64), len(dims))
        return cls((dims * (ELEMENT_BYTES * sizes.astype(np.float64))[:, None])[..., None], sizes, host_size)

    @classmethod
    def of(
        cls, device_loads: LoadSets, given: FloatArray, num_devices: int, batch_size: int, host_size: int | None
    ) -> "Traffic":
        """Return the traffic of B plans, computed from the loads (work of tables and shards) on each device.
        `given` has the bytes of each load in each collective. A device sends the sum of the bytes of the device's loads
        into a collective.

        Args:
            device_loads: (B D) sets: the loads of each of the D devices, one plan after the other.
            given: (n, C) bytes that each of the n loads makes its device send into each collective.
            num_devices: D, the number of devices.
            batch_size: global batch size.
            host_size: number of devices on a host, as in `Traffic`.
        """
        size_bytes = np.stack([device_loads.totals(given[:, collective]) for collective in Collective], axis=-1)
        plans = len(device_loads) // num_devices
        return cls(size_bytes.reshape(plans, num_devices, -1), np.full(plans, batch_size), host_size)

    @classmethod
    def joined(cls, several: Sequence["Traffic"]) -> "Traffic":
        """Return one `Traffic` with the plans of all the `Traffic` objects in `several`, in order.
        All the objects must have the same devices and collectives.
        """
        size_bytes = np.concatenate([traffic.size_bytes for traffic in several])
        return cls(size_bytes, np.concatenate([traffic.batch_size for traffic in several]), several[0].host_size)

    def __len__(self) -> int:
        return len(self.size_bytes)

    @property
    def evenly(self) -> "Traffic":
        """A copy of the traffic in which all D devices of a plan send equal numbers of bytes.
        In each collective of a plan, every device sends the mean of the D devices' bytes. The total bytes of each plan
        stay the same.
        """
        return replace(self, size_bytes=evenly(self.size_bytes))

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return int(self.size_bytes.shape[1])

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The C collectives for which this object has bytes: the first C members of `Collective`.
        All other members of `Collective` have no traffic.
        """
        return tuple(Collective)[: self.size_bytes.shape[2]]

    def sent_bytes(self, collective: Collective) -> FloatArray:
        """Return the bytes that each of D devices sends into a collective, for each of B plans, (B, D).
        If the collective is the input dist, return the bytes that each device receives instead.
        """
        if collective < self.size_bytes.shape[2]:
            return self.size_bytes[..., collective]
        return np.zeros(self.size_bytes.shape[:2])

    def alone(self, collective: Collective) -> "Traffic":
        """Return the traffic of one collective as a `Traffic` whose entries are single exchanges instead of plans.
        In most collectives, all devices of a plan take part in one exchange, so B plans give B entries. But a
        reduce-scatter inside each host, for example, is a separate exchange for each host. In this case, B plans on G
        hosts give B x G entries.

        The bytes are stored as bytes of an all-to-all, so that a model for a single exchange need not know which
        collective the exchange uses.

        The `groups` (G, M) of a plan exchange independently, so the result has B G exchanges of M devices, with
        `size_bytes` (B G, M, 1). For the input dist, the bytes of a device are the bytes that it receives.
        """
        groups = self.groups(collective)
        size_bytes = self.sent_bytes(collective)[:, groups].reshape(-1, groups.shape[1], 1)
        host_size = self.host_size if len(groups) == 1 else None
        return Traffic(size_bytes, np.repeat(self.batch_size, len(groups)), host_size)

    def groups(self, collective: Collective) -> IntArray:
        """Return the groups of devices that exchange with each other in a collective, as device numbers (G, M).
        There are G groups of M devices each.

        For most collectives, one group has all devices. HOST_REDUCE_SCATTER has a group for each host, and
        HOST_ALL_TO_ALL a group for each place on a host, with one device of every host.
        """
        ranks, host = np.arange(self.num_devices), self.host_size or self.num_devices
        if collective is Collective.HOST_REDUCE_SCATTER:
            return ranks.reshape(-1, host)
        return ranks.reshape(-1, host).T if collective is Collective.HOST_ALL_TO_ALL else ranks[None]

    def with_columns(self, dims: FloatArray) -> "Traffic":
        """Return a copy of this traffic in which the bytes of the all-to-all are replaced.
        `dims` (B, D) has the output columns per sample that each of D devices sends into the all-to-all, for each of B
        plans. The bytes of the other collectives stay the same.

        If this traffic is of one plan, its other collectives are repeated for all B plans.
        """
        size_bytes = np.repeat(self.size_bytes, len(dims) // len(self), axis=0)
        batch_size = np.repeat(self.batch_size, len(dims) // len(self))
        size_bytes[..., Collective.ALL_TO_ALL] = dims * (ELEMENT_BYTES * batch_size.astype(np.float64))[:, None]
        return replace(self, size_bytes=size_bytes, batch_size=batch_size)

    def in_precision(self, precision: Precision) -> "Traffic":
        """Return a copy of the traffic with the bytes for exchanges in the data type `precision` instead of fp32.
        For example, fp16 halves the bytes of the all-to-all. The bytes of the input dist and of the all-reduce stay the
        same.
        """
        if precision is Precision.FP32:
            return self
        return replace(self, size_bytes=self.size_bytes * relative_bytes(precision)[: self.size_bytes.shape[2]])

    @property
    def forward(self) -> "Traffic":
        """The traffic of the forward pass: without all-reduces, which data-parallel tables need only in backward."""
        if self.size_bytes.shape[2] <= Collective.ALL_REDUCE:
            return self
        size_bytes = self.size_bytes.copy()
        size_bytes[..., Collective.ALL_REDUCE] = 0
        return replace(self, size_bytes=size_bytes)

    @property
    def columns(self) -> FloatArray:
        """(B, D) output columns that each of D devices sends into the all-to-all for each sample, for each of B plans.
        The columns are computed from the bytes of the all-to-all.
        """
        pooled = self.sent_bytes(Collective.ALL_TO_ALL)
        return pooled / (ELEMENT_BYTES * self.batch_size.astype(np.float64))[:, None]


def relative_bytes(precision: Precision) -> FloatArray:
    """Return the bytes of a data type relative to fp32, for each of C collectives, (C,).
    For fp16, for example, the all-to-all has the value 0.5, because it sends half as many bytes as in fp32. The
    all-reduce has the value 1, because it always uses fp32.
    """
    share = precision.element_bytes / ELEMENT_BYTES
    return np.array([1.0 if one in IN_FULL_PRECISION else share for one in Collective])
