"""The verification of a search: measures candidate plans in passes,
and returns the best candidate plan as the answer.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import pandas as pd
from msgspec import Meta
from rich.progress import Progress

from neuroshard.measure import Hardware
from neuroshard.measure.plan_costs import Advance, beyond_memory
from neuroshard.measure.store.plan_measurements import Pass, PlanMeasurement, passes_in
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.parquet import write_frame
from neuroshard.plumbing.progress import printer, progress_bar
from neuroshard.plumbing.schema import PositiveCount, Seed
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.stages.search.evaluate.candidate_plan_files import (
    Searched,
    candidate_plan_rows,
    read_searched,
    write_searched,
)
from neuroshard.stages.search.evaluate.kernel_measurer import KernelMeasurer
from neuroshard.stages.search.evaluate.measurer import Measure, Measurer
from neuroshard.stages.search.evaluate.search_task import search_task
from neuroshard.stages.search.results.search_results import SearchRecord
from neuroshard.tasks.task import Task

_SEED_RANGE = 2**31


@dataclass(frozen=True)
@checked
class Verify:
    """Settings for measuring candidate plans after a search, to choose the best candidate plan (`verify=kernels`,
    `verify=steps` or `verify=mirrored`).

    Attributes:
        hardware: hardware that the plans run on.
        candidate_plans: maximum number of plans that are measured per task, with the predicted best plan among them;
            measuring time grows in proportion.
        passes: number of times that all candidate plans are measured, at least 2; larger values reduce the error of
            measured costs, and take longer. Differences from pass to pass give the error.
        seed: seed of the random lookups in the measurements; each time that the plans are measured, the lookups differ.
        measure: how plans are measured: kernels and exchanges one by one, training steps, or mirrored training steps.
    """

    hardware: Hardware
    candidate_plans: PositiveCount
    passes: Annotated[int, Meta(ge=2, le=1000)]
    seed: Seed = 0
    measure: Measurer = field(default_factory=KernelMeasurer)

    def check(self, tasks: Sequence[Task]) -> None:
        """Raise UserError if plans of the tasks cannot be measured on this machine."""
        self.hardware.check()
        self.measure.check(tasks, (), self.hardware)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the verification that can change which plan is chosen, as a dictionary that can be saved as
        JSON.
        """
        return {"verify": asdict(self) | {"on": asdict(self.hardware.fingerprint)}}

    def decided(self, searcher: Searcher, task: Task, simulator: Simulator) -> Found:
        """Search for plans of a task, measure the candidate plans on this machine now, and return the best candidate
        plan.

        Raises:
            InfeasibleError: the search finds no plan.
            UserError: the plans cannot be measured on this machine.
        """
        self.check([task])
        searched = search_task(searcher, task, simulator, self.candidate_plans)
        with TemporaryDirectory() as run, progress_bar() as progress:
            write_searched(Path(run), 0, searched)
            with self.measure.opened([task], self.hardware, simulator.count_input, printer(progress)) as measure:
                return self.judged(measure, Path(run), 0, searched, simulator.count_input, progress).answer

    def judged(
        self, measure: Measure, run: Path, task: int, searched: Searched, count_input: bool, progress: Progress
    ) -> Searched:
        """Measure the candidate plans in several passes, and choose the best candidate plan. A pass measures every
        candidate plan once. Passes with results on disk are not measured again. `run` is the directory of the run, and
        `task` is the number of the task.
        """
        left = self.passes - len(searched.passes)
        total = left * self.measure.amount(searched.candidate_plans, count_input)
        bar = progress.add_task("candidate plans", total=total)
        next_pass = partial(self._pass, measure, run, task, searched, partial(progress.advance, bar))
        passes = passes_in(run, task, searched.candidate_plans).filled(self.passes, next_pass)
        progress.remove_task(bar)
        return replace(searched, passes=passes).judged()

    def _pass(
        self, measure: Measure, run: Path, task: int, searched: Searched, advance: Advance, before: Sequence[Pass]
    ) -> Pass:
        """Measure every candidate plan once, except plans that failed before, and return the measurements. The order of
        the plans is random, so that no plan is always first.
        """
        plans, failed = searched.candidate_plans, replace(searched, passes=tuple(before)).errors
        rng = np.random.default_rng([self.seed, task, len(before)])
        errors = {i: failed[i] or beyond_memory(plan, self.hardware) for i, plan in enumerate(plans)}
        order = rng.permutation([i for i, error in errors.items() if error is None]).astype(int).tolist()
        seed = int(rng.integers(_SEED_RANGE))
        rows = measure([plans[i] for i in order], len(before), [seed], advance, run) if order else ()
        failures = [PlanMeasurement(i, len(before), error=error) for i, error in errors.items() if error is not None]
        return (*(replace(row, plan=order[row.plan]) for row in rows), *failures)


def not_verified() -> None:
    """Return None: with `verify=none`, there are no settings of a verification, and no plan is measured."""


def save_candidate_plans(run: Path, tasks: Sequence[Task], records: Sequence[SearchRecord]) -> None:
    """Write `candidate_plans.parquet`: a row for each candidate plan of every task for which the
    search found a plan.
    """
    rows = []
    for record in records:
        searched = None if record.plan is None else read_searched(run, record.task, tasks[record.task])
        rows += [] if searched is None else candidate_plan_rows(record.task, searched)
    write_frame(run / "candidate_plans.parquet", pd.DataFrame(rows))
