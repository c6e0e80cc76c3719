"""The figures of a report, each drawn as a PNG picture."""

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from neuroshard.measure.steps.step_samples import PHASES
from neuroshard.plans.picture import canvas, label
from neuroshard.plumbing.arrays import FloatArray

_BLUE, _GREY = "#4c72b0", "0.6"
_OURS = "neuroshard"  # methods with this prefix are highlighted
MOST_BARS = 40  # a page does not have room for more
_MOST_COLORS = 10
_MOST_TICKS = 12
_WIDTH = 7.2  # inches
_WIDE = 20  # ratio of values from which on the scale is logarithmic


def comparison_bars(compared: pd.DataFrame, axis: str) -> bytes:
    """Draw a bar for the mean cost of each method in one group, with the 95% interval of the mean. The cheapest methods
    come first; if there are too many methods, the most expensive methods are left out.

    At most `MOST_BARS` methods are drawn.
    """
    shown = compared.dropna(subset=["mean_ms"])[:MOST_BARS]
    with canvas(_WIDTH, 0.9 + 0.27 * max(len(shown), 3)) as (figure, picture):
        axes = figure.subplots()
        place = np.arange(len(shown))[::-1]
        colors = [_BLUE if str(name).startswith(_OURS) else _GREY for name in shown["method"]]
        widths = np.nan_to_num(shown["ci_ms"].to_numpy(dtype=float))
        axes.barh(place, shown["mean_ms"], color=colors)
        axes.errorbar(shown["mean_ms"], place, xerr=widths, fmt="none", ecolor="0.3", capsize=2)
        for y, mean, width in zip(place, shown["mean_ms"], widths, strict=True):
            axes.annotate(
                f"{mean:.3g}", (mean + width, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
            )
        axes.set_yticks(place, [label(str(name)) for name in shown["method"]], fontsize=8)
        axes.set_xlabel(f"{axis}, ms")
        axes.margins(x=0.12, y=0.02)
        axes.set_xlim(left=0)  # with few tasks, an interval may reach below 0
    return picture.getvalue()


def sensitivity_curve(curve: pd.DataFrame, setting: str) -> bytes:
    """Draw a curve that shows how costs depend on the value of a setting, with 95% intervals.
    For each value, the curve shows the cost of a task relative to the mean cost of the same task over all values, as a
    mean over tasks. For example, +2% means that costs with this value are, on average, 2% above the mean.
    """
    shown = curve.dropna(subset=["relative"])
    percent = 100 * shown[["relative", "relative_ci"]].fillna(0)
    values = shown["value"].to_numpy(dtype=float)
    with canvas(_WIDTH, 3.6) as (figure, picture):
        axes = figure.subplots()
        axes.axhline(0, color="0.8", linewidth=1)
        axes.errorbar(values, percent["relative"], percent["relative_ci"], marker="o", color=_BLUE, capsize=2)
        wide = values.min() > 0 and values.max() / values.min() > _WIDE
        axes.set(xlabel=label(setting), ylabel="cost beside the task's mean, %", xscale="log" if wide else "linear")
        ticks = values[:: -(-len(values) // _MOST_TICKS)]
        axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    return picture.getvalue()


def scatter(measured: pd.DataFrame) -> bytes:
    """Draw the measured costs of plans against the predicted costs, in a different colour for each method;
    in a single colour if there are too many methods.
    """
    known = measured.dropna(subset=["predicted_ms", "measured_ms"])
    named = known["method"].nunique() <= _MOST_COLORS
    with canvas(_WIDTH, 4.4) as (figure, picture):
        axes = figure.subplots()
        for method, subset in known.groupby("method", sort=False):
            how = {"label": label(str(method))} if named else {"color": _BLUE}
            axes.scatter(subset["predicted_ms"], subset["measured_ms"], s=14, alpha=0.75, **how)  # type: ignore[arg-type]
        low, high = (f(known[["predicted_ms", "measured_ms"]].to_numpy().ravel()) for f in (np.min, np.max))
        axes.plot([low, high], [low, high], color="0.4", linewidth=1, linestyle="--")
        axes.set(xlabel="predicted, ms", ylabel="measured, ms")
        if named:
            axes.legend(frameon=False, fontsize=8)
    return picture.getvalue()


def phase_bars(names: list[str], phase_ms: FloatArray, title: str) -> bytes:
    """Draw one stacked bar for each of K plans. The bar shows the ms that each of P phases of a training step takes in
    the plan; `phase_ms` (K, P) has these times.
    """
    with canvas(_WIDTH, 1.9 + 0.4 * max(len(names), 2)) as (figure, picture):
        axes = figure.subplots()
        place, left = np.arange(len(names))[::-1], np.zeros(len(names))
        for phase, ms in zip(PHASES, np.nan_to_num(phase_ms).T, strict=True):
            axes.barh(place, ms, left=left, label=phase)
            left = left + ms
        axes.set_yticks(place, [label(name) for name in names], fontsize=8)
        axes.set(xlabel="ms of a step", title=label(title))
        axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.45, -0.22))
    return picture.getvalue()
