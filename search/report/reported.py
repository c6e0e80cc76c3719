"""A report in sections: what was compared, in words, tables and pictures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from neuroshard.models.trust import LEVEL
from neuroshard.plans.picture import curves_png
from neuroshard.stages.search.report.figures import MOST_BARS, comparison_bars, scatter, sensitivity_curve
from neuroshard.stages.search.report.gather import Gathered
from neuroshard.stages.search.report.page import Grid, Picture, Section

Row = Any  # of a frame
Cells = Mapping[str, Callable[[Row], str]]  # what stands in each column

_HOW = (
    "Costs are means over those, with Student's 95% interval. “Cheapest saves”: what the cheapest method costs less, "
    "task by task; p: Wilcoxon's signed-rank test of those pairs."
)
_LEAST_POINTS = 3  # for a scatter or a rank correlation
_METHOD: Cells = {
    "method": lambda row: str(row["method"]),
    "solved": lambda row: f"{row['solved']}/{row['tasks']}",
    "mean ms": lambda row: _shown(row["mean_ms"], ".3f"),
    "95% ±": lambda row: _shown(row["ci_ms"], ".3f"),
}
_SAVED: Cells = {
    "cheapest saves": lambda row: _shown(row["saved"], ".1%"),
    "of that, 95% ±": lambda row: _shown(row["saved_ci"], ".1%"),
    "p": lambda row: "< 0.001" if row["p"] < 0.001 else _shown(row["p"], ".3f"),
}
_SECONDS: Cells = {"search s": lambda row: _shown(row["seconds"], ".3f")}
_CURVE: Cells = {
    "value": lambda row: f"{row['value']:g}",
    "solved": lambda row: str(row["solved"]),
    "mean ms": lambda row: _shown(row["mean_ms"], ".3f"),
    "beside the task's mean": lambda row: _shown(row["relative"], "+.2%"),
    "95% ±": lambda row: _shown(row["relative_ci"], ".2%"),
}
_TRAINING: Cells = {
    "run": lambda row: str(row["run"]),
    "best validation ms": lambda row: _shown(row["best"], ".3f"),
    "rounds": lambda row: str(row["rounds"]),
}


def _shown(value: float, how: str) -> str:
    return format(value, how) if np.isfinite(value) else ""


def _grid(frame: pd.DataFrame, cells: Cells, texts: int = 1) -> Grid:
    """Make a table of the columns of which something is known; the first `texts` hold words."""
    columns = {name: [cell(row) for _, row in frame.iterrows()] for name, cell in cells.items()}
    known = {name: texts for name, texts in columns.items() if any(texts)}
    return Grid(tuple(known), tuple(zip(*known.values(), strict=True)), texts=frozenset(range(texts)))


def overview(gathered: Gathered, paths: Sequence[Path]) -> Section:
    """Count the runs of each kind that the report is made of."""
    counts = {
        "search runs": gathered.searched["path"].nunique(),
        "evaluations on hardware": gathered.measured["run"].nunique(),
        "trainings": gathered.learned["run"].nunique(),
    }
    facts = (("from", ", ".join(map(str, paths))), *((name, f"{count:,}") for name, count in counts.items() if count))
    return Section("Overview", facts=facts)


def comparisons_shown(
    compared: pd.DataFrame, axis: str, title: str, group: str, caveats: Mapping[str, str] | None = None
) -> Iterator[Section]:
    """Yield a section for each group of several methods; groups of one method share a table. `group` names what it is.

    `caveats` are what is said of the costs, by group.
    """
    said = caveats or {}
    sizes = compared.groupby("group")["method"].transform("size")
    for number, (name, subset) in enumerate(compared[sizes > 1].groupby("group", sort=False)):
        section = _comparison(subset, f"{title}: {name}", axis, f"{title.lower()}-{number}")
        yield replace(section, text=_joined(section.text, said.get(str(name))))
    alone = compared[sizes == 1]
    if len(alone):
        names: Cells = {group: lambda row: str(row["group"])}
        text = "Nothing else was tried on the same tasks, sweeps aside."
        its = dict.fromkeys(said[name] for name in alone["group"] if name in said)
        yield Section(
            f"{title}: one method alone",
            _joined(text, *its),
            grids=(_grid(alone, {**names, **_METHOD, **_SECONDS}, 2),),
        )


def caveats_of(searched: pd.DataFrame) -> dict[str, str]:
    """Join the caveats of predicted costs, by their tasks; of which methods, where it isn't all of them."""
    by_tasks: dict[str, str] = {}
    for tasks, subset in searched.groupby("tasks", sort=False):
        methods = set(subset["method"])
        for caveat, its in subset.dropna(subset=["caveat"]).groupby("caveat", sort=False):
            of = "" if set(its["method"]) == methods else f" of {', '.join(its['method'].unique())}"
            by_tasks[str(tasks)] = _joined(by_tasks.get(str(tasks), ""), f"Predicted costs{of} are {caveat}.")
    return by_tasks


