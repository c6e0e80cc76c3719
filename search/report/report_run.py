"""The report run: runs in, `report.html`, CSV and PNG out."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

from neuroshard.files import write_atomically
from neuroshard.models.trust import LEVEL
from neuroshard.report import curves_png, save_png
from neuroshard.search.report.figures import comparison_bars, scatter, sensitivity_curve
from neuroshard.search.report.gather import Gathered, gather
from neuroshard.search.report.page import Grid, Picture, Section, render
from neuroshard.search.report.statistics import comparisons, sensitivities

_COLUMNS = ("method", "solved", "mean ms", "95% ±", "cheapest saves", "95% ±", "p", "search s")
_HOW = (
    'Costs are means over the tasks that every method solved, with Student\'s 95% interval. "Cheapest saves": what the '
    "cheapest method costs less, task by task; p: Wilcoxon's signed-rank test of those pairs."
)


@dataclass(frozen=True)
class Report:
    """Everything `neuroshard report` needs.

    Attributes:
        runs: directories that hold runs, at any depth.
        out: a directory for the page, its tables and figures.
    """

    runs: str | Sequence[str]
    out: str

    def run(self) -> "ReportResult":
        """Gather, compare, draw, write.

        Raises:
            UserError: there is no run, or one is damaged.
        """
        paths = [Path(self.runs)] if isinstance(self.runs, str) else [Path(path) for path in self.runs]
        gathered = gather(paths)
        swept = gathered.searched["method"].astype(str).str.contains("=")
        predicted = comparisons(gathered.searched[~swept], "tasks", "predicted_ms")
        measured = comparisons(gathered.measured, "run", "measured_ms")
        curves = sensitivities(gathered.searched)
        sections = [
            *_comparison_sections(predicted, "mean predicted cost", "Predicted"),
            *_sensitivity_sections(curves),
            *_comparison_sections(measured, "mean measured cost", "Measured"),
            *_trust_section(gathered.measured),
            *_learning_section(gathered),
        ]
        result = ReportResult(Path(self.out), len(sections))
        tables = {"predicted": predicted, "measured": measured, "sensitivity": curves, "learning": gathered.learned}
        result.save(render("Sharding plans compared", _intro(gathered, paths), sections), sections, tables)
        return result


def _intro(gathered: Gathered, paths: Sequence[Path]) -> str:
    counts = [
        f"{gathered.searched['path'].nunique()} search run(s)",
        f"{gathered.measured['run'].nunique()} evaluation(s) on hardware",
        f"{gathered.learned['run'].nunique()} training(s)",
    ]
    return f"{', '.join(counts)} in {', '.join(map(str, paths))}. {_HOW}"


def _comparison_sections(compared: pd.DataFrame, label: str, kind: str) -> list[Section]:
    if compared.empty:
        return []
    return [
        Section(
            f"{kind}: {name}",
            f"{part['common'].iloc[0]} of {part['tasks'].max()} task(s) were solved by every method.",
            (Grid(_COLUMNS, tuple(_row(row) for _, row in part.iterrows()), frozenset({0})),),
            (Picture(f"{kind.lower()}-{number}", f"{label}, with 95% intervals", comparison_bars(part, label)),)
            if part["mean_ms"].notna().any()
            else (),
        )
        for number, (name, part) in enumerate(compared.groupby("group", sort=False))
    ]


def _row(row: "pd.Series[float]") -> tuple[str, ...]:
    return (
        str(row["method"]),
        f"{row['solved']:.0f}/{row['tasks']:.0f}",
        _shown(row["mean_ms"], ".3f"),
        _shown(row["ci_ms"], ".3f"),
        _shown(row["saved"], ".1%"),
        _shown(row["saved_ci"], ".1%"),
        "< 0.001" if row["p"] < 0.001 else _shown(row["p"], ".3f"),
        _shown(row["seconds"], ".3f"),
    )


def _shown(value: float, how: str) -> str:
    return "" if np.isnan(value) else format(value, how)


def _sensitivity_sections(curves: pd.DataFrame) -> list[Section]:
    columns = ("value", "mean ms", "beside the task's mean", "95% ±")
    return [
        Section(
            f"Sensitivity: {setting}",
            str(tasks),
            (Grid(columns, tuple(_sensitivity_row(row) for _, row in part.iterrows())),),
            (Picture(f"sensitivity-{setting}-{n}", f"cost by {setting}", sensitivity_curve(part, str(setting))),),
        )
        for n, ((tasks, setting), part) in enumerate(curves.groupby(["tasks", "setting"], sort=False))
    ]


def _sensitivity_row(row: "pd.Series[float]") -> tuple[str, ...]:
    return (
        f"{row['value']:g}",
        f"{row['mean_ms']:.3f}",
        _shown(row["relative"], "+.2%"),
        _shown(row["relative_ci"], ".2%"),
    )


def _trust_section(measured: pd.DataFrame) -> list[Section]:
    known = measured.dropna(subset=["predicted_ms", "measured_ms"])
    if known.empty:
        return []
    error = (known["predicted_ms"] / known["measured_ms"] - 1).abs()
    tau = known["predicted_ms"].corr(known["measured_ms"], method="kendall")
    inside = (known["predicted_ms"] - known["measured_ms"]).abs() <= known["margin_ms"]
    text = (
        f"{len(known)} plans. Predictions are off by {error.mean():.1%} on average ({error.median():.1%} in the "
        f"median); Kendall's tau {tau:.3f}; {inside.mean():.0%} of the measured costs lie inside their predicted "
        f"{LEVEL:.0%} intervals."
    )
    return [
        Section(
            "Predicted against measured", text, (), (Picture("scatter", "every plan that was run", scatter(known)),)
        )
    ]


def _learning_section(gathered: Gathered) -> list[Section]:
    if gathered.learned.empty:
        return []
    common = list(gathered.references.values())
    same = common[0] if all(other == common[0] for other in common) else {}
    runs = gathered.learned.groupby("run", sort=False)
    curves = [(str(part["method"].iloc[0]), part["valid_ms"].to_numpy()) for _, part in runs]
    picture = Picture("learning", "cost of the policy's plans, by round", curves_png(curves, same))
    best = gathered.learned.groupby("run")["valid_ms"].agg(["min", "count"])
    rows = tuple((str(run), f"{row['min']:.3f}", f"{row['count']:.0f}") for run, row in best.iterrows())
    return [Section("Learned policies", "", (Grid(("run", "best validation ms", "rounds"), rows),), (picture,))]


@dataclass(frozen=True)
class ReportResult:
    """Where a report is."""

    path: Path
    num_sections: int

    def save(self, html: str, sections: Sequence[Section], tables: dict[str, pd.DataFrame]) -> None:
        """Write the page, `tables/*.csv` and `figures/*.png`."""
        write_atomically(self.path / "report.html", lambda file: file.write_text(html, encoding="utf-8"))
        for name, frame in tables.items():
            if not frame.empty:
                write_atomically(self.path / "tables" / f"{name}.csv", partial(frame.to_csv, index=False))
        for picture in (picture for section in sections for picture in section.pictures):
            save_png(self.path / "figures" / f"{picture.name}.png", picture.png)

    def show(self, console: Console) -> None:
        """Say where."""
        console.print(f"{self.num_sections} section(s): {self.path / 'report.html'} (tables/*.csv, figures/*.png)")
