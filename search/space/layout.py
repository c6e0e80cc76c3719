"""Column-wise splits: how wide the shards of every item are, before they are placed."""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import IntArray
from neuroshard.stages.search.space.catalog import Catalog

_LEAST_MS = 1e-9  # of a device's share: models may say that nothing costs anything


@dataclass(frozen=True)
class Layout:
    """How wide the shards of a task are; items that are whole are not listed.

    Attributes:
        splits: for every split item, in order, its number and its shards' widths in units of 4 columns, ascending.
    """

    splits: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @classmethod
    def least(cls, catalog: Catalog) -> "Layout":
        """Every item in as few shards as its limits allow, as even as it goes."""
        needed = [
            (i, int(catalog.items.limits.min_shards[i]))
            for i in np.flatnonzero(catalog.items.limits.min_shards > 1).tolist()
        ]
        return cls(tuple((item, _even(int(catalog.full_width[item]), count)) for item, count in needed))

    @classmethod
    def even(cls, catalog: Catalog, most: float) -> "Layout":
        """Every item in as few shards, as even as it goes, as leave none above `most` of a device's even share.

        A shard's share is of all compute or of all columns, whichever is larger. Items that may not be split that far
        are split as far as they may.
        """
        limits, num_devices = catalog.items.limits, catalog.items.task.topology.num_devices
        cost_ms = max(catalog.cost_ms[catalog.whole].sum() / num_devices, _LEAST_MS)
        columns = catalog.full_width.sum() / num_devices
        counts = np.minimum(limits.max_shards, limits.allowed.sum(axis=1))
        splits = []
        for item in range(catalog.num_items):
            width, count = int(catalog.full_width[item]), int(limits.min_shards[item])
            while count < counts[item]:
                widest = -(-width // count)
                share = max(catalog.cost_ms[catalog.first[item] + widest] / cost_ms, widest / columns)
                if share <= most:
                    break
                count += 1
            if count > 1:
                splits.append((item, _even(width, count)))
        return cls(tuple(splits))

    def widths_of(self, item: int, catalog: Catalog) -> tuple[int, ...]:
        """Widths of the item's shards, ascending."""
        return dict(self.splits).get(item, (int(catalog.full_width[item]),))

    def split(self, item: int, width: int, catalog: Catalog) -> "Layout":
        """One shard of that width cut in half; an odd number of units is cut as evenly as it goes."""
        widths = list(self.widths_of(item, catalog))
        widths.remove(width)
        widths += [width // 2, width - width // 2]
        return Layout(tuple(sorted((dict(self.splits) | {item: tuple(sorted(widths))}).items())))

    def shards(self, catalog: Catalog) -> IntArray:
        """(S, 2) all shards as (item, width): whole items in order, then the split ones."""
        split = np.array([item for item, _ in self.splits], dtype=np.int64)
        whole = np.delete(np.arange(catalog.num_items), split)
        kept = np.stack([whole, catalog.full_width[whole]], axis=1)
        cut = np.array([(item, w) for item, widths in self.splits for w in widths], dtype=np.int64).reshape(-1, 2)
        return np.concatenate([kept, cut])

    def splittable(self, catalog: Catalog) -> IntArray:
        """(n, 2) its different shards that can be cut further."""
        shards = np.unique(self.shards(catalog), axis=0)
        count = np.ones(catalog.num_items, dtype=np.int64)
        for item, widths in self.splits:
            count[item] = len(widths)
        limits = catalog.items.limits
        wide = shards[:, 1] >= 2 * limits.min_width[shards[:, 0]]
        cut: IntArray = shards[wide & (count < limits.max_shards)[shards[:, 0]]]
        return cut


def _even(width: int, count: int) -> tuple[int, ...]:
    """`count` widths that sum to `width` and differ by 1 at most, ascending."""
    return (width // count,) * (count - width % count) + (width // count + 1,) * (width % count)
