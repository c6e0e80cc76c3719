"""Base classes of measurers. Each measurer measures plans in one way: kernel by kernel, by training steps, or by
mirrored training steps.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from rich.console import Console
from rich.table import Table as Grid

from neuroshard.measure import Hardware
from neuroshard.measure.hardware import Warn
from neuroshard.measure.plan_costs import Advance
from neuroshard.measure.steps.step_samples import StepProtocol
from neuroshard.measure.store.plan_measurements import Pass
from neuroshard.measure.store.run_directory import RunDirectory
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import warn_of
from neuroshard.plumbing.files import write_atomically
from neuroshard.plumbing.parquet import write_frame
from neuroshard.plumbing.progress import print_lines
from neuroshard.stages.search.evaluate.comparison import Evaluated, failures, provenance_lines, runnable_by_task
from neuroshard.stages.search.evaluate.plan_comparison import Comparison
from neuroshard.tasks.task import Task
from neuroshard.words.fingerprint import Fingerprint
from neuroshard.words.model_choice import TORCHREC

Drawn = tuple[str, Callable[[], bytes]]  # the name of the file, and the function that draws the picture
# Measures plans of one task once, as the pass with the given number. The sequence is the seed of the lookups and of the
# order of the plans, the callback receives the progress, and measurements that models can be fitted to are stored in
# the run's directory.
Measure = Callable[[Sequence[Plan], int, Sequence[int], Advance, Path], Pass]


@dataclass(frozen=True)
class EvaluateFacts:
    """The measurements of plans, as `format=json` prints them.

    Attributes:
        directory: directory of the run.
        tables: rows of the written Parquet files, by the files' names without suffix.
    """

    directory: str
    tables: Mapping[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class EvaluateResult:
    """The measurements of plans, the files with the measurements, and the tables and lines for people.

    Attributes:
        path: directory of the run.
        entries: the plans.
        frames: rows of the written files, by the files' names.
        tables_and_lines: tables and lines for people.
        tasks: the comparison of each task's plans, if training steps were measured.
        picture: a picture of the results; None if there is none.
    """

    path: Path
    entries: tuple[Evaluated, ...] = field(repr=False)
    frames: Mapping[str, list[dict[str, Any]]] = field(repr=False)
    tables_and_lines: Sequence[Grid | str] = field(repr=False)
    tasks: tuple[Comparison, ...] = field(default=(), repr=False)
    picture: Drawn | None = None

    def save(self, facts: Mapping[str, object]) -> None:
        """Write the files of the result to the directory of the run: the tables as Parquet files, `facts` as
        `run.json`, and the picture (if there is one).
        """
        for name, rows in self.frames.items():
            write_frame(self.path / f"{name}.parquet", pd.DataFrame(rows))
        RunDirectory(self.path).finish("evaluate", facts)
        if self.picture is not None:
            name, draw = self.picture
            write_atomically(self.path / name, draw())

    @property
    def facts(self) -> EvaluateFacts:
        """The output of `format=json`: the directory of the run, and all rows of the Parquet files in it."""
        return EvaluateFacts(str(self.path), self.frames)

    def show(self, console: Console) -> None:
        """Print the tables and lines for people, and the paths of the written files."""
        files = [f"results: {self.path}"]
        files += [] if self.picture is None else [f"picture: {self.path / self.picture[0]}"]
        for table_or_line in (*self.tables_and_lines, *files):
            if isinstance(table_or_line, str):
                print_lines(console, [table_or_line])
            else:
                console.print(table_or_line)


class Measurer(ABC):
    """Base class of measurers, which measure the candidate plans of a search or the plans of an evaluation. In a pass,
    a measurer measures every plan once.

    Attributes:
        kind: name of the way, as in `measure=` and `verify=`.
        framework: the framework whose training steps are measured; None if no steps are measured.
    """

    kind: ClassVar[str]
    framework: ClassVar[str | None] = None

    @property
    def passes(self) -> int:
        """The number of passes in an evaluation with this measurer."""
        return 1

    def settings(self, count_input: bool) -> dict[str, object]:
        """Return the settings on which the measurements of an evaluation depend, as a JSON-ready dictionary."""
        return {"count_input": True} if count_input else {}

    @abstractmethod
    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError if this measurer cannot measure plans of these tasks, or if the plans of a task cannot be
        measured in one run, for example because their models do not fit in memory at the same time.
        """

    @abstractmethod
    def follow(self, hardware: Hardware) -> None:
        """Take part in the measurements that rank 0 starts. If a job runs under torchrun, every process except rank 0
        calls this method.
        """

    @abstractmethod
    def opened(
        self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn
    ) -> AbstractContextManager[Measure]:
        """Return a context manager that yields a function (of type `Measure`). Each call of the function measures the
        plans of one task in `tasks` once. When the context ends, all worker processes of the measurements end.

        Raises:
            UserError: torchrun started another number of processes than a task has devices.
        """

    @abstractmethod
    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """Return the number of units by which the progress bar advances while these plans are measured once. What
        counts as one unit depends on the measurer: for example, one kernel call or one rank.
        """

    def lineup(self, plans: Sequence[Plan]) -> list[Plan]:
        """Return the plans to measure in each pass of an evaluation. By default, these are `plans`, the plans of one
        task. A subclass can add a plan a second time, to show how much two measurements of the same plan differ.
        """
        return list(plans)

    @abstractmethod
    def wrong(self, plans: Sequence[Plan], rows: Pass) -> str | None:
        """Return None if `rows` can be all measurements that this measurer makes in one pass over the plans. In a pass,
        every plan is measured once. Otherwise return the reason as text that continues a sentence, such as "does not
        have the times of training steps".
        """

    @abstractmethod
    def result(
        self, run: Path, entries: Sequence[Evaluated], measured: Mapping[int, Sequence[Pass]], here: Fingerprint
    ) -> EvaluateResult:
        """Return the result of an evaluation, computed from the measurements of all tasks. `measured` maps the number
        of each task to the measurements of the task, as a list of passes. In a pass, every plan of the task is measured
        once. `entries` has the evaluated plans, `run` is the directory for the result, and `here` identifies the
        hardware.
        """