def _joined(*sentences: str | None) -> str:
    return " ".join(filter(None, sentences))


def _comparison(subset: pd.DataFrame, title: str, axis: str, name: str) -> Section:
    common, tasks = int(subset["common"].iloc[0]), int(subset["tasks"].max())
    grids = (_grid(subset, {**_METHOD, **_SAVED, **_SECONDS}),)
    if not common:
        text = "No task was solved by every method that solved any: there are no means to compare."
        return Section(title, text, grids=grids)
    failed = subset.loc[subset["solved"] == 0, "method"].astype(str)
    enough = f". {_HOW}" if common > 1 else ": too few for intervals."
    named = f"; {', '.join(failed)} solved none, the others {common:,}" if len(failed) else ""
    many = f"{0 if len(failed) else common:,} of {tasks:,} {'task' if tasks == 1 else 'tasks'}"
    text = f"{many} solved by every method{named}{enough}"
    caption = f"{axis}, with 95% intervals" if common > 1 else axis
    more = f"; the cheapest {MOST_BARS} of {len(subset):,} methods" if len(subset) > MOST_BARS else ""
    return Section(title, text, pictures=(Picture(name, caption + more, comparison_bars(subset, axis)),), grids=grids)


def sensitivities_shown(curves: pd.DataFrame, caveats: Mapping[str, str]) -> Iterator[Section]:
    """Yield a section for each sweep over a number; `caveats` are what is said of the costs, by tasks."""
    for number, ((tasks, setting), subset) in enumerate(curves.groupby(["tasks", "setting"], sort=False)):
        title, grids = f"Sensitivity: {setting}", (_grid(subset, _CURVE, 0),)
        if subset["relative"].isna().all():
            yield Section(title, f"{tasks}. No task was solved with every value.", grids=grids)
        else:
            curve = sensitivity_curve(subset, str(setting))
            pictures = (Picture(f"sensitivity-{number}", f"cost by {setting}", curve),)
            text = _joined(f"{tasks}.", caveats.get(str(tasks)))
            yield Section(title, text, pictures=pictures, grids=grids)


def trust_shown(measured: pd.DataFrame) -> Iterator[Section]:
    """Yield a section of predicted against measured costs of plans, if there are any."""
    known = measured.dropna(subset=["predicted_ms", "measured_ms"])
    known = known[known["measured_ms"] > 0]
    if known.empty:
        return
    enough = len(known) >= _LEAST_POINTS
    pictures = (Picture("scatter", "every plan that was run", scatter(known)),) if enough else ()
    yield Section("Predicted against measured", facts=tuple(_trust_facts(known)), pictures=pictures)


def _trust_facts(known: pd.DataFrame) -> Iterator[tuple[str, str]]:
    error = (known["predicted_ms"] / known["measured_ms"] - 1).abs()
    yield "plans", f"{len(known):,}"
    several = f" on average, {error.median():.1%} in the median" if len(known) > 1 else ""
    yield "predictions are off by", f"{error.mean():.1%}{several}"
    tau = known["predicted_ms"].corr(known["measured_ms"], method="kendall") if len(known) >= _LEAST_POINTS else np.nan
    if np.isfinite(tau):
        yield "rank correlation", f"Kendall's tau {tau:.3f}"
    judged = known.dropna(subset=["margin_ms"])
    if len(judged):
        inside = ((judged["predicted_ms"] - judged["measured_ms"]).abs() <= judged["margin_ms"]).sum()
        yield (
            f"inside their {LEVEL:.0%} interval",
            f"{inside:,} of {len(judged):,} measured costs; {LEVEL * len(judged):.0f} are to be expected",
        )


def learning_shown(gathered: Gathered) -> Iterator[Section]:
    """Yield a section of what policies learned, round by round, if there are any."""
    learned = gathered.learned.assign(valid_ms=gathered.learned["valid_ms"].replace(np.inf, np.nan))
    if learned.empty:
        return
    best = learned.groupby("run", sort=False)["valid_ms"].agg(best="min", rounds="size").reset_index()
    grids = (_grid(best, _TRAINING),)
    if learned["valid_ms"].isna().all():
        yield Section("Learned policies", "No round's policy found a plan for a validation task.", grids=grids)
        return
    common = list(gathered.references.values())
    references = common[0] if all(other == common[0] for other in common) else {}
    runs = learned.groupby("run", sort=False)
    curves = [(str(subset["method"].iloc[0]), subset["valid_ms"].to_numpy()) for _, subset in runs]
    picture = Picture("learning", "cost of the policy's plans, by round", curves_png(curves, references))
    yield Section("Learned policies", pictures=(picture,), grids=grids)
