"""Measure the kernels and exchanges of plans one by one: `evaluate measure=kernels` and `search verify=kernels`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from rich.table import Table as Grid
from rich.text import Text

from neuroshard.cost.cost import INPUT, PARTS, Cost, Part, When
from neuroshard.measure import Hardware
from neuroshard.measure.hardware import Warn
from neuroshard.measure.plan_costs import Advance, PlanRecords, measure_plans, steps
from neuroshard.measure.recorder import meters_of
from neuroshard.measure.store.plan_measurements import COST, Pass, PlanMeasurement, by_plan, error_of
from neuroshard.plans.picture import plan_png
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.grouping import grouped
from neuroshard.stages.search.evaluate.comparison import (
    Evaluated,
    comparison,
    failures,
    grid_of,
    runnable_by_task,
    trust_lines,
)
from neuroshard.stages.search.evaluate.measurer import Drawn, EvaluateResult, Measure, Measurer
from neuroshard.tasks.task import Task
from neuroshard.words.fingerprint import Fingerprint

_SHOWN_ERRORS = 3


@dataclass(frozen=True)
class KernelMeasurer(Measurer):
    """Measures each kernel call and each exchange of a plan separately, outside of training steps. The cost models
    predict the times of the same calls and exchanges.
    """

    kind: ClassVar[str] = "kernels"

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError if the number of devices per host differs between a task and the machine that measures
        exchanges.
        """
        for task in tasks:
            hardware.check_hosts(task.topology)

    def follow(self, hardware: Hardware) -> None:
        """Take part in the exchanges that rank 0 measures, as another rank of the job."""
        hardware.follow()

    @contextmanager
    def opened(self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn) -> Iterator[Measure]:
        """Yield the function that measures plans. A call of the function measures every plan once, which is one pass.
        The worker processes that measure stay alive between the calls.
        """
        # The records of a run are read at its first measurement.
        records = cache(partial(PlanRecords.of_run, hardware=hardware))
        with meters_of(hardware, warn) as meters:
            meters.join(task.topology for task in tasks)

            def measured(plans: Sequence[Plan], number: int, seed: Sequence[int], advance: Advance, run: Path) -> Pass:
                """Measure every plan once, and return the measurements: the times of kernels and exchanges."""
                costs = measure_plans(meters, plans, seed[0], advance, count_input, records(run))
                return tuple(row for plan, cost in enumerate(costs) for row in rows_of_cost(plan, number, cost))

            yield measured

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """Return the number of units of progress: one for each kernel call and each exchange of these plans."""
        return steps(plans, count_input)

    def wrong(self, plans: Sequence[Plan], rows: Pass) -> str | None:
        """Return the reason, as text, if `rows` are not the complete measurements of one pass; otherwise None.

        In a complete pass, each plan has an error, or exactly one time of each part of the cost for every device.
        """
        for plan, of_plan in zip(plans, by_plan(rows, len(plans)), strict=True):
            counts = Counter(row.phase for row in of_plan if row.phase != COST)
            known = {*PARTS} <= counts.keys() <= {*PARTS, INPUT}
            if error_of(of_plan) is None and not (known and {*counts.values()} == {plan.task.topology.num_devices}):
                return "does not have the times of kernels and exchanges"
        return None

    def result(
        self, run: Path, entries: Sequence[Evaluated], measured: Mapping[int, Sequence[Pass]], here: Fingerprint
    ) -> EvaluateResult:
        """Return the result of an evaluation: a comparison of the methods and, if there is only one plan, a table of
        the devices.
        """
        plans = {task: len(of_task) for task, of_task in runnable_by_task(entries).items()}
        rows = {task: iter(by_plan(passes[0], plans[task])) for task, passes in measured.items()}
        done = [_with(entry, cost_from(next(rows[entry.task]))) if entry.runnable else entry for entry in entries]
        return _result(run, done, here)


def rows_of_cost(plan: int, number: int, cost: Cost | str) -> list[PlanMeasurement]:
    """Convert the measured cost of a plan to rows of measurements. There is one row for each part of the cost on each
    device, and one row for the whole cost. If `cost` is an error, there is one row with this error.
    """
    if isinstance(cost, str):
        return [PlanMeasurement(plan, number, error=cost)]
    every = [(device, part.name, ms) for part in cost.parts for device, ms in enumerate(part.ms.tolist())]
    return [PlanMeasurement(plan, number, *row) for row in (*every, (None, COST, cost.total_ms))]


def cost_from(rows: Sequence[PlanMeasurement]) -> Cost | str:
    """Convert rows of measurements, as `rows_of_cost` returns them, to the measured cost of a plan. If the rows contain
    an error, return the error instead. The rows are from one pass, in which the plan is measured once.
    """
    if (error := error_of(rows)) is not None:
        return error
    of_parts = grouped((row for row in rows if row.phase is not None and row.phase != COST), lambda row: str(row.phase))
    return Cost(
        tuple(
            Part(name, When[name.upper()], np.array([row.ms for row in of_part])) for name, of_part in of_parts.items()
        )
    )


def _with(entry: Evaluated, outcome: Cost | str) -> Evaluated:
    """Return the entry with the measured cost of the plan, or with the error that stopped the measurement."""
    return replace(entry, error=outcome) if isinstance(outcome, str) else replace(entry, measured=outcome)


def _result(path: Path, entries: Sequence[Evaluated], here: Fingerprint) -> EvaluateResult:
    """Return the result of an evaluation: a comparison of the methods, and a picture of the cheapest plan of the first
    task. If the evaluation has only one plan, the result also has a table of the devices.
    """
    solved = [(e, e.plan, e.measured) for e in entries if e.plan is not None and e.measured is not None]
    devices = [_devices(*evaluated) for evaluated in solved] if len(entries) == 1 else []
    failed = failures(entries)
    more = len(failed) - _SHOWN_ERRORS
    lines = [*trust_lines(entries, here), *failed[:_SHOWN_ERRORS]]
    lines += [f"... and {more} more failures in results.parquet"] if more > 0 else []
    frames = {
        "results": [entry.row() for entry in entries],
        "devices": [row for entry in entries for row in entry.device_rows()],
    }
    picture: Drawn | None = None
    if solved:
        shown, plan, cost = min(solved, key=lambda evaluated: (evaluated[0].task, evaluated[0].measured_ms))
        title = f"{shown.method}, task {shown.task}: {cost.total_ms:.1f} ms measured"
        picture = "plan.png", lambda: plan_png(plan, cost, title)
    return EvaluateResult(path, tuple(entries), frames, [*devices, comparison(entries), *lines], picture=picture)


def _devices(entry: Evaluated, plan: Plan, cost: Cost) -> Grid:
    """Return a table for people with one row for each device of a measured plan. A row has the number of shards, the
    number of columns, the memory, and the measured times of the device.
    """
    columns = {
        "device": [str(device) for device in range(len(plan.device_tables))],
        "shards": [str(len(tables)) for tables in plan.device_tables],
        "dims": [str(dims) for dims in plan.device_dims],
        "MiB": [f"{size / 2**20:.1f}" for size in plan.device_bytes],
        **{f"{part.name} ms": [f"{ms:.2f}" for ms in part.ms] for part in cost.parts},
        "total ms": [f"{ms:.2f}" for ms in cost.device_ms],
    }
    return grid_of(Text(f"{entry.file}, measured"), columns, words=0)
