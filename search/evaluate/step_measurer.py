"""Measure training steps of plans in TorchRec: `evaluate measure=steps` and `search verify=steps`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.table import Table as Grid

from neuroshard.measure import Hardware
from neuroshard.measure.hardware import Warn
from neuroshard.measure.plan_costs import Advance
from neuroshard.measure.steps.step_meters import check_steps, step_builds
from neuroshard.measure.steps.step_samples import LOOKUPS_ALONE, PHASES, STEP
from neuroshard.measure.store.plan_measurements import COST, Pass, by_plan, error_of, times_ms
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.messages import Message
from neuroshard.stages.search.evaluate.comparison import (
    Evaluated,
)
from neuroshard.stages.search.evaluate.measurer import Drawn, Measure, TorchRecMeasurer, plans_once
from neuroshard.stages.search.evaluate.plan_comparison import Cell, Comparison
from neuroshard.stages.search.report.figures import phase_bars
from neuroshard.tasks.task import Task

_TRUSTED = 0.03  # differences between plans are reliable only if equal plans differ by less than this


@dataclass(frozen=True)
class StepMeasurer(TorchRecMeasurer):
    """Measures plans by their training steps. TorchRec trains a stand-in of the user's model, and the plans of a task
    take turns: a few steps with each plan, then again a few steps with each plan.

    Each build of all of a task's plans is in fresh processes, and is one pass. An evaluation builds the first plan
    twice; the difference of both is the floor.

    Attributes:
        protocol: how steps are timed. Each pass over candidate plans is one build.
    """

    kind: ClassVar[str] = "steps"
    detail: ClassVar[str] = "phases"

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError if TorchRec is not installed,
        or if training steps of the plans of a task cannot be compared on this machine.
        """
        for task in tasks:
            hardware.check_hosts(task.topology)
        super().check(tasks, plans, hardware)

    def check_together(self, plans: Sequence[Plan], hardware: Hardware) -> None:
        """Raise UserError if this machine cannot measure training steps of these plans. The plans must have the same
        tables and devices, and the models of all plans must fit in memory at the same time.
        """
        check_steps(plans, hardware)

    def follow(self, hardware: Hardware) -> None:
        """Take part in the training steps that rank 0 measures, as another rank of the job."""
        hardware.follow(self.protocol)

    @contextmanager
    def opened(self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn) -> Iterator[Measure]:
        """Yield the function that measures plans in one pass: the function builds the models of all plans, and times
        training steps with each model. Each call of the function starts new processes for the training. Under torchrun,
        all calls use the processes that torchrun started.

        The input dist is part of every step, unless the pipeline hides it.
        """
        with step_builds(hardware, self.protocol, tasks[0].topology, warn) as builds:

            def measured(plans: Sequence[Plan], number: int, seed: Sequence[int], advance: Advance, _run: Path) -> Pass:
                """Build the models of all plans, time training steps with each model, and return the times as one pass.
                `number` is the number of the pass, `seed` fixes the lookups and the order of the plans, and `advance`
                receives the progress. The run's directory `_run` is not used.
                """
                check_steps(plans_once(plans), hardware)
                built = builds(plans, number, seed)
                advance(1)
                return built

            yield measured

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """Return 1: the progress bar advances by one unit after all plans have been built and timed together."""
        return 1

    def wrong(self, plans: Sequence[Plan], rows: Pass) -> str | None:
        """Return None if `rows` has all measurements of one pass for every plan, such as a time for each phase of a
        step, and a step time for each turn. Otherwise return the reason as text. A plan that failed needs only an
        error.
        """
        expected = Counter((COST, LOOKUPS_ALONE, *PHASES, *(STEP,) * self.protocol.turns))
        of_plans = by_plan(rows, len(plans))
        fits = all(error_of(of_plan) or Counter(row.phase for row in of_plan) == expected for of_plan in of_plans)
        return None if fits else "does not have the times of training steps"

    def compared(self, task: int, entries: Sequence[Evaluated], passes: Sequence[Pass]) -> Comparison:
        """Return a comparison of the plans of a task by step time. Each pass in `passes` builds the models of all
        plans, and times the plans alternately, in several turns. Step times are compared only with step times of the
        same turn. The comparison also has the time of each phase of a step, as the mean over all passes.
        """
        by_build = [by_plan(build, len(entries)) for build in passes]
        phase_ms = {
            phase: np.mean([[(times_ms(rows, phase) or [np.nan])[0] for rows in plans] for plans in by_build], axis=0)
            for phase in (*PHASES, LOOKUPS_ALONE)
        }
        compared = Comparison.of(task, entries, passes, partial(times_ms, phase=STEP), phase_ms)
        figures = zip(compared.step_ms, compared.ratios, strict=True)
        columns = (
            {"step_ms": step_ms, "beside_first_least": float(ratios.min()), "beside_first_most": float(ratios.max())}
            for step_ms, ratios in figures
        )
        return replace(compared, columns=tuple(columns))

    def details(self, compared: Comparison, passes: Sequence[Pass]) -> list[dict[str, Any]]:
        """Return the rows of `phases.parquet`, one row for each plan. A row has the time in ms of each phase of a step.
        The last column has the time of the lookups in additional steps, in which only one device looks up at a time.
        """
        return [
            {"method": name, "task": compared.task, **{phase: float(ms[k]) for phase, ms in compared.phase_ms.items()}}
            for k, name in enumerate(compared.names)
        ]

    def tables_and_lines(self, compared: Comparison) -> list[Grid | str]:
        """Return two printable tables that compare the plans, followed by lines of text. The first line says how
        reliable the step times are: the first plan is built twice, and the line has the difference between the step
        times of both builds. After the first line, there is one line for each plan that failed.
        """
        columns: Mapping[str, Cell] = {
            "predicted ms": lambda row: f"{row['predicted_ms']:.2f}",
            "step ms": lambda row: f"{row['step_ms']:.2f}",
            "beside the first: predicted": lambda row: f"{row['predicted_beside_first']:.3f}",
            "trained": lambda row: f"{row['beside_first']:.3f}",
            "least to most": lambda row: f"{row['beside_first_least']:.3f} to {row['beside_first_most']:.3f}",
        }
        return compared.tables_and_lines("Training steps", columns, "Phases of a step", _floor_line(compared.floor))

    def drawn(self, compared: Comparison) -> Drawn:
        """Return a picture with a bar for each plan, made of the phases of the plan's step."""
        phase_ms = np.array([compared.phase_ms[phase] for phase in PHASES]).T
        title = f"task {compared.task}: ms of a step"
        return "steps.png", partial(phase_bars, compared.names, phase_ms, title)


def _floor_line(floor: float) -> str:
    """Return a line on the smallest reliable difference between plans; the line is a warning if this difference is
    large.
    """
    text = f"the step times of the first plan, built twice, differ by {floor:.1%}"
    if np.isnan(floor) or floor > _TRUSTED:
        warning = Message(
            "steps-too-noisy",
            text,
            limit=f"differences between plans are reliable only if this difference is {_TRUSTED:.0%} or less",
            remedy="Stop other processes on this machine and measure again",
        )
        return f"warning: {warning}"
    return f"{text}; smaller differences between plans are noise"
