"""The evaluate run: plans on hardware, measured beside predicted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import pandas as pd
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from neuroshard.cost.cost import Cost
from neuroshard.hardware import Hardware
from neuroshard.hardware.hardware import is_follower
from neuroshard.hardware.plan_costs import beyond_memory, measure_plans, steps
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.picture import plan_png, save_png
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import check_directory
from neuroshard.plumbing.parquet import write_frame
from neuroshard.plumbing.progress import Result, printer, progress_bar
from neuroshard.plumbing.schema import PathName, PositiveCount, Seed
from neuroshard.records.run_directory import RunDirectory
from neuroshard.stages.search.results.comparison import Evaluated, comparison, trust_lines
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.words.fingerprint import versions

_PICTURE = "plan.png"
_SHOWN_ERRORS = 3


@dataclass(frozen=True)
@checked
class Evaluate:
    """Everything `neuroshard evaluate` needs.

    Attributes:
        plans: plan files and directories of search runs, without a key: evaluate PLAN.json RUN_DIR.
        model: cost models that predict plan files; None takes what the files say.
        hardware: what they run on.
        max_tasks: of every search run; None takes all.
        seed: fixes the lookups.
        out: None is the next free directory under runs/evaluate.
        count_input: whether the exchange of indices is measured too, and counted. In predictions of plan files too
            where `model` is given; searched with count_input as well, plans' predictions count it.
        through: what plans are run in: None takes kernels and exchanges one by one.
    """

    plans: PathName | Sequence[PathName]
    model: PathName | None
    hardware: Hardware
    max_tasks: PositiveCount | None = None
    seed: Seed = 0
    out: PathName | None = None
    count_input: bool = False
    through: "Through | None" = None

    def run(self) -> "Result | None":
        """Measure every plan that fits; tasks without a plan, and plans that don't fit, are counted as failures.

        None in processes that only take part.
        """
        entries = self._entries()
        if not any(entry.runnable for entry in entries):
            why = next((f" ({entry.error})" for entry in entries if entry.error is not None), "")
            raise UserError(f"nothing to run: none of the {len(entries)} entries is a plan that fits in memory{why}")
        through = self.through or Kernels(self.count_input)
        self.hardware.check()
        through.check(entries, self.hardware)
        if is_follower():
            through.follow(self.hardware)
            return None
        if self.out is not None:
            check_directory(Path(self.out))
        directory = RunDirectory.at(self.out, "evaluate", self.hardware.device.kind)
        with directory.held():
            return through.measured(entries, self.hardware, self.seed, directory)

    def _entries(self) -> list[Evaluated]:
        paths = [Path(self.plans)] if isinstance(self.plans, str) else [Path(path) for path in self.plans]
        simulator = None if self.model is None else Simulator(CostModels.load(self.model), self.count_input)
        found = [(path, self._of_run(path) if path.is_dir() else [_of_file(path, simulator)]) for path in paths]
        methods = [entries[0].method for _, entries in found if entries]
        return [
            # Several of one name would be taken for one.
            self._within_host(
                entry if methods.count(entry.method) == 1 else replace(entry, method=f"{entry.method} ({path})")
            )
            for path, entries in found
            for entry in entries
        ]

    def _within_host(self, entry: Evaluated) -> Evaluated:
        """Return the entry, with an error if CPU kernels have no room for a device's weights on this host."""
        if entry.plan is None or entry.error is not None:
            return entry
        return replace(entry, error=beyond_memory(entry.plan, self.hardware))

    def _of_run(self, path: Path) -> list[Evaluated]:
        run = SearchRun.load(path)
        records = [r for r in run.records if self.max_tasks is None or r.task < self.max_tasks]
        return [
            Evaluated(
                run.searcher,
                record.task,
                None if record.plan is None else str(path / record.plan),
                run.plan_of(record),
                record.predicted_ms,
                record.seconds,
                record.error,
                margin_ms=record.margin_ms,
            ).checked()
            for record in records
        ]


class Through(Protocol):
    """What plans are run in."""

    def check(self, entries: Sequence[Evaluated], hardware: Hardware) -> None:
        """Raise UserError unless they can be run so."""
        ...

    def follow(self, hardware: Hardware) -> None:
        """Take part, as one of torchrun's processes other than rank 0."""
        ...

    def measured(self, entries: Sequence[Evaluated], hardware: Hardware, seed: int, directory: RunDirectory) -> Result:
        """Run what can be run, and write the results into the directory, which is held."""
        ...


