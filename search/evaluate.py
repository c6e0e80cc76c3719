"""The evaluate run: plans on hardware, measured beside predicted."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table as Grid

from neuroshard.cost import Cost
from neuroshard.errors import UserError
from neuroshard.files import write_atomically, write_json
from neuroshard.hardware import Hardware
from neuroshard.hardware.fingerprint import versions
from neuroshard.models import CostModels
from neuroshard.models.trust import LEVEL
from neuroshard.plan import Plan
from neuroshard.progress import progress_bar
from neuroshard.report import plan_png, save_png
from neuroshard.search.comparison import Evaluated, comparison
from neuroshard.search.measure import measure_plans
from neuroshard.search.runs import SearchRun, claim_directory, is_finished
from neuroshard.simulator import Simulator

_PICTURE = "plan.png"
_SHOWN_ERRORS = 3


@dataclass(frozen=True)
class Evaluate:
    """Everything `neuroshard evaluate` needs.

    Attributes:
        plan: plan files and directories of search runs.
        model: a bundle that predicts plans given as files; None leaves their prediction out.
        hardware: what they run on.
        max_tasks: the first so many tasks of every search run; None takes all.
        seed: fixes the lookups.
        out: a directory for the results; None takes the next free one under runs/evaluate.
    """

    plan: str | Sequence[str]
    model: str | None
    hardware: Hardware
    max_tasks: int | None
    seed: int
    out: str | None

    def run(self) -> "EvaluateResult":
        """Measure every plan that fits; tasks without a plan, and plans that don't fit, are counted as failures."""
        entries = self._entries()
        order = sorted(range(len(entries)), key=lambda i: entries[i].task)  # plans of one task are measured together
        runnable = [i for i in order if entries[i].plan is not None and entries[i].error is None]
        if not runnable:
            raise UserError(f"nothing to run: none of the {len(entries)} entries is a plan that fits in memory")
        plans = [plan for i in runnable if (plan := entries[i].plan) is not None]
        if self.out is not None and is_finished(Path(self.out)):
            raise UserError(f"{self.out} holds a run already; give another out=DIRECTORY or delete it")
        directory = claim_directory(self.out, "evaluate", self.hardware.device.kind)
        steps = sum(1 for plan in plans for tables in plan.device_tables if tables) + len(plans)
        with progress_bar() as progress:
            bar = progress.add_task("devices and exchanges", total=steps)
            measured = measure_plans(
                plans, self.hardware, self.seed, progress.console.print, lambda n: progress.advance(bar, n)
            )
        for i, outcome in zip(runnable, measured, strict=True):
            entries[i] = entries[i].measured_as(outcome)
        result = EvaluateResult(directory, tuple(entries))
        result.save({"hardware": self.hardware.fingerprint.to_json(), "seed": self.seed, "versions": versions()})
        return result

    def _entries(self) -> list[Evaluated]:
        paths = [Path(self.plan)] if isinstance(self.plan, str) else [Path(path) for path in self.plan]
        simulator = None if self.model is None else Simulator(CostModels.load(self.model))
        entries: list[Evaluated] = []
        for path in paths:
            entries += self._of_run(path) if path.is_dir() else [_of_file(path, simulator)]
        return entries

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


def _of_file(path: Path, simulator: Simulator | None) -> Evaluated:
    plan = Plan.load(path)
    entry = Evaluated(path.stem, 0, str(path), plan, float("nan"), float("nan"), None).checked()
    if simulator is None:
        return entry
    cost = simulator.cost(plan.task, plan)
    return replace(entry, predicted_ms=cost.total_ms, margin_ms=cost.margin_ms)


@dataclass(frozen=True)
class EvaluateResult:
    """Everything evaluated, and where it is stored."""

    path: Path
    entries: tuple[Evaluated, ...] = field(repr=False)

    def save(self, settings: dict[str, object]) -> None:
        """Write `results.parquet`, `devices.parquet`, a picture of the cheapest measured plan, `run.json`."""
        frame = pd.DataFrame([entry.row() for entry in self.entries])
        write_atomically(self.path / "results.parquet", lambda temporary: frame.to_parquet(temporary, index=False))
        devices = pd.DataFrame([row for entry in self.entries for row in entry.device_rows()])
        write_atomically(self.path / "devices.parquet", lambda temporary: devices.to_parquet(temporary, index=False))
        shown = self._shown()
        if shown is not None and shown.plan is not None and shown.measured is not None:
            title = f"{shown.method}, task {shown.task}: {shown.measured.total_ms:.1f} ms measured"
            save_png(self.path / _PICTURE, plan_png(shown.plan, shown.measured, title))
        write_json(self.path / "run.json", settings)

    def _shown(self) -> Evaluated | None:
        """The plan in the picture: the first task's cheapest."""
        solved = [entry for entry in self.entries if entry.measured is not None]
        return min(solved, key=lambda entry: (entry.task, entry.measured_ms), default=None)

    def show(self, console: Console) -> None:
        """Print the devices of a single plan, or the comparison of several."""
        if len(self.entries) == 1 and self.entries[0].measured is not None:
            _show_devices(console, self.entries[0], self.entries[0].measured)
        console.print(comparison(self.entries))
        known = [entry for entry in self.entries if not np.isnan(entry.margin_ms + entry.measured_ms)]
        if known:
            inside = sum(abs(entry.measured_ms - entry.predicted_ms) <= entry.margin_ms for entry in known)
            console.print(f"{inside} of {len(known)} measured costs lie inside their predicted {LEVEL:.0%} interval")
        failed = [entry for entry in self.entries if entry.error is not None]
        for entry in failed[:_SHOWN_ERRORS]:
            console.print(f"{entry.method}, task {entry.task}: {entry.error}", markup=False, highlight=False)
        if len(failed) > _SHOWN_ERRORS:
            console.print(f"... and {len(failed) - _SHOWN_ERRORS} more failures in results.parquet")
        console.print(f"results: {self.path}")
        if self._shown() is not None:
            console.print(f"picture: {self.path / _PICTURE}")


def _show_devices(console: Console, entry: Evaluated, cost: Cost) -> None:
    assert entry.plan is not None
    grid = Grid(title=f"{entry.file}, measured")
    for column in ("device", "shards", "dims", "MiB", "compute ms", "forward ms", "backward ms", "total ms"):
        grid.add_column(column, justify="right")
    for d, tables in enumerate(entry.plan.device_tables):
        parts = (cost.compute[d], cost.forward[d], cost.backward[d], cost.device_ms[d])
        grid.add_row(
            str(d), str(len(tables)), str(entry.plan.device_dims[d]), f"{entry.plan.device_bytes[d] / 2**20:.1f}",
            *(f"{ms:.2f}" for ms in parts),
        )  # fmt: skip
    console.print(grid)
