"""The jobs of a sweep: the files that each job writes to the folder of the sweep, and the table of all jobs.

Jobs write files because they may run in other processes, also on other machines.
"""

import hashlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table as Grid
from rich.text import Text

from neuroshard.measure.store.run_directory import JobFigures
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.schema import parse, readable_bytes

_SHARED = Path("runs") / "sweeps"
_ELSEWHERE = "hydra/launcher=submitit"  # launchers that run jobs on other machines
_PREFIX = "neuroshard-"  # of the names of temporary folders
_CLAIM = ".neuroshard-out-"  # beginning of the names of files that reserve an output directory
_PLACE = "out"  # the setting with the output directory, which differs between jobs but does not change results
_CAPTION = "predicted ms: means over the tasks that every row with the same tasks solved"

_HEADROOM = "memory headroom: smallest free memory of a device, over all plans"


@dataclass(frozen=True)
class Job:
    """One job of a sweep: the settings of the job, and the result or the reason why the job failed.

    Attributes:
        number: number of the job in the sweep.
        settings: settings of the job, as `key=value`.
        outcome: figures of the job's result; None if the job failed or its command has no figures.
        failure: reason why the job failed, as `failures.failure_of` returns it; None if the job succeeded.
    """

    number: int
    settings: tuple[str, ...]
    outcome: JobFigures | None = None
    failure: str | None = None

    def keep(self, folder: Path) -> None:
        """Write the job to a file in the folder of the sweep."""
        write_json(folder / f"job-{self.number:05d}.json", asdict(self))

    def claim(self, folder: Path, out: str | None) -> None:
        """Reserve the output directory `out` for this job, by a file in the folder of the sweep. If `out` is None, the
        job takes a free directory itself, and nothing is reserved.

        Raises:
            UserError: another job of the sweep writes to the same directory; or the directory is in a temporary folder,
                which is removed after the sweep.
        """
        place = Path(out or "").resolve()
        if is_temporary(folder) and place.is_relative_to(folder.resolve()):
            raise UserError(
                "sweep-out-temporary",
                f"the output directory '{place}' is in the folder of the sweep",
                limit="this folder is temporary, so the results would be removed at the end",
                remedy="Set out to a directory outside it, or keep the folder of the sweep with "
                "hydra.sweep.dir=DIRECTORY",
            )
        if out is None:
            return
        claim = folder / f"{_CLAIM}{hashlib.sha256(str(place).encode()).hexdigest()[:16]}"
        try:
            with claim.open("x") as file:
                file.write(str(self.number))
        except FileExistsError:
            raise UserError(
                "sweep-out-shared",
                f"out={out} is also the output directory of job {claim.read_text()}",
                limit="each job of a sweep needs an output directory of its own",
                remedy=f"Name a setting that differs in out, or the number of the job: 'out={out}-${{hydra:job.num}}'",
            ) from None

    def setting(self, key: str) -> str:
        """Return the value of the setting `key` as text; the text is empty if the job does not set `key`."""
        return dict(text.partition("=")[::2] for text in self.settings).get(key, "")


@dataclass(frozen=True)
class SweepFacts:
    """All jobs of a sweep, in the order of the jobs' numbers, as `format=json` prints them."""

    jobs: tuple[Job, ...]


@contextmanager
def sweep_folder(arguments: Sequence[str]) -> Iterator[Path]:
    """Yield the folder for the files of a sweep's jobs and for Hydra's own files.

    The folder is temporary, unless the arguments name a folder, or jobs run on other machines, which cannot see a
    temporary folder here. Files of the jobs of an earlier sweep are removed from a folder that the arguments name.
    """
    given = [text.partition("=")[2].strip("'") for text in arguments if text.startswith("hydra.sweep.dir=")]
    if given:
        folder = Path(given[-1])
        for file in (*folder.glob(f"job-{'[0-9]' * 5}.json"), *folder.glob(f"{_CLAIM}*")):
            file.unlink()
        yield folder
    elif any(text.startswith(_ELSEWHERE) for text in arguments):
        yield _SHARED.absolute() / time.strftime("%Y-%m-%d_%H-%M-%S")
    else:
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as temporary:
            yield Path(temporary)


