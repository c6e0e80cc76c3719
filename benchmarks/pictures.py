"""Draws the pictures of docs/results/ from the tables there; the pictures are readable on a phone."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from headline import ANY_TYPE, BASELINES, COLUMNS, LEAST, MOST, NOISE
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter
from shared import COLUMN_WISE_CACHED, DEFAULT_PLANNER

from neuroshard.plans.picture import canvas
from neuroshard.plumbing.files import write_atomically

SIZE = (5.2, 4.2)  # inches; shown 390 pixels wide, text is as high as the page's
WIDE = (10.6, 5.0)  # of the picture that README shows 800 pixels wide
OURS, OTHERS = "#1f6fb4", "#8a8a8a"
PARTS = {  # what the pictures call a part, and its color
    "backward": ("backward communication", "#c44e52"),
    "compute": ("compute", "#4c72b0"),
    "forward, with the wait for the straggler": ("forward communication, with the wait for the straggler", "#dd8452"),
}


def draw(tables: Path, out: Path) -> None:
    """Draw all pictures from the CSV files in `tables`, and write them to `out` as PNG files."""
    with mpl.rc_context({"font.size": 12}):
        for name, (table, of) in PICTURES.items():
            frame = pd.read_csv(tables / f"{table}.csv", comment="#")
            with canvas(*(WIDE if name == "headline" else SIZE)) as (figure, picture):
                of(frame, figure)
            write_atomically(out / f"{name}.png", picture.getvalue())


def _steps(frame: pd.DataFrame, figure: Figure) -> None:
    """Draw trained step times against predicted step times, both relative to TorchRec's default planner, one dot per
    plan; the dots of NeuroShard's plans stand out.
    """
    axes = figure.add_subplot()
    predicted, trained = (frame[f"{which} step / {DEFAULT_PLANNER}"] for which in ("predicted", "trained"))
    default, torchrec = frame["plan"] == "default", frame["plan"] == "torchrec_planner"
    for its, color, size, name in (
        (~default & ~torchrec, OTHERS, 18, "other plans of six models"),
        (default, OURS, 60, "the default's"),
    ):
        axes.scatter(predicted[its], trained[its], size, color, label=name, alpha=0.8, linewidths=0)
    limits = [0.95 * min(predicted.min(), trained.min()), 1.05 * max(predicted.max(), trained.max())]
    axes.plot(limits, limits, color="black", linewidth=1, label="as predicted")
    axes.axhline(1, color="black", linewidth=1, linestyle=":", label=DEFAULT_PLANNER)
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator([0.6, 0.8, 1, 1.5, 2, 3]))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_locator(NullLocator())
    axes.set(xlabel="predicted step / the default planner's", ylabel="trained step / the default planner's")
    axes.legend(frameon=False, fontsize=10)


def _mirrored(frame: pd.DataFrame, figure: Figure) -> None:
    """Draw bars of the local work of a step, measured and predicted, for each plan and number of ranks."""
    panels = figure.subplots(1, frame["ranks"].nunique(), sharey=False)
    for axes, (ranks, its) in zip(panels, frame.groupby("ranks"), strict=True):
        places = np.arange(len(its))
        for shift, column, color, name in (
            (-0.2, "all but dense, ms", OURS, "measured"),
            (0.2, "all but dense, predicted, ms", OTHERS, "predicted"),
        ):
            axes.bar(places + shift, its[column], 0.4, color=color, label=name)
        axes.set_title(f"{ranks} ranks")
        axes.set_xticks(places, its["plan"], rotation=60, ha="right", fontsize=10)
    panels[0].set_ylabel("local work of a step, ms")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)


# Of labels that would cover another one or its dot: points right of and above the method's dot.
_PLACES = {"size_greedy": (6, -8), "dim_greedy": (6, -8), "autoshard": (6, -11), "neuroshard_published": (2, 14)}


def _methods(frame: pd.DataFrame, figure: Figure) -> None:
    """Draw the predicted cost of each method's plans against the search time."""
    axes = figure.add_subplot()
    for row in frame.to_dict("records"):
        name = row["method"].strip("`")
        ours = name.startswith("neuroshard")
        seconds, cost = row["search, s, median"], row["relative to the default"]
        axes.plot(seconds, cost, "o", color=OURS if ours else OTHERS)
        place = _PLACES.get(name, (6, 3))
        axes.annotate(name, (seconds, cost), xytext=place, textcoords="offset points", fontsize=10)
    axes.set(xscale="log", xlabel="search, s (median)", ylabel="predicted cost / the default's")
    axes.set_xticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
    axes.set_xlim(0.006, 40)
    axes.margins(y=0.1)


