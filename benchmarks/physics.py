"""How often cost models break what physics guarantees where a search looks: inside the ranges they were fitted to.

usage: physics.py [MODEL ...]    (cpu; names or places of cost models)

Every row compares two costs that physics orders, on random tables, devices and exchanges; a case breaks it where the
one that must not be cheaper is, by more than rounding.
"""

import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from neuroshard.cost.loads import LoadSets
from neuroshard.cost.traffic import Traffic
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.tables import Table
from neuroshard.tables.sources.dlrm_like import dlrm_like

_CASES = 2000
_ROUNDING = 1e-5  # single precision
_BATCH_SIZES = (256, 512, 1024, 2048, 4096, 8192)
_UNITS = 32  # dims up to 128, in units of 4 columns
_WIDEST = 1500
_NUDGE_MS = 1e-12


def main() -> None:
    for name in sys.argv[1:] or ["cpu"]:
        models = CostModels.load(name)
        print(f"{name}\n\n| case | broken | by, worst |\n| --- | --- | --- |")
        for what, case in _COMPUTE.items():
            print(_row(what, *_compute(models, case)))
        for what, costs in _COMM.items():
            print(_row(what, *costs(models, np.random.default_rng(0))), flush=True)


def _row(what: str, less: FloatArray, more: FloatArray) -> str:
    """Of costs (n,) of which `more` must not be below `less`."""
    short = 1 - more / less
    return f"| {what} | {(short > _ROUNDING).mean():.1%} | {max(short.max(), 0):.2%} |"


Case = Callable[[list[Table], np.random.Generator], tuple[list[Table], list[Table]]]  # must cost less, more


def _larger(tables: list[Table], _rng: np.random.Generator) -> tuple[list[Table], list[Table]]:
    return tables, [replace(table, rows=4 * table.rows) for table in tables]


def _precise(tables: list[Table], _rng: np.random.Generator) -> tuple[list[Table], list[Table]]:
    return [replace(table, bytes_per_element=2) for table in tables], tables


def _busier(tables: list[Table], _rng: np.random.Generator) -> tuple[list[Table], list[Table]]:
    return tables, [replace(table, pooling_factor=1.5 * table.pooling_factor) for table in tables]


def _one_more(tables: list[Table], _rng: np.random.Generator) -> tuple[list[Table], list[Table]]:
    return tables[:-1] or tables, tables


