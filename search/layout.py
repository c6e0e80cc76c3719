"""Column-wise splits: how wide the shards of every table are, before they are placed."""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import IntArray
from neuroshard.search.catalog import Catalog


@dataclass(frozen=True)
class Layout:
    """How wide the shards of a task are; tables that are whole are not listed.

    Attributes:
        splits: for every split table, in order, its number and its shards' widths in units of 4 columns, ascending.
    """

    splits: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def widths_of(self, table: int, catalog: Catalog) -> tuple[int, ...]:
        """Widths of the table's shards, ascending."""
        return dict(self.splits).get(table, (int(catalog.full_width[table]),))

    def split(self, table: int, width: int, catalog: Catalog) -> "Layout":
        """One shard of that width cut in half; an odd number of units is cut as evenly as it goes."""
        widths = list(self.widths_of(table, catalog))
        widths.remove(width)
        widths += [width // 2, width - width // 2]
        return Layout(tuple(sorted((dict(self.splits) | {table: tuple(sorted(widths))}).items())))

    def shards(self, catalog: Catalog) -> IntArray:
        """(S, 2) all shards as (table, width): whole tables in order, then the split ones."""
        split = np.array([table for table, _ in self.splits], dtype=np.int64)
        whole = np.delete(np.arange(catalog.num_tables), split)
        kept = np.stack([whole, catalog.full_width[whole]], axis=1)
        cut = np.array([(table, w) for table, widths in self.splits for w in widths], dtype=np.int64).reshape(-1, 2)
        return np.concatenate([kept, cut])
