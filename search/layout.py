"""Column-wise splits: how wide the shards of every table are, before they are placed."""

from dataclasses import dataclass

from neuroshard.search.catalog import Catalog


@dataclass(frozen=True)
class Layout:
    """All shards of a task as (table, width in units of 4 columns), in a fixed order: equal layouts are equal."""

    shards: tuple[tuple[int, int], ...]

    @classmethod
    def unsplit(cls, catalog: Catalog) -> "Layout":
        """Every table whole."""
        return cls(tuple((table, int(width)) for table, width in enumerate(catalog.full_width)))

    def split(self, shard: tuple[int, int]) -> "Layout":
        """One such shard cut in half; an odd number of units is cut as evenly as it goes."""
        table, width = shard
        rest = list(self.shards)
        rest.remove(shard)
        return Layout(tuple(sorted([*rest, (table, width // 2), (table, width - width // 2)])))

    def candidates(self, catalog: Catalog, count: int) -> list[tuple[int, int]]:
        """Shards worth splitting: the `count` largest in bytes and the `count` most expensive, without repeats.

        NeuroShard, section 3.3: the union of both, each shard of at least 8 columns.
        """
        splittable = sorted({shard for shard in self.shards if shard[1] >= 2})
        by_size = sorted(splittable, key=lambda s: -catalog.bytes_per_unit[s[0]] * s[1])[:count]
        by_cost = sorted(splittable, key=lambda s: -catalog.cost_ms[s])[:count]
        return list(dict.fromkeys([*by_size, *by_cost]))

    def largest_bytes(self, catalog: Catalog) -> int:
        """Bytes of the largest shard."""
        return max(int(catalog.bytes_per_unit[table]) * width for table, width in self.shards)
