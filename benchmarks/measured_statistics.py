"""What measured statistics are worth: plans made from guessed ones beside plans made from counted lookups.

usage: measured_statistics.py [--tasks 6] [--num-devices 2] [--tables 20] [--batch-size 4096] [--batches 4] [--passes 1]
                              [--model cpu] [--seed 0]

Lookups of every table follow a Zipf law of its own, from evenly spread to very skewed, the hottest rows first. Plans
are searched by cost models that are told different things of them: nothing but the shapes (a lookup a sample, one law
for all: what the planner guesses); the pooling factors besides, as TorchRec's constraints have them; what
`tables_from_batches` counts in a few batches; and the laws themselves. All plans of a task are then run on this CPU on
tables with the laws' statistics, interleaved: compute and exchanges. Predictions are of these true tables, too.
"""

import argparse
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import neuroshard as ns
from neuroshard.arrays import FloatArray, IntArray
from neuroshard.hardware import Hardware
from neuroshard.hardware.plan_costs import measure_plans
from neuroshard.registry import build
from neuroshard.tables.reuse import ZIPF_EXPONENT

TOLD = ("shapes", "pooling factors", "batches", "the laws")
_MEMORY = "8GiB"
_ROW_BLOCKS = 128
_ROWS, _POOLING = (1_000, 300_000), (1.0, 30.0)  # drawn evenly on logs
_DIMS = (16, 32, 64)
_EXPONENTS = (0.0, 1.5)  # drawn evenly


