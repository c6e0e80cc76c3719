"""What plans are measured in: kernels and exchanges one by one (`InParts`), or training steps (`InSteps`)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from neuroshard.hardware import Hardware
from neuroshard.hardware.hardware import Warn
from neuroshard.lab.plan_costs import Advance
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.files import digest_of
from neuroshard.plumbing.progress import Result
from neuroshard.records.run_directory import RunDirectory
from neuroshard.stages.search.results.comparison import Evaluated, plans_of, runnable_by_task
from neuroshard.stages.search.results.finalist_files import MeasuredOnce
from neuroshard.tasks.task import Task
from neuroshard.words.fingerprint import versions

# What some plans of one task cost, measured once in the order that they are given in; the number fixes the lookups, and
# the next is told of what is done; what can be learned from is kept in the run's directory.
Measure = Callable[[Sequence[Plan], int, Advance, Path], list[MeasuredOnce]]


class Means(Protocol):
    """How plans are measured: a search's finalists in turns, or the plans that people ask about."""

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError unless plans of tasks can be measured so, and these of each task together, if any."""
        ...

    def follow(self, hardware: Hardware) -> None:
        """Take part, as one of torchrun's processes other than rank 0."""
        ...

    def opened(
        self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn
    ) -> AbstractContextManager[Measure]:
        """Start the processes that these tasks need, and end them with the block.

        Raises:
            UserError: torchrun started another number of processes than a task has devices.
        """
        ...

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """What is told of as done in all, where plans are measured once."""
        ...

    def evaluated(
        self, entries: Sequence[Evaluated], hardware: Hardware, seed: int, count_input: bool, directory: RunDirectory
    ) -> Result:
        """Measure what can be run, and write the results into the directory, which is held.

        Raises:
            UserError: it can't be measured so, or the directory holds another run.
        """
        ...


def begun(
    entries: Sequence[Evaluated],
    through: str,
    settings: Mapping[str, object],
    hardware: Hardware,
    seed: int,
    run: RunDirectory,
) -> tuple[dict[int, list[Evaluated]], tuple[Task, ...], dict[str, object]]:
    """Begin an evaluation, or go on with it: the number of builds may grow.

    Returns:
        The entries with plans that can be run, by the number of their task; these tasks; what `run.json` says.

    Raises:
        UserError: the directory holds another run.
    """
    by_task = runnable_by_task(entries)
    tasks = tuple(plans_of(its)[0].task for its in by_task.values())
    here = {"hardware": hardware.fingerprint.to_json(), "seed": seed, "versions": versions()}
    facts = {"through": through, **settings, **here}
    fixed = {name: value for name, value in facts.items() if name != "builds"}
    files = [entry.file for entry in entries]
    contents = digest_of(*(Path(file) for file in files if file is not None))
    run.begin({**fixed, "plans": files, "digest of plans": contents}, tasks)
    return by_task, tasks, facts
