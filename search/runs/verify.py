"""Verification: a search's finalists are measured in turns, and the best by measurement is taken."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from msgspec import Meta
from rich.progress import Progress

from neuroshard.hardware import Hardware
from neuroshard.hardware.hardware import Warn
from neuroshard.hardware.plan_costs import Advance, beyond_memory
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.parquet import write_frame
from neuroshard.plumbing.schema import PositiveCount, Seed
from neuroshard.searching.searcher import Found
from neuroshard.stages.search.results.finalist_files import FinalistFiles, Finalists, MeasuredOnce, Pass
from neuroshard.stages.search.results.search_results import SearchRecord
from neuroshard.stages.search.runs.in_parts import InParts
from neuroshard.stages.search.runs.means import Means, Once
from neuroshard.stages.search.runs.searched import Searched
from neuroshard.tasks.task import Task

_SEED_RANGE = 2**31


@dataclass(frozen=True)
@checked
class Verify:
    """What `verify=hardware` and `verify=torchrec` ask for.

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
        for task in tasks:
            self.hardware.check_hosts(task.topology)
        self.means.check((), self.hardware)

    def follow(self) -> None:
        """Take part, as one of torchrun's processes other than rank 0."""
        self.means.follow(self.hardware)

    @property
    def settings(self) -> dict[str, Any]:
        """What the answers depend on, besides the search's; JSON-ready."""
        return {"verify": asdict(self) | {"on": self.hardware.fingerprint.to_json()}}

    @contextmanager
    def opened(self, tasks: Sequence[Task], warn: Warn) -> Iterator["Verifier"]:
        """Open the meters that these tasks need.

        Raises:
            UserError: torchrun started another number of processes than a task has devices.
        """
        with self.means.opened(tasks, self.hardware, warn) as once:
            yield Verifier(self, once)


def not_verified() -> None:
    """What `verify=none` asks for: nothing."""


@dataclass(frozen=True, eq=False)
class Verifier:
    """Verification, while its processes are there."""

    settings: Verify
    once: Once

    def answer(self, files: FinalistFiles, finalists: Finalists, count_input: bool, progress: Progress) -> Searched:
        """The best of the finalists, once all passes are measured; those that are on disk already are not again."""
        left = self.settings.passes - len(finalists.passes)
        bar = progress.add_task("finalists", total=left * self.once.amount(finalists.plans, count_input))

        def measure(before: Sequence[Pass]) -> Pass:
            known = replace(finalists, passes=tuple(before))
            return self._measured(files.task, known, count_input, lambda n: progress.advance(bar, n))

        passes = files.passes(finalists.plans).filled(self.settings.passes, measure)
        finalists = replace(finalists, passes=passes)
        progress.remove_task(bar)
        verdict, found = finalists.verdict, finalists.found
        measured_ms, why = float(verdict.measured_ms[verdict.taken]), finalists.errors[0]
        cost_ms = None if np.isnan(measured_ms) else measured_ms
        judged = f"{verdict}" if why is None else f"{verdict} ({why})"
        remark = "; ".join(filter(None, (found.remark, judged)))
        taken = Found(finalists.plans[verdict.taken], found.warning, remark=remark)
        return Searched(taken, found.seconds, finalists.plans, cost_ms)

    def _measured(self, task: int, finalists: Finalists, count_input: bool, advance: Advance) -> Pass:
        """A pass over all that could be measured so far, in a random order: none always comes first."""
        plans, number = finalists.plans, len(finalists.passes)
        rng = np.random.default_rng([self.settings.seed, task, number])
        errors = dict(enumerate(map(self._error, plans, finalists.errors)))
        order = rng.permutation([i for i, error in errors.items() if error is None]).astype(int).tolist()
        seed = int(rng.integers(_SEED_RANGE))
        outcomes = self.once.measure([plans[i] for i in order], seed, count_input, advance)
        measured = dict(zip(order, outcomes, strict=True))
        return Pass(tuple(measured.get(i) or MeasuredOnce(error=error) for i, error in errors.items()))

    def _error(self, plan: Plan, before: str | None) -> str | None:
        return before or beyond_memory(plan, self.settings.hardware)


def save_finalists(run: Path, tasks: Sequence[Task], records: Sequence[SearchRecord]) -> None:
    """Write `finalists.parquet`: a row for each finalist of each task that has a plan."""
    rows = []
    for record in records:
        files = FinalistFiles(run, record.task)
        finalists = None if record.plan is None else files.read(tasks[record.task])
        rows += [] if finalists is None else files.rows(finalists)
    write_frame(run / "finalists.parquet", pd.DataFrame(rows))
