"""A sweep's jobs: what each leaves behind in a folder of the sweep, and the table of them all at the end.

Jobs may run in other processes, on other machines too, so that each writes a file.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table as Grid
from rich.text import Text

from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.schema import parse
from neuroshard.records.run_directory import JobFigures

_SHARED = Path("runs") / "sweeps"
_ELSEWHERE = "hydra/launcher=submitit"  # launchers that run jobs on other machines
_PLACE = "out"  # which differs without making a difference
_CAPTION = "predicted ms: means over the tasks that every row with the same tasks solved"


@dataclass(frozen=True)
class Job:
    """One job: its settings as `key=value`, and its figures if it has any, or in a word why it failed."""

    number: int
    settings: tuple[str, ...]
    outcome: JobFigures | None = None
    failure: str | None = None

    def keep(self, folder: Path) -> None:
        """Write the job into the sweep's folder."""
        write_json(folder / f"job-{self.number:05d}.json", asdict(self))

    def setting(self, key: str) -> str:
        """Look up the value of a setting; empty if the job has none."""
        return dict(text.partition("=")[::2] for text in self.settings).get(key, "")


@contextmanager
def sweep_folder(arguments: Sequence[str]) -> Iterator[Path]:
    """Make a folder for what jobs of a sweep leave, and for Hydra's own files.

    It is a temporary one, unless jobs run on machines that don't see that, or the arguments name a folder.
    """
    given = [text.partition("=")[2].strip("'") for text in arguments if text.startswith("hydra.sweep.dir=")]
    if given:
        yield Path(given[-1])
    elif any(text.startswith(_ELSEWHERE) for text in arguments):
        yield _SHARED.absolute() / time.strftime("%Y-%m-%d_%H-%M-%S")
    else:
        with tempfile.TemporaryDirectory(prefix="neuroshard-") as temporary:
            yield Path(temporary)


def jobs_in(folder: Path) -> list[Job]:
    """Read every job that ended, in order of their numbers."""
    return [parse(read_json(path, "job"), Job, f"job {path}") for path in sorted(folder.glob("job-*.json"))]


def compared(jobs: Sequence[Job]) -> Grid:
    """Make a table with a row for each job, the settings that differ between jobs, and figures if jobs have any.

    The table of a single job has all settings of the job: if it ran on another machine, nothing else is printed here.
    """
    keys = list(dict.fromkeys(text.partition("=")[0] for job in jobs for text in job.settings))
    several = len(jobs) > 1
    differ = [key for key in keys if key != _PLACE and len({job.setting(key) for job in jobs}) > several]
    have_figures = any(job.outcome is not None for job in jobs)
    grid = Grid(title="The sweep", caption=_CAPTION if have_figures else None)
    for key in differ:
        grid.add_column(Text(key))
    for column in ("solved", "predicted ms", "search s") if have_figures else ("result",):
        grid.add_column(column, justify="right")
    for job in jobs:
        figures = _figures(job, jobs) if have_figures else (job.failure or "done",)
        grid.add_row(*(Text(job.setting(key)) for key in differ), *figures)
    return grid


def _figures(job: Job, jobs: Sequence[Job]) -> tuple[str, str, str]:
    """Return the columns of a job, compared with the others: tasks solved, mean predicted cost and mean seconds."""
    its = job.outcome
    if its is None:
        return (job.failure or "done"), "-", "-"
    alike = [other.outcome.solved for other in jobs if other.outcome is not None and other.outcome.tasks == its.tasks]
    common = frozenset.intersection(*(solved for solved in alike if solved)) if its.solved else its.solved
    costs = [cost for number, cost in enumerate(its.costs_ms) if cost is not None and number in common]
    mean = f"{sum(costs) / len(costs):.2f}" if costs else "-"
    return f"{len(its.solved)}/{len(its.costs_ms)}", mean, f"{its.seconds:.3f}"