@dataclass(frozen=True)
class Law:
    """A table, and how its rows are looked up: the one of rank r = 1, 2, ... in proportion to r ** -exponent."""

    shape: ns.TableShape
    pooling_factor: float
    exponent: float

    @property
    def shares(self) -> FloatArray:
        """(rows,) of the lookups, in order of rows."""
        weight = np.arange(1, self.shape.rows + 1) ** -self.exponent
        shares: FloatArray = weight / weight.sum()
        return shares

    def drawn(self, samples: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Indices and lengths of a batch; lengths are Poisson."""
        lengths = rng.poisson(self.pooling_factor, samples)
        indices = np.searchsorted(self.shares.cumsum(), rng.random(int(lengths.sum())))
        return np.minimum(indices, self.shape.rows - 1), lengths

    def table(self, pooling_factor: float, exponent: float, batch_size: int, spread: Sequence[float] = ()) -> ns.Table:
        """What somebody takes it for."""
        its = self.shape
        reuse = ns.zipf_reuse(its.rows, batch_size * pooling_factor, exponent)
        return ns.Table(
            its.name, its.rows, its.dim, pooling_factor, reuse, its.bytes_per_element, batch_size, tuple(spread)
        )

    def true(self, batch_size: int) -> ns.Table:
        """What it is."""
        blocks = np.arange(self.shape.rows) * _ROW_BLOCKS // self.shape.rows
        spread = np.bincount(blocks, self.shares, minlength=_ROW_BLOCKS)
        return self.table(self.pooling_factor, self.exponent, batch_size, spread.tolist())


def draw_laws(count: int, rng: np.random.Generator) -> tuple[Law, ...]:
    """Laws of so many tables."""
    rows, pooling = (np.exp(rng.uniform(*np.log(ends), size=count)) for ends in (_ROWS, _POOLING))
    dims, exponents = rng.choice(_DIMS, size=count), rng.uniform(*_EXPONENTS, size=count)
    return tuple(
        Law(ns.TableShape(f"t{i}", int(rows[i]), int(dims[i])), float(pooling[i]), float(exponents[i]))
        for i in range(count)
    )


def told(
    laws: Sequence[Law], batch_size: int, num_devices: int, batches: int, rng: np.random.Generator
) -> Mapping[str, tuple[ns.Table, ...]]:
    """The tables as each of `TOLD` has them; counted in batches of one device each."""
    local = batch_size // num_devices
    drawn = ({law.shape.name: law.drawn(local, rng) for law in laws} for _ in range(batches * num_devices))
    counted = ns.tables_from_batches(
        [law.shape for law in laws], drawn, batch_size, splits="lengths", row_blocks=_ROW_BLOCKS
    )
    of_each = (
        tuple(law.table(1.0, ZIPF_EXPONENT, batch_size) for law in laws),
        tuple(law.table(law.pooling_factor, ZIPF_EXPONENT, batch_size) for law in laws),
        counted.tables,
        tuple(law.true(batch_size) for law in laws),
    )
    return dict(zip(TOLD, of_each, strict=True))


def plans_of(known: Mapping[str, tuple[ns.Table, ...]], task: ns.Task, simulator: ns.Simulator) -> list[ns.Plan]:
    """A plan for each of `TOLD`, as plans of `task`, whose tables are the true ones."""
    found = (
        ns.search(ns.Task(known[name], task.topology, task.batch_size), simulator, forms=["columns"]) for name in TOLD
    )
    return [ns.Plan(task, plan.placements) for plan in found]


def measured_ms(plans: Sequence[ns.Plan], hardware: Hardware, passes: int, seed: int) -> FloatArray:
    """(P,) mean over passes, each of which draws other lookups."""
    each = [measure_plans(plans, hardware, seed + number, print, lambda _: None) for number in range(passes)]
    for cost in (cost for costs in each for cost in costs if isinstance(cost, str)):
        raise ns.UserError(f"a plan couldn't be measured: {cost}")
    return np.array([[cost.total_ms for cost in costs if not isinstance(cost, str)] for costs in each]).mean(axis=0)


def rows(predicted: FloatArray, measured: FloatArray) -> Iterator[str]:
    """Of a markdown table: (N, P) ms of N tasks' plans for each of `TOLD`, and means relative to the first."""
    for number, (before, after) in enumerate(zip(predicted, measured, strict=True)):
        cells = (f"{ms:.1f} / {true:.1f}" for ms, true in zip(before, after, strict=True))
        yield f"| {number} | {' | '.join(cells)} |"
    gains = [np.log(ms / ms[:, :1]) for ms in (predicted, measured)]
    means = [np.exp(gain.mean(axis=0)) - 1 for gain in gains]
    error = gains[1].std(axis=0, ddof=1) / len(measured) ** 0.5 if len(measured) > 1 else np.full(len(TOLD), np.nan)
    cells = (f"{p:+.1%} / {m:+.1%} ± {e:.1%}" for p, m, e in zip(*means, error, strict=True))
    yield f"| mean | {' | '.join(cells)} |"


def main() -> None:
    """Search, measure and print."""
    asked = _arguments()
    rng = np.random.default_rng(asked.seed)
    simulator = ns.Simulator(ns.CostModels.load(asked.model))
    topology = ns.Topology(asked.num_devices, _MEMORY)
    tasks, plans = [], []
    for _ in range(asked.tasks):
        known = told(draw_laws(asked.tables, rng), asked.batch_size, asked.num_devices, asked.batches, rng)
        tasks.append(ns.Task(known[TOLD[-1]], topology, asked.batch_size))
        plans += plans_of(known, tasks[-1], simulator)
    shape = (asked.tasks, len(TOLD))
    predicted = np.array([simulator.cost(plan.task, plan).total_ms for plan in plans]).reshape(shape)
    measured = measured_ms(plans, build("hardware", "cpu"), asked.passes, asked.seed).reshape(shape)
    print(
        f"{asked.tables} tables on {asked.num_devices} devices, batch size {asked.batch_size}; ms predicted / measured"
    )
    print(f"| task | {' | '.join(f'told {name}' for name in TOLD)} |\n{'| --- ' * (len(TOLD) + 1)}|")
    for row in rows(predicted, measured):
        print(row)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__)
    counts = {"tasks": 6, "num-devices": 2, "tables": 20, "batch-size": 4096, "batches": 4, "passes": 1, "seed": 0}
    for name, count in counts.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--model", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    warnings.simplefilter("once")
    main()
