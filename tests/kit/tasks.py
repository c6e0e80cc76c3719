"""Tables and tasks made by hand, in tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from neuroshard import Table, Task, Topology, zipf_reuse
from neuroshard.testing import ONCE

Numbers = float | Sequence[float] | np.ndarray  # a number for all tables, or a number for each table


def plain_tables(dims: Numbers, rows: Numbers = 1000, lookups: Numbers = 2.0) -> tuple[Table, ...]:
    """Make tables t0, t1, ...; a batch looks up each of their rows at most once."""
    shapes = zip(*(numbers.tolist() for numbers in np.broadcast_arrays(dims, rows, lookups)), strict=True)
    return tuple(Table(f"t{i}", rows, dim, float(lookups), ONCE) for i, (dim, rows, lookups) in enumerate(shapes))


def plain_task(
    dims: Numbers,
    rows: Numbers = 1000,
    lookups: Numbers = 2.0,
    devices: int = 2,
    memory_bytes: int | tuple[int, ...] = 1 << 30,
    **fields: Any,
) -> Task:
    """Make a task of `plain_tables`, with batches of 256 samples; `fields` are other fields of the task."""
    return Task(plain_tables(dims, rows, lookups), Topology(devices, memory_bytes), **{"batch_size": 256} | fields)


def hot_table(name: str, rows: int, dim: int, lookups: float, batch_size: int = 65536, **fields: Any) -> Table:
    """Make a table some of whose rows are looked up far more often than others."""
    return Table(name, rows, dim, float(lookups), zipf_reuse(rows, batch_size * lookups), **fields)