def _halved(tables: list[Table], _rng: np.random.Generator) -> tuple[list[Table], list[Table]]:
    wide = tables[0].with_dim(max(tables[0].dim // 8, 1) * 8)
    return [wide.with_dim(wide.dim // 2)], [wide]


def _halved_aligned(tables: list[Table], _rng: np.random.Generator) -> tuple[list[Table], list[Table]]:
    wide = tables[0].with_dim(64 * (1 + tables[0].dim // 65))
    return [wide.with_dim(wide.dim // 2)], [wide]


_COMPUTE: dict[str, Case] = {
    "4 times the rows": _larger,
    "fp32 instead of fp16": _precise,
    "half as many lookups more": _busier,
    "a table more": _one_more,
    "a lone shard twice as wide": _halved,
    "a lone shard 64 or 128 wide instead of 32 or 64": _halved_aligned,
}


def _compute(models: CostModels, case: Case) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(0)
    less, more = [], []
    for batch_size in _BATCH_SIZES:
        pool = dlrm_like(num_tables=200, batch_size=batch_size, seed=7)
        pairs = [case(_tables(pool, rng), rng) for _ in range(_CASES // len(_BATCH_SIZES))]
        less.append(models.compute.predict(LoadSets.of([pair[0] for pair in pairs], batch_size)))
        more.append(models.compute.predict(LoadSets.of([pair[1] for pair in pairs], batch_size)))
    return np.concatenate(less), np.concatenate(more)


def _tables(pool: tuple[Table, ...], rng: np.random.Generator) -> list[Table]:
    chosen = rng.choice(len(pool), size=rng.integers(1, 13), replace=False)
    return [_within(pool[i].with_dim(4 * int(rng.integers(1, _UNITS + 1)))) for i in chosen]


def _within(table: Table) -> Table:
    """So few rows that 4 times as many are still in the range that the installed models were fitted to."""
    return replace(table, rows=min(table.rows, 800_000))


def _longer(models: CostModels, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """The cost of a step where one device computes up to 2 ms longer."""
    less, more = [], []
    for dims, compute, batch_size in _steps(rng):
        later = compute.copy()
        later[np.arange(len(later)), rng.integers(later.shape[1], size=len(later))] += rng.uniform(0, 2, len(later))
        less.append(_step_ms(models, dims, compute, batch_size))
        more.append(_step_ms(models, dims, later, batch_size))
    return np.concatenate(less), np.concatenate(more)


def _nudged(models: CostModels, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Forward costs that must be equal: everybody starts at once, or one a picosecond later; the larger, the smaller.

    A device that starts later may be done sooner after its own start, by a picosecond.
    """
    less, more = [], []
    for dims, compute, batch_size in _steps(rng):
        later = 0 * compute
        later[:, 0] = _NUDGE_MS
        one, other = (
            models.forward.predict(Traffic.of_columns(dims, batch_size), starts) for starts in (0 * compute, later)
        )
        less.append(np.maximum(one, other).max(axis=1))
        more.append(np.minimum(one, other).min(axis=1) + np.ptp(one, axis=1))
    return np.concatenate(less), np.concatenate(more)


def _wider(direction: str) -> Callable[[CostModels, np.random.Generator], tuple[FloatArray, FloatArray]]:
    def costs(models: CostModels, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        less, more = [], []
        for dims, compute, batch_size in _steps(rng):
            wider = dims.copy()
            wider[np.arange(len(dims)), dims.argmax(axis=1)] += 64
            starts = compute if direction == "forward" else 0 * compute
            one, other = (
                getattr(models, direction).predict(Traffic.of_columns(d, batch_size), starts) + starts
                for d in (dims, wider)
            )
            less.append(one.max(axis=1))
            more.append(other.max(axis=1))
        return np.concatenate(less), np.concatenate(more)

    return costs


_COMM: dict[str, Callable[[CostModels, np.random.Generator], tuple[FloatArray, FloatArray]]] = {
    "a device computes longer: the step": _longer,
    "a start moves by 1e-12 ms: forward, difference": _nudged,
    "64 more columns on the widest device: forward": _wider("forward"),
    "64 more columns on the widest device: backward": _wider("backward"),
}


def _steps(rng: np.random.Generator) -> list[tuple[FloatArray, FloatArray, int]]:
    """Columns and compute costs (n, D) of devices, as balanced as a search's plans or less, with a batch size."""
    shapes = [(devices, batch_size) for devices in (2, 3, 4, 6, 8) for batch_size in _BATCH_SIZES]
    made = []
    for devices, batch_size in shapes:
        shape = (-(-_CASES // len(shapes)), devices)
        spread = rng.uniform(0, 1, size=(shape[0], 1))
        dims = 4 * np.round(
            rng.uniform(40, _WIDEST / 4 - 16, size=(shape[0], 1)) * (1 - spread * rng.uniform(size=shape))
        )
        compute = rng.uniform(2, 30, size=(shape[0], 1)) * (1 - spread * rng.uniform(size=shape) * rng.uniform())
        made.append((np.maximum(dims, 4.0), compute, batch_size))
    return made


def _step_ms(models: CostModels, dims: FloatArray, compute: FloatArray, batch_size: int) -> FloatArray:
    forward, backward = Simulator(models).communication(Traffic.of_columns(dims, batch_size), compute)
    step: FloatArray = (backward + compute + forward).max(axis=1)
    return step


if __name__ == "__main__":
    main()
