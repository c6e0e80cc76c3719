"""Random combinations of augmented tables (NeuroShard, section 3.1): every table at many widths."""

from dataclasses import dataclass

import numpy as np

from neuroshard.checked import checked
from neuroshard.errors import UserError
from neuroshard.records.samples import ComputeSample
from neuroshard.records.splits import TableSplit, draw_split
from neuroshard.schema import DIM_MULTIPLE, Dim, Share, TableCount
from neuroshard.tables import Table, halvings
from neuroshard.units import ByteSize


@dataclass(frozen=True)
@checked
class ComputeAugmentation:
    """Which combinations are drawn.

    Attributes:
        max_dim: tables are drawn at widths max_dim, max_dim / 2, ..., 4.
        any_width_share: share of the tables drawn at any multiple of 4 up to max_dim instead, narrow ones more often:
            halving a table of 100 columns, or moving a few, gives widths that halving 128 never does.
        min_tables, max_tables: how many a combination holds.
        max_bytes: of a combination's weights.
    """

    max_dim: Dim = 128
    min_tables: TableCount = 1
    max_tables: TableCount = 15
    max_bytes: ByteSize = 4 << 30
    any_width_share: Share = 0.0

    def __post_init__(self) -> None:
        halvings(self.max_dim)
        if self.min_tables > self.max_tables:
            raise UserError(
                f"compute samples: min_tables={self.min_tables} must lie in 1..max_tables={self.max_tables}"
            )

    def check(self, tables: tuple[Table, ...]) -> None:
        """Raise UserError unless every table fits under the cap at its narrowest."""
        narrowest = halvings(self.max_dim)[-1]
        for table in tables:
            size = table.with_dim(narrowest).size_bytes
            if size > self.max_bytes:
                raise UserError(
                    f"table {table.name!r} takes {size} bytes at dim {narrowest}, above max_bytes={self.max_bytes}; "
                    "raise compute.max_bytes or leave the table out"
                )

    def draw(self, split: TableSplit, batch_size: int, rng: np.random.Generator) -> tuple[ComputeSample, str]:
        """One combination of tables of one split, with the split's name.

        A table that no longer fits under the cap is taken at the widest width that does, or left out.
        """
        name = draw_split(rng)
        group = split.group(name)
        count = int(rng.integers(self.min_tables, self.max_tables + 1))
        chosen: list[Table] = []
        room = self.max_bytes
        for table in self._augmented(group, count, rng):
            fitted = self._fitted(table, room)
            if fitted is not None:
                chosen.append(fitted)
                room -= fitted.size_bytes
        return ComputeSample(tuple(chosen), batch_size), name

    def _augmented(self, group: tuple[Table, ...], count: int, rng: np.random.Generator) -> list[Table]:
        """`count` different (table, width) pairs; a table comes twice only where the group is too small."""
        widths = halvings(self.max_dim)
        order = rng.permutation(len(group))
        turns = [rng.permutation(len(widths)) for _ in order]
        pairs = [(order[i % len(order)], i // len(order)) for i in range(min(count, len(group) * len(widths)))]
        return [group[t].with_dim(self._width(widths[int(turns[t][turn])], rng)) for t, turn in pairs]

    def _width(self, halving: int, rng: np.random.Generator) -> int:
        """`halving`, or any width, its logarithm uniform."""
        if rng.random() >= self.any_width_share:
            return halving
        units = self.max_dim // DIM_MULTIPLE
        return DIM_MULTIPLE * min(int((units + 1) ** rng.random()), units)

    def _fitted(self, table: Table, room: int) -> Table | None:
        narrower = (w for w in halvings(self.max_dim) if w < table.dim)
        fitting = (w for w in (table.dim, *narrower) if table.with_dim(w).size_bytes <= room)
        width = next(fitting, None)
        return None if width is None else table.with_dim(width)
