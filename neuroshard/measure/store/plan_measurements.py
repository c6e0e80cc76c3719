"""Measurements of plans: one type of row for kernels, training steps and mirrored steps, stored in a file per pass."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from neuroshard.measure.store._parquet_schema import schema_of
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.journal import Journal
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.parquet import read_rows, write_table
from neuroshard.plumbing.schema import Count, NonNegative

COST = "cost"  # the phase of the row with the cost of a whole plan


@dataclass(frozen=True)
@checked
class PlanMeasurement:
    """The time of one phase of a plan in one pass, or the error that stopped the measurement.

    Rows that are equal in plan, pass, device and phase are turns, in their order.

    Attributes:
        plan: number of the plan among the measured plans of a task.
        pass_number: number of the pass; in each pass, all plans are measured once.
        device: the device, or the rank; None for a time of all devices together.
        phase: part of a cost, or phase of a step; `COST` for the cost of the whole plan; None with an error.
        ms: the time in ms; None with an error.
        error: the error; None if there was none.
        until: in mirrored steps, the collective at which the phase ends; None or "" if it ends at another phase.
        sent_bytes, received_bytes: bytes that the rank sends to and receives from this collective.
    """

    plan: Count
    pass_number: Count
    device: Count | None = None
    phase: str | None = None
    ms: NonNegative | None = None
    error: str | None = None
    until: str | None = None
    sent_bytes: NonNegative | None = None
    received_bytes: NonNegative | None = None

    def __post_init__(self) -> None:
        if len({self.phase is not None, self.ms is not None, self.error is None}) > 1:
            raise ValueError("a measurement has either a phase with a time, or an error")


Pass = tuple[PlanMeasurement, ...]  # of all plans of a task


def error_of(rows: Sequence[PlanMeasurement]) -> str | None:
    """Return the first error in the rows; None if there is none."""
    return next((row.error for row in rows if row.error is not None), None)


def times_ms(rows: Sequence[PlanMeasurement], phase: str) -> list[float]:
    """Return the ms of a phase in the order of the rows."""
    return [row.ms for row in rows if row.phase == phase and row.ms is not None]


def by_plan(rows: Pass, plans: int) -> list[Pass]:
    """Return the rows of each of a task's plans, (K,)."""
    return [tuple(row for row in rows if row.plan == number) for number in range(plans)]


def errors_of(passes: Sequence[Pass], plans: int) -> tuple[str | None, ...]:
    """Return the first error of each plan in any pass, (K,); None for plans without errors."""
    every = tuple(row for rows in passes for row in rows)
    return tuple(map(error_of, by_plan(every, plans)))


def costs_ms(passes: Sequence[Pass], plans: int) -> FloatArray:
    """Return the cost of each of K plans in each of P passes, (K, P) ms; NaN for failed measurements."""
    costs = np.full((plans, len(passes)), np.nan)
    for number, rows in enumerate(passes):
        for row in rows:
            if row.phase == COST:
                costs[row.plan, number] = row.ms
    return costs


@dataclass(frozen=True)
class PassFiles(Journal[Pass]):
    """The passes over a task's plans, each in a Parquet file that is either complete or missing."""

    suffix = ".parquet"

    def write(self, path: Path, value: Pass) -> None:
        """Write the rows of a pass."""
        write_table(path, pa.Table.from_pylist([asdict(row) for row in value], schema=schema_of(PlanMeasurement)))

    def content(self, path: Path, where: str) -> Any:
        """Return the rows of a pass as plain values."""
        return read_rows(path, self.name)


def passes_in(
    run: Path, task: int, plans: Sequence[Plan], wrong: Callable[[Pass], str | None] = lambda _: None
) -> PassFiles:
    """Return the passes over a task's plans in a run's directory: `measurements/task-0000/pass-0000.parquet`.

    `wrong` returns a further defect of a pass, as a predicate; None if the pass is right.
    """

    def defect(number: int, rows: Pass) -> str | None:
        """Return the reason why these rows cannot be a pass over these plans, as a predicate; None if they can."""
        if {row.pass_number for row in rows} == {number} and {row.plan for row in rows} == {*range(len(plans))}:
            fit = (_fits(plan, of_plan) for plan, of_plan in zip(plans, by_plan(rows, len(plans)), strict=True))
            if all(fit):
                return wrong(rows)
        devices = " or ".join(map(str, sorted({plan.task.topology.num_devices for plan in plans})))
        return f"does not have the measurements of {number_of(len(plans), 'plan')} for {devices} devices"

    return PassFiles(run / "measurements" / f"task-{task:04d}", "pass", Pass, defect)


def _fits(plan: Plan, rows: Sequence[PlanMeasurement]) -> bool:
    """Return True if the rows are of the plan's devices, and have one cost or an error."""
    devices = {row.device for row in rows} - {None, *range(plan.task.topology.num_devices)}
    return not devices and (error_of(rows) is not None or len(times_ms(rows, COST)) == 1)
