"""Pictures of the tables in docs/results/, readable on a phone: drawn by `results.py`, in a second."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from neuroshard.plans.picture import drawn, save_png

SIZE = (5.2, 4.2)  # inches; shown 390 pixels wide, text is as high as the page's
OURS, OTHERS = "#1f6fb4", "#8a8a8a"
PARTS = {"backward": "#c44e52", "compute": "#4c72b0", "forward, with the wait for the straggler": "#dd8452"}


def draw(tables: Path, out: Path) -> None:
    """Draw every picture into `out` from the tables."""
    with mpl.rc_context({"font.size": 12}):
        for name, of in PICTURES.items():
            frame = pd.read_csv(tables / f"{name}.csv", comment="#")
            save_png(out / f"{name}.png", drawn(partial(of, frame), *SIZE))


def _steps(frame: pd.DataFrame, figure: Figure) -> None:
    """Predicted costs against measured steps, both over TorchRec's plan's."""
    axes = figure.add_subplot()
    its = frame[frame["range over builds"].notna()]
    predicted = its["predicted cost over TorchRec's"].astype(float)
    trained = its["step time over TorchRec's"].astype(float)
    least, most = (its["range over builds"].str.extract(r"([\d.]+) to ([\d.]+)").astype(float)[i] for i in (0, 1))
    axes.errorbar(predicted, trained, [trained - least, most - trained], fmt="o", color=OURS, ecolor=OTHERS, capsize=3)
    limits = (0.5, 1.4)
    axes.plot(limits, limits, color=OTHERS, linewidth=1)
    axes.text(1.18, 1.27, "equal", color=OTHERS, rotation=40)
    axes.axhline(1, color=OTHERS, linewidth=1, linestyle=":")
    axes.set(xlim=limits, ylim=limits, xlabel="predicted cost over TorchRec's", ylabel="trained step over TorchRec's")


def _methods(frame: pd.DataFrame, figure: Figure) -> None:
    """Cost of plans against time of their search."""
    axes = figure.add_subplot()
    for row in frame.to_dict("records"):
        name = row["method"].strip("`")
        ours = name.startswith("neuroshard")
        seconds, cost = row["search, s, median"], row["beside the default's"]
        axes.plot(seconds, cost, "o", color=OURS if ours else OTHERS)
        below = name in ("autoshard", "neuroshard_published")  # whose labels would lie on another's
        axes.annotate(name, (seconds, cost), xytext=(6, -11 if below else 3), textcoords="offset points", fontsize=10)
    axes.set(xscale="log", xlabel="search, s (median)", ylabel="predicted cost over the default's")
    axes.set_xticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
    axes.set_xlim(0.01, 40)
    axes.margins(y=0.1)


def _tiers(frame: pd.DataFrame, figure: Figure) -> None:
    """Cost against device memory, with tables in host memory and without."""
    axes = figure.add_subplot()
    memory = 100 * frame["memory"]
    for column, name, color in (
        ("TorchRec's planner, ms", "TorchRec's planner", OTHERS),
        ("all memories, ms", "NeuroShard, host memory too", OURS),
    ):
        axes.plot(memory, frame[column].astype(float), "o-", color=color, label=name)
    alone = pd.to_numeric(frame["device memory alone, ms"], errors="coerce")
    axes.plot(
        memory,
        alone,
        "s",
        color="black",
        markerfacecolor="none",
        markersize=11,
        label="NeuroShard, device memory alone",
    )
    axes.set(xlabel="device memory, % of what all tables take", ylabel="predicted cost, ms")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _plan(frame: pd.DataFrame, figure: Figure) -> None:
    """What each device spends its time on, by the first plan and by the last."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (method, its) in zip(panels, frame.groupby("plan by", sort=False), strict=True):
        base = np.zeros(len(its))
        for part, color in PARTS.items():
            axes.bar(its["device"], its[f"{part}, ms"], bottom=base, color=color, label=part)
            base += its[f"{part}, ms"].to_numpy()
        axes.set(title=f"{method}\n{base.max():.0f} ms", xlabel="device", xticks=list(its["device"]))
    panels[0].set_ylabel("ms")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", frameon=False)


PICTURES: dict[str, Callable[[pd.DataFrame, Figure], None]] = {
    "plan": _plan,
    "steps": _steps,
    "methods": _methods,
    "tiers": _tiers,
}
