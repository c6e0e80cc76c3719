"""Measure plans by TorchRec's training steps: `evaluate measure=steps` and `search verify=steps`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    failures,
    grid_of,
    names_and_forms,
    provenance_lines,
    runnable_by_task,
)
from neuroshard.stages.search.evaluate.evaluate_result import EvaluateResult
from neuroshard.stages.search.evaluate.measurer import Measure, TorchRecMeasurer
from neuroshard.stages.search.evaluate.plan_comparison import Comparison
from neuroshard.stages.search.report.figures import phase_bars
from neuroshard.tasks.task import Task
from neuroshard.words.fingerprint import Fingerprint

_TRUSTED = 0.03  # differences between plans are reliable only if equal plans differ by less than this


@dataclass(frozen=True)
class StepMeasurer(TorchRecMeasurer):
    """Measures training steps: TorchRec trains a stand-in of the user's model on the plans of a task, alternately.

    Each build of all of a task's plans is in fresh processes, and is one pass. An evaluation builds the first plan
    twice; the difference of both is the floor.

    Attributes:
        protocol: how steps are timed. Each pass over candidate plans is one build.
    """

    kind: ClassVar[str] = "steps"

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError if TorchRec is not installed,
        or if steps of a task's plans cannot be compared on this machine.
        """
        for task in tasks:
            hardware.check_hosts(task.topology)
        super().check(tasks, plans, hardware)

    def check_together(self, plans: Sequence[Plan], hardware: Hardware) -> None:
        """Raise UserError if training steps of these plans, all live together, cannot be measured on this machine."""
        check_steps(plans, hardware)

    def follow(self, hardware: Hardware) -> None:
        """Take part in the steps."""
        hardware.follow(self.protocol)

    @contextmanager
    def opened(self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn) -> Iterator[Measure]:
        """Yield the function that measures plans; under torchrun the processes stay alive.

        The input dist is part of every step, unless the pipeline hides it.
        """
        with step_builds(hardware, self.protocol, tasks[0].topology, warn) as builds:

            def measured(plans: Sequence[Plan], number: int, seed: Sequence[int], advance: Advance, _run: Path) -> Pass:
                """Build every plan and time its steps."""
                check_steps(once_each(plans), hardware)
                built = builds(plans, number, seed)
                advance(1)
                return built

            yield measured

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """Return 1: the build of all plans counts as one."""
        return 1

    def wrong(self, plans: Sequence[Plan], rows: Pass) -> str | None:
        """Return the reason why these rows cannot be a build; None if they can."""
        expected = Counter((COST, LOOKUPS_ALONE, *PHASES, *(STEP,) * self.protocol.turns))
        of_plans = by_plan(rows, len(plans))
        fits = all(error_of(of_plan) or Counter(row.phase for row in of_plan) == expected for of_plan in of_plans)
        return None if fits else "does not have the times of training steps"

    def result(
        self, run: Path, entries: Sequence[Evaluated], measured: Mapping[int, Sequence[Pass]], here: Fingerprint
    ) -> EvaluateResult:
        """Return the comparison of each task's plans, turn by turn, with a picture of the first task's phases."""
        by_task = runnable_by_task(entries)
        compared = tuple(compared_steps(task, by_task[task], passes) for task, passes in measured.items())
        tables = (item for task in compared for item in _told(task))
        shown = [*tables, *provenance_lines(entries, here), *failures(entries)]
        frames = {
            "results": [row for task in compared for row in _rows(task)],
            "phases": [row for task in compared for row in phase_rows(task)],
        }
        return EvaluateResult(run, tuple(entries), frames, shown, compared, ("steps.png", partial(_drawn, compared[0])))


def once_each(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans without the objects that occur again."""
    return list({id(plan): plan for plan in plans}.values())


def compared_steps(task: int, entries: Sequence[Evaluated], builds: Sequence[Pass]) -> Comparison:
    """Compare the steps of a task's plans turn by turn within each build; phases are means over builds."""

    def mean_ms(phase: str) -> Any:
        """Return the mean of a phase over builds for each plan, (K,) ms; NaN after errors."""
        ms = [[(times_ms(rows, phase) or [np.nan])[0] for rows in by_plan(build, len(entries))] for build in builds]
        return np.mean(ms, axis=0)

    phases = {phase: mean_ms(phase) for phase in (*PHASES, LOOKUPS_ALONE)}
    return Comparison.of(task, entries, builds, partial(times_ms, phase=STEP), phases)


def _rows(compared: Comparison) -> list[dict[str, Any]]:
    """Return the rows of `results.parquet`: one for each plan."""
    return compared.rows(
        [
            {"step_ms": step_ms, "beside_first_least": float(ratios.min()), "beside_first_most": float(ratios.max())}
            for step_ms, ratios in zip(compared.step_ms, compared.ratios, strict=True)
        ]
    )


def phase_rows(compared: Comparison) -> list[dict[str, Any]]:
    """Return the rows of `phases.parquet`: one for each plan, with ms of each phase, and of lookups one by one."""
    return [
        {"method": name, "task": compared.task, **{phase: float(ms[k]) for phase, ms in compared.phase_ms.items()}}
        for k, name in enumerate(compared.names)
    ]


def _told(compared: Comparison) -> list[Grid | str]:
    """Return tables and lines for people, including the difference of equal plans and the failures."""
    rows = _rows(compared)
    columns = {
        **names_and_forms(compared.entries),
        "predicted ms": [f"{row['predicted_ms']:.2f}" for row in rows],
        "step ms": [f"{row['step_ms']:.2f}" for row in rows],
        "beside the first: predicted": [f"{row['predicted_beside_first']:.3f}" for row in rows],
        "trained": [f"{row['beside_first']:.3f}" for row in rows],
        "least to most": [f"{row['beside_first_least']:.3f} to {row['beside_first_most']:.3f}" for row in rows],
    }
    steps = grid_of(f"Training steps, task {compared.task}", columns)
    return [steps, compared.phases("Phases of a step"), _floor_line(compared.floor), *compared.failures]


def _drawn(compared: Comparison) -> bytes:
    """Draw a bar for each plan, made of its phases, as PNG."""
    phase_ms = np.array([compared.phase_ms[phase] for phase in PHASES]).T
    return phase_bars(compared.names, phase_ms, f"task {compared.task}: ms of a step")


def _floor_line(floor: float) -> str:
    """Return a line on the smallest reliable difference between plans; it is a warning if that difference is large."""
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
