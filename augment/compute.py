"""Random combinations of tables for kernel calls (NeuroShard, section 3.1).
The tables are augmented: each table is used with many different widths.

In addition to the paper's column-wise combinations, this module draws row-wise and data-parallel ones: the work of one
device of several.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from math import ceil
from typing import Annotated, TypeVar

import numpy as np
from msgspec import Meta

from neuroshard.layouts import LAYOUTS, ROW_WISE_LAYOUT, Layout, row_blocks
from neuroshard.measure.store.samples import ComputeSample, RowBlock
from neuroshard.measure.store.splits import Split, draw_split
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import (
    DIM_MULTIPLE,
    ByteSize,
    CacheShare,
    Devices,
    Features,
    ShardDim,
    Share,
    TableCount,
)
from neuroshard.tables import Table, halvings
from neuroshard.words.collective import ELEMENT_BYTES
from neuroshard.words.form import CUT_FORMS, forms_named
from neuroshard.words.placement import Tier, TierAssignment, block_rows

T = TypeVar("T")


def one_of(choices: Sequence[T], rng: np.random.Generator) -> T:
    """Draw one of the choices with equal probability; with a single choice, no random number is drawn from `rng`."""
    return choices[0 if len(choices) == 1 else int(rng.integers(len(choices)))]


@dataclass(frozen=True)
@checked
class ComputeAugmentation:
    """Settings of the random combinations of tables whose kernel calls are measured.

    Attributes:
        max_dim: maximum number of columns of a table, a power of two from 4 to 2048; tables get max_dim halved a random
            number of times, down to 4, except for the tables of arbitrary_dim_fraction.
        min_tables: minimum number of tables that one measured kernel call looks up.
        max_tables: maximum number of tables that one measured kernel call looks up.
        max_bytes: maximum bytes of the weights of all tables in a kernel call; row-wise tables count with the rows of
            one device only.
        arbitrary_dim_fraction: fraction of tables, from 0 to 1, whose number of columns is a random multiple of 4 up to
            max_dim; all other tables get max_dim halved a random number of times. Narrow widths come more often. Plans
            have such widths, for example half of a table of 100 columns.
        sharding_types: list of sharding types of the measured tables: column_wise, row_wise (each call sees the rows of
            one device) or data_parallel; a type listed twice is drawn twice as often.
        sharers: list of job sizes in devices, such as [2,4,8], for row-wise and data-parallel kernel calls; each call
            does the work of one device of a job whose size is drawn from this list.
        hot_rows_first_fraction: fraction of row-wise kernel calls, from 0 to 1, in which frequently used rows have the
            lowest row numbers, so that the first devices look up more; in the other calls, these rows have random
            numbers.
        max_copy_bytes: maximum bytes of the weights of all tables in a data-parallel kernel call.
        features: list of numbers of features that read the same table, such as [1,2]; the number of each table is drawn
            from this list, and a number listed twice is drawn twice as often.
        pooled: list with true (kernel calls on pooled tables), false (kernel calls on sequence tables, with one output
            row per lookup), or both; [true,false] draws both equally often. Each column-wise or row-wise combination
            has tables of one kind. The sequence tables of a combination have one width.
        max_output_bytes: maximum bytes of the outputs of one kernel call on sequence tables. A table alone may have
            more.
        tiers: list of memory tiers that kernel calls are drawn for: device, uvm_caching (host memory with a cache on
            the device) or uvm (host memory); the last two need a GPU. A tier that is listed twice comes twice as often.
            In host memory hot rows are anywhere.
        cache_load_factor: list of cache sizes, as fractions of a table's rows, such as [0.1,0.2]; the cache size of
            each kernel call in tier uvm_caching is drawn from this list. The cache takes at most max_bytes, with rows
            as wide as the widest table.
    """

    max_dim: ShardDim = 128
    min_tables: TableCount = 1
    max_tables: TableCount = 15
    max_bytes: ByteSize = 4 << 30
    arbitrary_dim_fraction: Share = 0.0
    sharding_types: Annotated[tuple[str, ...], Meta(min_length=1)] = ("column_wise",)
    sharers: Annotated[tuple[Devices, ...], Meta(min_length=1)] = (2, 3, 4, 6, 8, 16)
    hot_rows_first_fraction: Share = 0.5
    max_copy_bytes: ByteSize = 64 << 20
    features: Annotated[tuple[Features, ...], Meta(min_length=1)] = (1,)
    pooled: Annotated[tuple[bool, ...], Meta(min_length=1)] = (True,)
    max_output_bytes: ByteSize = 32 << 20
    tiers: Annotated[tuple[str, ...], Meta(min_length=1)] = (Tier.DEVICE,)
    cache_load_factor: Annotated[tuple[CacheShare, ...], Meta(min_length=1)] = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)

    def __post_init__(self) -> None:
        halvings(self.max_dim)
        object.__setattr__(self, "sharding_types", forms_named(self.sharding_types))
        object.__setattr__(self, "tiers", tuple(Tier(tier) for tier in self.tiers))
        if self.min_tables > self.max_tables:
            raise UserError(
                "compute-min-tables-above-max",
                f"compute.min_tables is {self.min_tables}",
                limit=f"compute.min_tables must not be above compute.max_tables, which is {self.max_tables}",
                remedy=f"Set compute.min_tables to {self.max_tables} or less, or raise compute.max_tables",
            )

    def check(self, split: Split) -> None:
        """Raise UserError if these settings do not suit the tables in `split` (groups of train, valid and test tables).
        Each table must take at most `max_bytes` at the minimum width. Each sharding type must be possible for at least
        one table of each group; for example, some tables must have enough rows for row_wise.
        """
        for table in chain(*split.values()):
            size = self._narrowest(table).size_bytes
            if size > self.max_bytes:
                raise UserError(
                    "compute-table-too-large",
                    f"table {table.name!r} takes {size} bytes even with only {self._narrowest(table).dim} columns",
                    limit=f"compute.max_bytes is {self.max_bytes}",
                    remedy=f"Set compute.max_bytes to {size} or more, or remove the table",
                )
        for layout, (name, group) in product(self._layouts, split.items()):
            if layout.dense and not self._shared(layout, group, 1):
                raise UserError(
                    "compute-copies-too-large",
                    f"all tables of the {name} split are too large to be data_parallel",
                    limit=f"data-parallel tables may take at most compute.max_copy_bytes={self.max_copy_bytes} bytes",
                    remedy="Raise compute.max_copy_bytes, or remove data_parallel from compute.sharding_types",
                )
            for sharers in self.sharers if layout.blocks else ():
                if not self._shared(layout, group, sharers):
                    raise UserError(
                        "compute-tables-few-rows",
                        f"all tables of the {name} split have too few rows for row_wise sharding over {sharers} "
                        "devices",
                        limit=f"compute.sharers has {sharers}",
                        remedy=f"Remove {sharers} from compute.sharers, or row_wise from compute.sharding_types",
                    )

    @property
    def _layouts(self) -> list[Layout]:
        """The families of the configured sharding types (column-wise, row-wise or data-parallel).
        All tables of one combination belong to the same family.
        """
        return [LAYOUTS[form] for form in forms_named(self.sharding_types)]

    def draw(self, split: Split, batch_size: int, rng: np.random.Generator) -> tuple[ComputeSample, str]:
        """Draw a combination of tables for a global batch size. Return the kernel call on these tables, and the name of
        the split that the tables belong to: train, valid or test.

        A table that does not fit into the remaining bytes gets the largest width that fits, or is left out.
        """
        layout = one_of(self._layouts, rng)
        name = draw_split(rng)
        return self._draw_in_layout(layout, split[name], batch_size, rng), name

    def _draw_in_layout(
        self, layout: Layout, group: tuple[Table, ...], batch_size: int, rng: np.random.Generator
    ) -> ComputeSample:
        """Draw a combination of tables from `group`, and return the kernel call of one device on these tables.
        `layout` is a family of sharding types, such as row-wise. The family determines which rows of the tables are on
        the device, and which samples of the batch the device looks up.
        """
        cut = layout.form in CUT_FORMS  # data-parallel tables are pooled, and in device memory
        pooled = one_of(self.pooled, rng) if cut else True
        sharers = 1 if layout.free else one_of(self.sharers, rng)
        samples, blocks = max(1, batch_size // layout.batch_shares(sharers)), sharers if layout.blocks else 1
        shared = _of_one_precision(self._shared(layout, group, blocks), rng)
        most = self.max_copy_bytes if layout.dense else self.max_bytes
        tables = (
            self._combination(most, shared, blocks, rng)
            if pooled
            else self._sequence_tables(samples, shared, blocks, rng)
        )
        if layout.blocks:
            sample = self._in_blocks(layout, tables, samples, sharers, rng)
        else:
            sample = ComputeSample(tables, samples, layout.form)
        return self._with_tier(sample, rng) if cut else sample

    def _with_tier(self, sample: ComputeSample, rng: np.random.Generator) -> ComputeSample:
        """Draw a memory tier, and return the sample with all tables in this tier."""
        tier = Tier(one_of(self.tiers, rng))
        if tier is Tier.DEVICE:
            return sample
        assignment = TierAssignment(tier, one_of(self.cache_load_factor, rng) if tier is Tier.UVM_CACHING else None)
        return self._within_cache(replace(sample, tier_assignment=assignment, hot_first=0.0))

    def _within_cache(self, sample: ComputeSample) -> ComputeSample:
        """Make wide tables of the sample narrower, so that FBGEMM's cache for these tables takes at most `max_bytes` of
        device memory, and return the changed sample. No table gets fewer than 4 columns, even if the cache is then
        larger than `max_bytes`.

        FBGEMM's cache has rows as wide as the widest table of the kernel call.
        """
        held, element_bytes = sample.held, sample.tables[0].bytes_per_element
        rows = sum(ceil(table.rows * sample.tier_assignment.cached_share) for table in held)
        most = max(self.max_bytes // max(rows * element_bytes, 1) // DIM_MULTIPLE, 1) * DIM_MULTIPLE
        if max(table.dim for table in held) <= most:
            return sample
        return replace(sample, tables=tuple(table.with_dim(min(table.dim, most)) for table in sample.tables))

    def _in_blocks(
        self, layout: Layout, tables: tuple[Table, ...], samples: int, sharers: int, rng: np.random.Generator
    ) -> ComputeSample:
        """Draw one row block of each table, and return the kernel call on these row blocks. Each table is divided into
        `sharers` equal row blocks.

        In a fraction `hot_rows_first_fraction` of the row-wise kernel calls, a random share of the frequently used rows
        of each table gets the lowest row numbers. Then the first row block gets more lookups than the other row blocks.
        """
        blocks = tuple(RowBlock(*row_blocks(table, sharers)[rng.integers(sharers)]) for table in tables)
        hot_first = float(rng.random()) if rng.random() < self.hot_rows_first_fraction else 0.0
        return ComputeSample(tables, samples, layout.form, blocks, hot_first)

    def _sequence_tables(
        self, batch_size: int, group: tuple[Table, ...], sharers: int, rng: np.random.Generator
    ) -> tuple[Table, ...]:
        """Draw sequence tables of one width for a kernel call of one device, and return the tables.
        The device has one of `sharers` equal row blocks of each table. The settings limit the bytes of these row blocks
        and the bytes of their outputs.

        The tables are in random order. If no table fits, the result is the table with the smallest pooling factor, at
        the minimum width.
        """
        count = int(rng.integers(self.min_tables, self.max_tables + 1))
        width = self._width(int(rng.choice(halvings(self.max_dim))), rng)
        order = [
            replace(group[t], dim=width, pooled=False, features=one_of(self.features, rng))
            for t in rng.permutation(len(group))
        ]
        chosen: list[Table] = []
        room, outputs = self.max_bytes, float(self.max_output_bytes)
        for table in order:
            size, output_bytes = _block_bytes(table, sharers), _output_bytes(table, batch_size, sharers)
            if len(chosen) < count and size <= room and output_bytes <= outputs:
                chosen.append(table)
                room, outputs = room - size, outputs - output_bytes
        return tuple(chosen) or (self._narrowest(min(order, key=lambda table: table.pooling_factor)),)

    def _narrowest(self, table: Table) -> Table:
        """Return the table, narrowed to the minimum width that the settings allow."""
        return table.with_dim(halvings(self.max_dim)[-1])

    def _shared(self, layout: Layout, group: tuple[Table, ...], blocks: int) -> tuple[Table, ...]:
        """Return the tables of `group` that may have a sharding type of the family `layout`, such as data-parallel. A
        data-parallel table must take at most `max_copy_bytes` at the minimum width. A row-wise table must have enough
        rows to be divided into `blocks` equal row blocks, none of which is empty.
        """
        small = (
            table for table in group if not layout.dense or self._narrowest(table).size_bytes <= self.max_copy_bytes
        )
        return tuple(table for table in small if ROW_WISE_LAYOUT.fits(table.rows, blocks))

    def _combination(
        self, max_bytes: int, group: tuple[Table, ...], sharers: int, rng: np.random.Generator
    ) -> tuple[Table, ...]:
        """Draw pooled tables from `group` for a kernel call of one device, and return the tables. Each table is divided
        into `sharers` equal row blocks, and the device has one row block of each table. All row blocks on the device
        together take at most `max_bytes`.
        """
        count = int(rng.integers(self.min_tables, self.max_tables + 1))
        chosen: list[Table] = []
        room = max_bytes
        for table in self._augmented(group, count, rng):
            fitted = self._fitted(table, room, sharers)
            if fitted is not None:
                chosen.append(replace(fitted, features=one_of(self.features, rng), pooled=True))
                room -= _block_bytes(fitted, sharers)
        return tuple(chosen)

    def _augmented(self, group: tuple[Table, ...], count: int, rng: np.random.Generator) -> list[Table]:
        """Draw `count` different (table, width) pairs, and return the tables with these widths.
        A table comes twice only if the group has fewer tables than `count`.
        """
        widths = halvings(self.max_dim)
        order = rng.permutation(len(group))
        turns = [rng.permutation(len(widths)) for _ in order]
        pairs = [(order[i % len(order)], i // len(order)) for i in range(min(count, len(group) * len(widths)))]
        return [group[t].with_dim(self._width(widths[int(turns[t][turn])], rng)) for t, turn in pairs]

    def _width(self, halving: int, rng: np.random.Generator) -> int:
        """Draw a width for a table, and return the width: with probability `arbitrary_dim_fraction` a random width, and
        otherwise the given width `halving`, which is `max_dim` divided by a power of two. A random width is a multiple
        of 4 up to `max_dim`, and narrow widths are more likely.
        """
        if rng.random() >= self.arbitrary_dim_fraction:
            return halving
        units = self.max_dim // DIM_MULTIPLE
        return DIM_MULTIPLE * min(int((units + 1) ** rng.random()), units)

    def _fitted(self, table: Table, room: int, sharers: int) -> Table | None:
        """Return the table at the largest allowed width that fits, or None if no width fits.
        A width fits if each of `sharers` equal row blocks of the table takes at most `room` bytes.
        """
        narrower = (w for w in halvings(self.max_dim) if w < table.dim)
        fitting = (w for w in (table.dim, *narrower) if _block_bytes(table.with_dim(w), sharers) <= room)
        width = next(fitting, None)
        return None if width is None else table.with_dim(width)


def _of_one_precision(group: tuple[Table, ...], rng: np.random.Generator) -> tuple[Table, ...]:
    """Draw one table of the group at random, and return all tables of the group that have the same bytes per element as
    the drawn table.

    One kernel call never mixes precisions.
    """
    if len({table.bytes_per_element for table in group}) == 1:
        return group
    drawn = group[int(rng.integers(len(group)))]
    return tuple(table for table in group if table.bytes_per_element == drawn.bytes_per_element)


def _output_bytes(table: Table, batch_size: int, sharers: int) -> float:
    """Return the bytes of the embeddings that a device looks up for a batch in one row block of a sequence table. The
    table is divided into `sharers` equal row blocks. The lookups are assumed to be spread evenly over the row blocks.
    """
    return ELEMENT_BYTES * table.output_columns * batch_size / sharers


def _block_bytes(table: Table, sharers: int) -> int:
    """Return the bytes of one row block of a table that is divided into `sharers` equal row blocks."""
    return replace(table, rows=block_rows(table.rows, sharers)).size_bytes
