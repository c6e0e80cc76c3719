"""The catalog of some of a task's tables, without making it anew: only memory differs from try to try."""

from dataclasses import fields, replace

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, IntArray
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.forms import part_of
from neuroshard.stages.search.space.items import Item, Items
from neuroshard.stages.search.space.limits import Limits

_NOT_OF_ENTRIES = ("items", "first", "full_width", "model")  # all other fields are arrays of entries


def part_of_catalog(catalog: Catalog, tables: IntArray, free_bytes: IntArray) -> Catalog:
    """The catalog of some of its task's tables (t,), ascending, where shards have `free_bytes` (D,), all above 0.

    Tables that are kept together or apart, or whose shards are pinned, must all be among them, or none.
    """
    number = np.full(len(catalog.items.task.tables), -1)
    number[tables] = np.arange(len(tables))
    kept: BoolArray = number[[item.parts[0][0] for item in catalog.items.items]] >= 0  # (I,)
    full_width, entries = catalog.full_width[kept], kept[catalog.item]
    arrays = [field.name for field in fields(Catalog) if field.name not in _NOT_OF_ENTRIES]
    its = (item for item, stays in zip(catalog.items.items, kept.tolist(), strict=True) if stays)
    return Catalog(
        items=Items(
            part_of(catalog.items.task, tables.tolist(), free_bytes),
            tuple(_renumbered(item, number) for item in its),
            _limits(catalog.items.limits, kept),
        ),
        first=np.concatenate([[0], (full_width + 1).cumsum()[:-1]]),
        full_width=full_width,
        model=catalog.model,
        **{name: getattr(catalog, name)[entries] for name in arrays},
    )


def _renumbered(item: Item, number: IntArray) -> Item:
    return replace(item, parts=tuple((int(number[table]), units) for table, units in item.parts))


def _limits(limits: Limits, kept: BoolArray) -> Limits:
    """Return the limits of the items that are kept (I,): with all of their rivals."""
    place, count = kept.cumsum() - 1, np.diff(limits.rival_first)
    return Limits(
        limits.allowed[kept],
        limits.min_shards[kept],
        limits.max_shards[kept],
        limits.min_width[kept],
        np.concatenate([[0], count[kept].cumsum()]),
        place[limits.rivals[np.repeat(kept, count)]],
    )
