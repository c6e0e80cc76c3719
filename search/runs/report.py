"""The report run: reads the results of runs, and writes tables as CSV, figures as PNG, and the page `report.html`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from neuroshard.measure.store.run_directory import check_nothing_else
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import check_directory, write_atomically
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import PathName
from neuroshard.stages.search.report.gather import Gathered, find_runs, gather
from neuroshard.stages.search.report.page import plain, render, save_csv, save_page
from neuroshard.stages.search.report.reported import (
    compared_shown,
    learning_shown,
    sensitivities_shown,
    trust_shown,
)
from neuroshard.stages.search.report.sweep_statistics import comparisons, in_sweep, sensitivities


@dataclass(frozen=True)
@checked
class Report:
    """The settings of `neuroshard report`; the method `run` executes the command.

    Attributes:
        runs: directories that contain runs, at any depth; required; give them as plain arguments, without 'runs=', as
            in: report RUN_DIR.
        out: directory that the report is written to: one page, its tables and its figures.
    """

    runs: PathName | Sequence[PathName]
    out: PathName = "report"

    def run(self) -> "ReportResult":
        """Collect the results of runs, compare the methods, and write the tables, the figures and the page.

        Raises:
            UserError: there is no run, a run is damaged, or `out` is one of the runs.
        """
        paths = [Path(self.runs)] if isinstance(self.runs, str) else [Path(path) for path in self.runs]
        out = Path(self.out)
        _check_out(out, find_runs(paths))
        gathered = gather(paths)
        searched = gathered.searched
        tables = {
            "predicted": comparisons(searched[~in_sweep(searched)], "tasks", "predicted_ms"),
            "measured": comparisons(gathered.measured, "run", "measured_ms"),
            "sensitivity": sensitivities(searched),
            "learning": gathered.learned,
        }
        for name, frame in tables.items():
            if not frame.empty:
                save_csv(out / "tables" / f"{name}.csv", frame)
        answers = [
            compared_shown(tables["predicted"], "Predicted", "tasks", "mean predicted cost"),
            sensitivities_shown(tables["sensitivity"]),
            compared_shown(tables["measured"], "Measured", "evaluation", "mean measured cost"),
            trust_shown(gathered.measured),
            learning_shown(gathered.learned, gathered.references),
        ]
        sections = [section for section in answers if section is not None]
        for picture in (picture for section in sections for picture in section.pictures):
            write_atomically(out / "figures" / f"{picture.name}.png", picture.png)
        save_page(out / "report.html", render("Sharding plans compared", _intro(gathered, paths), sections))
        return ReportResult(out, len(sections))


def _intro(gathered: Gathered, paths: Sequence[Path]) -> str:
    """Return a text with the number of runs of each kind, and with the directories that were searched for runs."""
    counts = {
        ("search run", "search runs"): gathered.searched["path"].nunique(),
        ("evaluation on hardware", "evaluations on hardware"): gathered.measured["run"].nunique(),
        ("training", "trainings"): gathered.learned["run"].nunique(),
    }
    listed = ", ".join(number_of(count, *names) for names, count in counts.items() if count)
    return f"{listed} from {', '.join(map(str, paths))}"


def _check_out(out: Path, runs: Sequence[Path]) -> None:
    """Raise UserError if the report cannot or must not be written into the directory `out`: because `out` cannot be
    created or is not writable, because `out` is one of the `runs` that the report reads, or because `out` contains the
    files of another command.
    """
    check_directory(out)
    if not out.exists():
        return
    if any(out.samefile(run) for run in runs):
        raise UserError(
            "report-out-is-run",
            f"out={out} is the directory of a run to report",
            limit="the report needs a directory of its own",
            remedy="Set out=DIRECTORY to another directory",
        )
    check_nothing_else(out, ())


@dataclass(frozen=True)
class ReportResult:
    """A written report: the directory of the report, and the number of sections in the report."""

    path: Path
    num_sections: int

    def show(self, console: Console) -> None:
        """Print the path of the report and the number of sections."""
        sections = number_of(self.num_sections, "section")
        text = f"{sections}: {self.path / 'report.html'} (tables/*.csv, figures/*.png)"
        console.print(plain(text), soft_wrap=True)
