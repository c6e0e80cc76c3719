"""The figures of a report, drawn to PNG."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neuroshard.report import png

_BLUE, _GREY = "#4c72b0", "0.6"
_HIGHLIGHT = ("neuroshard",)


def _drawn(draw: Callable[[Axes], None], height: float = 3.6) -> bytes:
    figure = Figure(figsize=(7.2, height), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    return png(figure)


def comparison_bars(compared: pd.DataFrame, label: str) -> bytes:
    """Mean costs of one group's methods with 95% intervals, cheapest first."""
    shown = compared.dropna(subset=["mean_ms"])

    def draw(axes: Axes) -> None:
        place = np.arange(len(shown))[::-1]
        colors = [_BLUE if name in _HIGHLIGHT else _GREY for name in shown["method"]]
        widths = np.nan_to_num(shown["ci_ms"].to_numpy(dtype=float))
        axes.barh(place, shown["mean_ms"], color=colors, xerr=widths, error_kw={"ecolor": "0.3", "capsize": 2})
        for y, mean, width in zip(place, shown["mean_ms"], widths, strict=True):
            axes.annotate(
                f"{mean:.3g}", (mean + width, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
            )
        axes.set_yticks(place, shown["method"], fontsize=8)
        axes.set_xlabel(f"{label}, ms")
        axes.margins(x=0.12)

    return _drawn(draw, 0.9 + 0.27 * max(len(shown), 3))


def sensitivity_curve(curve: pd.DataFrame, setting: str) -> bytes:
    """Cost by value, beside the mean over values of the same task, with 95% intervals."""
    percent = 100 * curve[["relative", "relative_ci"]].fillna(0)

    def draw(axes: Axes) -> None:
        axes.axhline(0, color="0.8", linewidth=1)
        axes.errorbar(curve["value"], percent["relative"], percent["relative_ci"], marker="o", color=_BLUE, capsize=2)
        positive = curve["value"].min() > 0 and curve["value"].max() / curve["value"].min() > 20
        axes.set(xlabel=setting, ylabel="cost beside the task's mean, %", xscale="log" if positive else "linear")

    return _drawn(draw)


def scatter(measured: pd.DataFrame) -> bytes:
    """Predicted against measured costs, by method."""
    known = measured.dropna(subset=["predicted_ms", "measured_ms"])

    def draw(axes: Axes) -> None:
        for method, part in known.groupby("method", sort=False):
            axes.scatter(part["predicted_ms"], part["measured_ms"], s=14, alpha=0.75, label=str(method))
        low, high = (f(known[["predicted_ms", "measured_ms"]].to_numpy().ravel()) for f in (np.min, np.max))
        axes.plot([low, high], [low, high], color="0.4", linewidth=1, linestyle="--")
        axes.set(xlabel="predicted, ms", ylabel="measured, ms")
        axes.legend(frameon=False, fontsize=8)

    return _drawn(draw, 4.4)
