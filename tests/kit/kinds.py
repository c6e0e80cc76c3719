"""Random tasks with tables that no default was tuned to: hot, narrow, wide, of one width, small, few, mixed."""

import numpy as np

from neuroshard import Table, Task, Topology, zipf_reuse
from neuroshard.tables.reuse import ZIPF_EXPONENT

KINDS = ("hot", "narrow", "wide", "one_width", "small", "few", "mixed")
_LEAST_MEMORY = 64 << 20


def task_of(number: int) -> Task:
    """Return task `number`, of alternating kinds, on 2, 4 or 8 devices with much, some or hardly any free memory."""
    rng = np.random.default_rng([7, number])
    devices, batch_size = int(rng.choice([2, 2, 4, 8])), int(rng.choice([1024, 4096, 16384]))
    tables = _tables(KINDS[number % len(KINDS)], rng, int(rng.integers(10, 40)), batch_size)
    even = sum(table.size_bytes for table in tables) / devices
    memory = int(max(even * rng.choice([1.3, 2, 6]), _LEAST_MEMORY))
    return Task(tables, Topology(devices, memory), batch_size)


def _tables(kind: str, rng: np.random.Generator, count: int, batch_size: int) -> tuple[Table, ...]:
    def table(number: int, log_rows: tuple[float, float], dims: tuple[int, ...], pooling: float) -> Table:
        rows = int(10 ** rng.uniform(*log_rows))
        reuse = zipf_reuse(rows, batch_size * pooling, ZIPF_EXPONENT)
        return Table(f"t{number}", rows, int(rng.choice(dims)), float(pooling), reuse)

    def few_lookups() -> float:
        return float(np.ceil(rng.lognormal(1, 1)))

    match kind:
        case "hot":
            hot = table(0, (3, 6), (64, 128), float(rng.integers(60, 200)))
            return (hot, *(table(i, (2, 6), (16, 32, 64), float(rng.integers(1, 4))) for i in range(1, count)))
        case "narrow":
            return tuple(table(i, (2, 6.5), (4, 8, 12, 16), few_lookups()) for i in range(count))
        case "wide":
            return tuple(table(i, (3, 6), (128, 256, 512), few_lookups()) for i in range(max(count // 3, 2)))
        case "one_width":
            dim = int(rng.choice([16, 64, 128]))
            return tuple(table(i, (1, 6.5), (dim,), few_lookups()) for i in range(count))
        case "small":
            return tuple(table(i, (1, 3.5), (16, 32, 64), float(rng.integers(1, 6))) for i in range(2 * count))
        case "few":
            return tuple(table(i, (4, 6.5), (64, 128), float(rng.integers(1, 30))) for i in range(4))
    return tuple(table(i, (1, 6.8), (4, 8, 16, 32, 64, 128), few_lookups()) for i in range(count))
