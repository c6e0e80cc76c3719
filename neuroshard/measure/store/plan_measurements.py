"""Stored measurements of plans: the times of the phases of each plan's step.
The times are measured by kernel calls and exchanges, by training steps, or by mirrored steps; rows have the same type
in all three cases. In one measurement pass, all plans of a task are measured once. Each pass is stored in a separate
file.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from neuroshard.measure.store._parquet_schema import schema_of
from neuroshard.measure.store.parts import Codec, Parts
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.parquet import read_rows, write_table
from neuroshard.plumbing.schema import Count, NonNegative, parse

COST = "cost"  # the phase of the row with the cost of a whole plan


@dataclass(frozen=True)
@checked
class PlanMeasurement:
    """A measured time of one phase of a step with a plan, or the error because of which no time was measured.

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
    """Return the first error in the rows; None if no row has an error."""
    return next((row.error for row in rows if row.error is not None), None)


def times_ms(rows: Sequence[PlanMeasurement], phase: str) -> list[float]:
    """Return the times, in ms, of all rows with this phase (such as "lookups"), in the order of the rows."""
    return [row.ms for row in rows if row.phase == phase and row.ms is not None]


def by_plan(rows: Pass, plans: int) -> list[Pass]:
    """Group the rows by plan, and return a list with the rows of each plan.
    `plans` is the number of plans of the task.
    """
    return [tuple(row for row in rows if row.plan == number) for number in range(plans)]


def errors_of(passes: Sequence[Pass], plans: int) -> tuple[str | None, ...]:
    """Return the first error of each of K plans in any of the passes, (K,); None for a plan without errors."""
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


def _write_pass(path: Path, rows: Pass) -> None:
    write_table(path, pa.Table.from_pylist([asdict(row) for row in rows], schema=schema_of(PlanMeasurement)))


def _read_pass(path: Path) -> Pass:
    return parse(read_rows(path, "pass"), Pass, f"pass {path}")


def passes_in(
    run: Path, task: int, plans: Sequence[Plan], wrong: Callable[[Pass], str | None] = lambda _: None
) -> Parts[Pass]:
    """Return the `Parts` that read and write the measurement passes over a task's plans in the directory `run`, with
    one file for each pass. In a pass, all plans are measured once. An example of a file is
    `measurements/task-0000/pass-0000.parquet`.

    `wrong` checks a pass further: it returns the reason why the pass is not valid, or None if the pass is valid.
    """

    def defect(number: int, rows: Pass) -> str | None:
        """Return None if the rows in a file are a valid pass; otherwise return the reason as text. In a valid pass, all
        rows have the pass number `number`. Every plan has rows, and these rows can be measurements of the plan. The
        function `wrong` must accept the rows, too.

        In an error message, the reason follows the name of the file: "pass [path] does not have the measurements of 2
        plans for 4 devices".
        """
        if {row.pass_number for row in rows} == {number} and {row.plan for row in rows} == {*range(len(plans))}:
            fit = (_fits(plan, of_plan) for plan, of_plan in zip(plans, by_plan(rows, len(plans)), strict=True))
            if all(fit):
                return wrong(rows)
        devices = " or ".join(map(str, sorted({plan.task.topology.num_devices for plan in plans})))
        return f"does not have the measurements of {number_of(len(plans), 'plan')} for {devices} devices"

    return Parts(run / "measurements" / f"task-{task:04d}", Codec("pass", ".parquet", _write_pass, _read_pass), defect)


def _fits(plan: Plan, rows: Sequence[PlanMeasurement]) -> bool:
    """Return True if the rows can be the measurements of this plan in one pass.
    The rows must name only devices of the plan. If no row has an error, exactly one row must have the plan's cost.
    """
    devices = {row.device for row in rows} - {None, *range(plan.task.topology.num_devices)}
    return not devices and (error_of(rows) is not None or len(times_ms(rows, COST)) == 1)