def is_temporary(folder: Path) -> bool:
    """Return True if `folder` is a temporary folder of `sweep_folder`, which is removed after the sweep."""
    return folder.name.startswith(_PREFIX) and folder.parent == Path(tempfile.gettempdir())


def jobs_in(folder: Path) -> list[Job]:
    """Return the jobs of a sweep that have ended, in the order of the jobs' numbers.

    Raises:
        UserError: the file of a job is damaged.
    """
    return [parse(read_json(path, "job"), Job, f"job {path}") for path in sorted(folder.glob("job-*.json"))]


def compared(jobs: Sequence[Job]) -> Grid:
    """Return a table that compares the jobs of a sweep, with a row for each job. The first columns are the settings
    that differ between jobs. If any job has figures of searches, the next columns are the number of solved tasks, the
    predicted cost and the seconds per search. Otherwise, the next column is the result: "done", or the reason why the
    job failed.

    If there is only one job, the table has all settings of this job. The setting `out` is always left out. If jobs have
    different numbers of devices, the table also has these numbers, the smallest free memory of a device, and the work
    that the costs count.
    """
    keys = list(dict.fromkeys(text.partition("=")[0] for job in jobs for text in job.settings))
    several = len(jobs) > 1
    differ = [key for key in keys if key != _PLACE and len({job.setting(key) for job in jobs}) > several]
    have_figures = any(job.outcome is not None for job in jobs)
    over_devices = len({job.outcome.devices for job in jobs if job.outcome is not None}) > 1
    grid = Grid(title="The sweep", caption=_caption(jobs, over_devices) if have_figures else None)
    for key in differ:
        grid.add_column(Text(key))
    columns = ("solved", "predicted ms", "search s") if have_figures else ("result",)
    for column in (*columns, *(("devices", "memory headroom") if over_devices else ())):
        grid.add_column(column, justify="right")
    for job in jobs:
        figures = _figures(job, jobs) if have_figures else (job.failure or "done",)
        figures += _memory_figures(job.outcome) if over_devices else ()
        grid.add_row(*(Text(job.setting(key)) for key in differ), *figures)
    return grid


def _caption(jobs: Sequence[Job], over_devices: bool) -> str:
    """Return the caption of the table that compares the jobs of a sweep. The caption says over which tasks the costs
    are averaged. If the jobs have different numbers of devices (`over_devices`), the caption also says which work the
    costs include, and explains the column "memory headroom".
    """
    if not over_devices:
        return _CAPTION
    scopes = dict.fromkeys(scope for job in jobs if job.outcome is not None for scope in job.outcome.scopes)
    counts = f"costs count {'; or '.join(scopes)}" if scopes else ""
    return "\n".join(filter(None, [_CAPTION, counts, _HEADROOM]))


def _memory_figures(outcome: JobFigures | None) -> tuple[str, ...]:
    """Return two table cells for a job in a sweep over numbers of devices.
    The cells are the number of devices, and the smallest free memory of a device.
    """
    if outcome is None:
        return "-", "-"
    free = outcome.headroom_bytes
    return (
        "-" if outcome.devices is None else str(outcome.devices),
        "-" if free is None else readable_bytes(free),
    )


def _figures(job: Job, jobs: Sequence[Job]) -> tuple[str, ...]:
    """Return the three table cells of a job: number of solved tasks, mean predicted cost in ms, and seconds per search.
    The mean cost and the seconds are "-" if the job failed.

    The mean cost is over the tasks that all jobs with the same tasks solved (jobs that solved no task are left out), so
    that the costs of such jobs can be compared.
    """
    outcome = job.outcome
    if outcome is None:
        return (job.failure or "done"), "-", "-"
    outcomes = [other.outcome for other in jobs if other.outcome is not None]
    alike = [other.solved for other in outcomes if other.tasks == outcome.tasks]
    common = frozenset.intersection(*(solved for solved in alike if solved)) if outcome.solved else outcome.solved
    costs = [cost for number, cost in enumerate(outcome.costs_ms) if cost is not None and number in common]
    mean = f"{sum(costs) / len(costs):.2f}" if costs else "-"
    return f"{len(outcome.solved)}/{len(outcome.costs_ms)}", mean, f"{outcome.seconds:.3f}"