@dataclass(frozen=True)
class TorchRecMeasurer(Measurer):
    """Base class of the measurers that time training steps in TorchRec. In a pass, every plan is measured once. For
    each pass, TorchRec builds the models of all plans again. Settings and results therefore use the word "build" for a
    pass.

    An evaluation builds the first plan of a task twice; the difference of both is the smallest reliable difference.

    Attributes:
        protocol: how steps are timed.
    """

    framework: ClassVar[str | None] = TORCHREC
    detail: ClassVar[str]  # the name of the file with the rows of `details`

    protocol: StepProtocol = field(default_factory=StepProtocol)

    @property
    def passes(self) -> int:
        """The number of passes (rounds over all plans) in an evaluation. Each pass is a build: TorchRec builds the
        model again with every plan.
        """
        return self.protocol.builds

    def settings(self, count_input: bool) -> dict[str, object]:
        """Return a dictionary with the settings for timing training steps. `count_input` has no effect, because the
        training pipeline decides how much of the input dist (the exchange of indices) is part of a step.
        """
        return asdict(self.protocol)

    def lineup(self, plans: Sequence[Plan]) -> list[Plan]:
        """Return the plans, followed by the first plan again. The model of the first plan is thus built and measured
        twice in each pass. The difference between the two measurements shows how much measurements of the same plan
        differ.
        """
        return [*plans, plans[0]]

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError if TorchRec is not installed,
        or if the plans of a task cannot be measured together on this machine.
        """
        import neuroshard.torchrec  # noqa: F401  # says what to install

        for plans_of_task in plans:
            self.check_together(plans_of_task, hardware)
        counted = (*tasks, *(plans_of_task[0].task for plans_of_task in plans))
        warn_of("neuroshard.evaluate", self.protocol.remarks(counted))

    @abstractmethod
    def check_together(self, plans: Sequence[Plan], hardware: Hardware) -> None:
        """Raise UserError if this machine cannot measure these plans of one task. The models of all plans must fit in
        memory at the same time.
        """

    def result(
        self, run: Path, entries: Sequence[Evaluated], measured: Mapping[int, Sequence[Pass]], here: Fingerprint
    ) -> EvaluateResult:
        """Return the result of an evaluation: the comparison of each task's plans, and a picture of the first task's
        plans.
        """
        by_task = runnable_by_task(entries)
        compared = tuple(self.compared(task, by_task[task], passes) for task, passes in measured.items())
        shown = [line for task in compared for line in self.tables_and_lines(task)]
        frames = {
            "results": [row for task in compared for row in task.rows],
            self.detail: [row for task in compared for row in self.details(task, measured[task.task])],
        }
        tables_and_lines = [*shown, *provenance_lines(entries, here), *failures(entries)]
        return EvaluateResult(run, tuple(entries), frames, tables_and_lines, compared, self.drawn(compared[0]))

    @abstractmethod
    def compared(self, task: int, entries: Sequence[Evaluated], passes: Sequence[Pass]) -> Comparison:
        """Compare the plans of a task by their measurements in all passes, and return the comparison. In a pass, every
        plan is measured once.
        """

    @abstractmethod
    def details(self, compared: Comparison, passes: Sequence[Pass]) -> list[dict[str, Any]]:
        """Return the rows of an additional file about the plans of a task, such as the time of each phase of a step."""

    @abstractmethod
    def tables_and_lines(self, compared: Comparison) -> list[Grid | str]:
        """Return tables and lines of text that compare the plans of a task for people."""

    def drawn(self, compared: Comparison) -> Drawn | None:
        """Return a picture of the plans of a task; None if this measurer draws no picture."""
        return None


def plans_once(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans, each object only once. Equal plans that are different objects are all kept."""
    return list({id(plan): plan for plan in plans}.values())
