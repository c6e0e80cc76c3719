"""One task's search and its answer: what is found, or, verified, the best of finalists that are measured in turns."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import pandas as pd
from msgspec import Meta
from rich.progress import Progress

from neuroshard.hardware import Hardware
from neuroshard.hardware.hardware import Warn
from neuroshard.lab.plan_costs import beyond_memory
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.parquet import write_frame
from neuroshard.plumbing.progress import printer, progress_bar
from neuroshard.plumbing.schema import PositiveCount, Seed
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.stages.search.results.finalist_files import FinalistFiles, Finalists, MeasuredOnce, Origin, Pass
from neuroshard.stages.search.results.search_results import SearchRecord
from neuroshard.stages.search.runs.in_parts import InParts, Means, Measure
from neuroshard.tasks.task import Task

_SEED_RANGE = 2**31


@dataclass(frozen=True)
class Searched:
    """The answer to a task.

    Attributes:
        found: a plan; or why there is none.
        seconds: of search.
        finalists: plans that hardware may decide between, the one found first; none where there is an error.
        measured_ms: the plan's cost on hardware; None where nothing was measured.
    """

    found: Found | InfeasibleError
    seconds: float
    finalists: tuple[Plan, ...] = ()
    measured_ms: float | None = None

    @classmethod
    def of(cls, searcher: Searcher, task: Task, simulator: Simulator, finalists: int = 1) -> "Searched":
        """Search a task, and for so many finalists at most where they are wanted."""
        start = time.perf_counter()
        try:
            found = searcher.find(task, simulator)
        except InfeasibleError as error:
            return cls(error, time.perf_counter() - start)
        plans = (found.plan,) if finalists == 1 else searcher.finalists(found.plan, simulator, finalists)
        return cls(found, time.perf_counter() - start, plans)


@dataclass(frozen=True)
@checked
class Verify:
    """What `verify=hardware`, `verify=torchrec` and `verify=mirrored` ask for.

    Attributes:
        hardware: what plans run on.
        finalists: plans of a task that are measured, at most.
        passes: over all finalists, 2 at least. What they differ by from pass to pass is the error.
        seed: fixes the lookups, others in every pass.
        means: kernels and exchanges one by one, or training steps.
    """

    hardware: Hardware
    finalists: PositiveCount
    passes: Annotated[int, Meta(ge=2, le=1000)]
    seed: Seed = 0
    means: Means = field(default_factory=InParts)

    def check(self, tasks: Sequence[Task]) -> None:
        """Raise UserError unless plans of the tasks can be measured here."""
        self.hardware.check()
        self.means.check(tasks, (), self.hardware)

    def follow(self) -> None:
        """Take part, as one of torchrun's processes other than rank 0."""
        self.means.follow(self.hardware)

    @property
    def settings(self) -> dict[str, Any]:
        """What the answers depend on, besides the search's; JSON-ready."""
        return {"verify": asdict(self) | {"on": self.hardware.fingerprint.to_json()}}

    def opened(self, tasks: Sequence[Task], count_input: bool, warn: Warn) -> AbstractContextManager[Measure]:
        """Open the meters that these tasks need.

        Raises:
            UserError: torchrun started another number of processes than a task has devices.
        """
        return self.means.opened(tasks, self.hardware, count_input, warn)

    def decided(self, searcher: Searcher, task: Task, simulator: Simulator) -> Found:
        """Search a task, measure its finalists here and now, and return the best of them.

        Raises:
            InfeasibleError: the search finds no plan.
            UserError: its plans can't be measured here.
        """
        self.check([task])
        searched = Searched.of(searcher, task, simulator, self.finalists)
        if isinstance(searched.found, InfeasibleError):
            raise searched.found
        with TemporaryDirectory() as run, progress_bar() as progress:
            files = FinalistFiles(Path(run), 0)
            finalists = self.begun(files, searched.found, searched, simulator)
            with self.opened([task], simulator.count_input, printer(progress)) as measure:
                answer = self.answer(measure, files, finalists, simulator.count_input, progress)
        assert isinstance(answer.found, Found)
        return answer.found

    def begun(self, files: FinalistFiles, found: Found, searched: Searched, simulator: Simulator) -> Finalists:
        """Write a task's finalists down, with their predictions, before they are measured."""
        plans = [*map(simulator.predicted, searched.finalists)]
        return files.begin(plans, Origin(len(plans), searched.seconds, found.warning, found.remark))

    def answer(
        self, measure: Measure, files: FinalistFiles, finalists: Finalists, count_input: bool, progress: Progress
    ) -> Searched:
        """Measure the finalists in all passes that aren't on disk already, and choose the best of them."""
        left = self.passes - len(finalists.passes)
        bar = progress.add_task("finalists", total=left * self.means.amount(finalists.plans, count_input))

        def measured(plans: Sequence[Plan], seed: int) -> list[MeasuredOnce]:
            return measure(plans, seed, lambda n: progress.advance(bar, n), files.run)

        def next_pass(before: Sequence[Pass]) -> Pass:
            return self._pass(files.task, replace(finalists, passes=tuple(before)), measured)

        passes = files.passes(finalists.plans).filled(self.passes, next_pass)
        finalists = replace(finalists, passes=passes)
        progress.remove_task(bar)
        verdict, origin = finalists.verdict, finalists.origin
        measured_ms, why = float(verdict.measured_ms[verdict.taken]), finalists.errors[0]
        cost_ms = None if np.isnan(measured_ms) else measured_ms
        judged = f"{verdict}" if why is None else f"{verdict} ({why})"
        remark = "; ".join(filter(None, (origin.remark, judged)))
        taken = Found(finalists.plans[verdict.taken], origin.warning, remark=remark)
        return Searched(taken, origin.seconds, finalists.plans, cost_ms)

    def _pass(
        self, task: int, finalists: Finalists, measured: Callable[[Sequence[Plan], int], list[MeasuredOnce]]
    ) -> Pass:
        """Measure a pass over all that could be measured so far, in a random order: none always comes first."""
        plans, number = finalists.plans, len(finalists.passes)
        rng = np.random.default_rng([self.seed, task, number])
        errors = {i: finalists.errors[i] or beyond_memory(plan, self.hardware) for i, plan in enumerate(plans)}
        order = rng.permutation([i for i, error in errors.items() if error is None]).astype(int).tolist()
        seed = int(rng.integers(_SEED_RANGE))
        outcomes = dict(zip(order, measured([plans[i] for i in order], seed), strict=True))
        return Pass(tuple(outcomes.get(i) or MeasuredOnce(error=error) for i, error in errors.items()))


def not_verified() -> None:
    """Verify nothing: what `verify=none` asks for."""


def save_finalists(run: Path, tasks: Sequence[Task], records: Sequence[SearchRecord]) -> None:
    """Write `finalists.parquet`: a row for each finalist of each task that has a plan."""
    rows = []
    for record in records:
        files = FinalistFiles(run, record.task)
        finalists = None if record.plan is None else files.read(tasks[record.task])
        rows += [] if finalists is None else files.rows(finalists)
    write_frame(run / "finalists.parquet", pd.DataFrame(rows))