def _tiers(frame: pd.DataFrame, figure: Figure) -> None:
    """Draw the predicted cost of plans against device memory, with and without tables in host memory."""
    axes = figure.add_subplot()
    memory, alone = 100 * frame["memory"], pd.to_numeric(frame["device memory alone, ms"], errors="coerce")
    hollow = {"color": "black", "markerfacecolor": "none", "markersize": 11, "label": "NeuroShard, device memory alone"}
    for cost, name, color in (
        (f"{COLUMN_WISE_CACHED}, ms", "TorchRec, column-wise only", OTHERS),
        ("all tiers, ms", "NeuroShard, host memory too", OURS),
    ):
        axes.plot(memory, frame[cost].astype(float), "o-", color=color, label=name)
    axes.plot(memory, alone, "s", **hollow)
    axes.text(58, float(alone.max()), "with less there is no plan", ha="center", va="center", fontsize=10)
    axes.set(title="DLRM-DCNv2 on 8 H100s, by the datasheet", yscale="log")
    axes.set(xlabel="device memory, % of what all tables take", ylabel="predicted cost, ms")
    axes.set_yticks([2, 3, 5, 10, 20], ["2", "3", "5", "10", "20"])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.legend(frameon=False, fontsize=10)


def _plan(frame: pd.DataFrame, figure: Figure) -> None:
    """Draw the cost of each device as a stacked bar (compute and communication), for the first plan and for
    the last plan of the table.
    """
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (method, its) in zip(panels, frame.groupby("plan by", sort=False), strict=True):
        base = np.zeros(len(its))
        for part, (name, color) in PARTS.items():
            axes.bar(its["device"], its[f"{part}, ms"], bottom=base, color=color, label=name)
            base += its[f"{part}, ms"].to_numpy()
        axes.set(title=f"{method}\n{base.max():.0f} ms predicted", xlabel="device", xticks=list(its["device"]))
    panels[0].set_ylabel("ms")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", frameon=False)


def _headline(frame: pd.DataFrame, figure: Figure) -> None:
    """Draw the ratio of step times for every model in ascending order, with one panel for each machine and baseline."""
    counts = frame["panel"].value_counts(sort=False)
    panels = figure.subplots(1, len(counts), sharey=True, width_ratios=[max(count, 11) for count in counts])
    for axes, (panel, its) in zip(panels, frame.groupby("panel", sort=False), strict=True):
        _ratios(axes, its.sort_values(ANY_TYPE, ignore_index=True))
        where, _, with_what = str(panel).partition(", ")
        baseline = BASELINES[panel].replace(", ", ",\n")
        axes.set_title(f"{where}, {with_what},\nrelative to {baseline}", fontsize=10.5, loc="left", linespacing=1.3)
        axes.set_xlabel(f"{len(its)} models, mean {its[ANY_TYPE].mean():.2f}")
    panels[0].set(ylabel="step time, NeuroShard / TorchRec", ylim=(0.5, 1.12))
    panels[0].set_yticks([0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1])
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=10.5)


def _ratios(axes: Axes, its: pd.DataFrame) -> None:
    noise, places = its[NOISE].mean(), np.arange(len(its))
    name = "noise: two builds of one plan"
    axes.axhspan(1 - noise, 1 + noise, color="black", alpha=0.13, linewidth=0, label=name)
    axes.axhline(1, color="black", linewidth=1)
    axes.vlines(places, its[LEAST], its[MOST], color=OURS, linewidth=2, alpha=0.5, label="range of 6 builds")
    hollow = {"color": OURS, "markerfacecolor": "white", "markersize": 6, "label": "column-wise only, if different"}
    other = its[COLUMNS].where((its[COLUMNS] - its[ANY_TYPE]).abs() > _SAME)
    axes.plot(places, other, "o", **hollow)
    axes.plot(places, its[ANY_TYPE], "o", color=OURS, markersize=8, label="any sharding type")
    axes.set_xticks([])
    axes.set_xlim(-0.7, len(its) - 0.3)


_SAME = 0.001  # ratios that differ by less are of one plan


# By the picture's name: the table that it is drawn from, and what draws it.
PICTURES: dict[str, tuple[str, Callable[[pd.DataFrame, Figure], None]]] = {
    "plan": ("plan", _plan),
    "steps": ("step_plans", _steps),
    "mirrored": ("mirrored", _mirrored),
    "methods": ("methods", _methods),
    "tiers": ("tiers", _tiers),
    "headline": ("headline", _headline),
}