@dataclass(frozen=True)
class Kernels:
    """Kernels and exchanges are measured one by one, as cost models predict them.

    Attributes:
        count_input: whether the exchange of indices and lengths is measured too, and counted.
    """

    count_input: bool = False

    def check(self, entries: Sequence[Evaluated], hardware: Hardware) -> None:
        """Nothing is refused before it is measured."""

    def follow(self, hardware: Hardware) -> None:
        """Take part in the exchanges."""
        hardware.follow()

    def measured(
        self, entries: Sequence[Evaluated], hardware: Hardware, seed: int, directory: RunDirectory
    ) -> "EvaluateResult":
        """Plans of one task are measured together.

        Raises:
            UserError: nothing could be measured, or the directory holds a run.
        """
        directory.check_free()
        found = list(entries)
        order = sorted(range(len(found)), key=lambda i: found[i].task)
        runnable = [i for i in order if found[i].runnable]
        plans = [plan for i in runnable if (plan := found[i].plan) is not None]
        with progress_bar() as progress:
            bar = progress.add_task("kernels and exchanges", total=steps(plans, self.count_input))
            measured = measure_plans(
                plans,
                hardware,
                seed,
                printer(progress),
                lambda n: progress.advance(bar, n),
                self.count_input,
            )
        for i, outcome in zip(runnable, measured, strict=True):
            found[i] = found[i].measured_as(outcome)
        result = EvaluateResult(directory.path, tuple(found))
        result.save(facts_of(hardware, seed) | self._counted)
        if all(entry.measured is None for entry in found):
            why = next(entry.error for entry in found if entry.error is not None)
            raise UserError(f"nothing could be measured: {why}; what was tried stands in {directory.path}")
        return result

    @property
    def _counted(self) -> dict[str, object]:
        return {"count_input": True} if self.count_input else {}


def one_by_one() -> None:
    """What `through=kernels` asks for: kernels and exchanges alone."""


def facts_of(hardware: Hardware, seed: int) -> dict[str, object]:
    """What `run.json` says of every evaluation."""
    return {"hardware": hardware.fingerprint.to_json(), "seed": seed, "versions": versions()}


def _of_file(path: Path, simulator: Simulator | None) -> Evaluated:
    plan = Plan.load(path)
    plan = plan if simulator is None else simulator.predicted(plan)
    known, nan = plan.prediction, float("nan")
    predicted = (nan, nan) if known is None else (known.cost_ms, nan if known.margin_ms is None else known.margin_ms)
    return Evaluated(path.stem, 0, str(path), plan, predicted[0], nan, None, margin_ms=predicted[1]).checked()


@dataclass(frozen=True)
class EvaluateResult:
    """Everything evaluated, and where it is stored."""

    path: Path
    entries: tuple[Evaluated, ...] = field(repr=False)

    def save(self, facts: Mapping[str, object]) -> None:
        """Write `results.parquet`, `devices.parquet` and `run.json` with the facts, then draw the cheapest plan."""
        frame = pd.DataFrame([entry.row() for entry in self.entries])
        write_frame(self.path / "results.parquet", frame)
        devices = pd.DataFrame([row for entry in self.entries for row in entry.device_rows()])
        write_frame(self.path / "devices.parquet", devices)
        RunDirectory(self.path).finish("evaluate", facts)
        shown = self._shown()
        if shown is not None and shown.plan is not None and shown.measured is not None:
            title = f"{shown.method}, task {shown.task}: {shown.measured.total_ms:.1f} ms measured"
            save_png(self.path / _PICTURE, plan_png(shown.plan, shown.measured, title))

    def _shown(self) -> Evaluated | None:
        """The plan in the picture: the first task's cheapest."""
        solved = [entry for entry in self.entries if entry.measured is not None]
        return min(solved, key=lambda entry: (entry.task, entry.measured_ms), default=None)

    def show(self, console: Console) -> None:
        """Print the devices of a single plan, or the comparison of several."""
        if len(self.entries) == 1 and self.entries[0].measured is not None:
            _show_devices(console, self.entries[0], self.entries[0].measured)
        console.print(comparison(self.entries))
        for line in trust_lines(self.entries):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        failed = [entry for entry in self.entries if entry.error is not None]
        for entry in failed[:_SHOWN_ERRORS]:
            console.print(
                f"{entry.method}, task {entry.task}: {entry.error}", markup=False, highlight=False, soft_wrap=True
            )
        if len(failed) > _SHOWN_ERRORS:
            console.print(f"... and {len(failed) - _SHOWN_ERRORS} more failures in results.parquet")
        console.print(f"results: {self.path}", markup=False, highlight=False, soft_wrap=True)
        if self._shown() is not None:
            console.print(f"picture: {self.path / _PICTURE}", markup=False, highlight=False, soft_wrap=True)


def _show_devices(console: Console, entry: Evaluated, cost: Cost) -> None:
    assert entry.plan is not None
    grid = Grid(title=Text(f"{entry.file}, measured"))
    columns = ("device", "shards", "dims", "MiB", *(f"{part.name} ms" for part in cost.parts), "total ms")
    for column in columns:
        grid.add_column(column, justify="right")
    for d, tables in enumerate(entry.plan.device_tables):
        grid.add_row(
            str(d), str(len(tables)), str(entry.plan.device_dims[d]), f"{entry.plan.device_bytes[d] / 2**20:.1f}",
            *(f"{ms[d]:.2f}" for ms in (*(part.ms for part in cost.parts), cost.device_ms)),
        )  # fmt: skip
    console.print(grid)
