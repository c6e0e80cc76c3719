"""Pictures of plans and of learning curves as PNG. A "$" in the name of a table does not start a formula."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from neuroshard.cost.cost import BACKWARD, FORWARD, Cost, Part, When
from neuroshard.layouts import LAYOUTS
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray

if TYPE_CHECKING:  # slow to import: only when a picture is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = {  # color of the first part at each place in a step
    When.BACKWARD: "#c44e52",
    When.INPUT: "#8c8c8c",
    When.COMPUTE: "#4c72b0",
    When.FORWARD: "#dd8452",
    When.HOST: "#64b5cd",
}
_MORE_COLORS = ("#8172b3", "#ccb974", "#da8bc3", "#937860", "#55a868")  # colors of all other parts, in turn
_GREY = "0.3"
_GIB = 1 << 30
_LEGEND_COLUMNS = 3
_MANY_DEVICES = 16  # more devices are drawn as an outline, because single bars would be too narrow
_NUMBERED_DEVICES = 10  # if there are more devices, only some have a number on the axis
_MOST_CURVES = 10  # more curves are grey, because the colors of matplotlib would repeat
_LONGEST_LABEL = 48  # maximum number of letters


@contextmanager
def canvas(width: float, height: float) -> Iterator[tuple["Figure", BytesIO]]:
    """Yield a figure to draw on, and a buffer that contains the figure as PNG after the `with` block.

    `width` and `height` are in inches. Texts in the figure are never read as formulas.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"text.parse_math": False, "axes.formatter.use_mathtext": False}), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from"
        )  # letters that the font lacks are drawn as boxes
        figure, picture = Figure(figsize=(width, height), layout="constrained"), BytesIO()
        FigureCanvasAgg(figure)
        yield figure, picture
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(picture, format="png", dpi=130)


def label(text: str) -> str:
    """Return a name as a label for a picture: at most 52 letters, on one line, and with valid Unicode."""
    plain = " ".join(text.encode("utf-8", "replace").decode().split()) or "(no name)"
    half = _LONGEST_LABEL // 2
    short = plain if len(plain) <= _LONGEST_LABEL else f"{plain[:half]}...{plain[-half:]}"
    return f" {short}" if short.startswith("_") else short  # matplotlib's legends leave out labels that begin with "_"


def plan_png(plan: Plan, cost: Cost, title: str) -> bytes:
    """Return a PNG with two charts, which have the devices on the horizontal axis.
    The first chart shows the cost of each part of a training step, such as the kernels or the output dist. The second
    chart shows the memory of the shards of each family of sharding types, and the memory limit.
    """
    many = len(cost.compute) > _MANY_DEVICES
    with canvas(9, 6.4 if many else 3.9) as (figure, picture):
        times, memory = figure.subplots(2, 1) if many else figure.subplots(1, 2, width_ratios=[3, 2])
        _draw_times(times, cost)
        _draw_memory(memory, plan)
        figure.suptitle(label(title))
    return picture.getvalue()


def _draw_times(axes: "Axes", cost: Cost) -> None:
    """Draw the cost of each device in ms as a stack of bars, and a line at the plan cost. A stack has one bar for each
    part of the training step, such as the kernels. Parts that do not count as cost are left out, because these parts do
    not make the step longer.
    """
    bottom, parts = np.zeros(len(cost.compute)), sorted(cost.counted, key=lambda part: part.when)
    for part, color in zip(parts, _colors_of(parts), strict=True):
        name = f"{part.name} communication" if part.name in (BACKWARD, FORWARD) else part.name
        _bars(axes, part.ms, bottom, color, name)
        bottom = bottom + part.ms
    axes.axhline(cost.total_ms, color=_GREY, linestyle="--", linewidth=1)
    _note(axes, f"plan cost {cost.total_ms:.1f} ms", cost.total_ms)
    lines = -(-len(parts) // _LEGEND_COLUMNS)
    axes.set(xlabel="device", ylabel="ms", title="cost", ylim=(0, _top(cost.total_ms, 1.1 + 0.1 * max(lines, 2))))
    axes.legend(loc="upper left", ncols=_LEGEND_COLUMNS, fontsize=8, frameon=False)


def _colors_of(parts: Sequence[Part]) -> Iterator[str]:
    """Return a color for each part of a training step, in the order of `parts`.
    Every position in the step (`When`), such as the backward exchange, has a fixed color. If several parts have the
    same position, the first of them gets this color, and the others get other colors.
    """
    left, more = dict(_COLORS), cycle(_MORE_COLORS)
    return (left.pop(part.when) if part.when in left else next(more) for part in parts)


def _draw_memory(axes: "Axes", plan: Plan) -> None:
    """Draw the memory of the shards as stacked bars for each device, and a line at the memory limit."""
    caps, used = np.array(plan.task.shard_memory) / _GIB, np.array(plan.device_bytes) / _GIB
    devices, bottom = np.arange(len(caps)), np.zeros(len(caps))
    for layout, size in zip(LAYOUTS.values(), plan.form_bytes.T / _GIB, strict=True):
        if layout in plan.layouts:
            _bars(axes, size, bottom, layout.color, str(layout))
            bottom = bottom + size
    if len(set(plan.layouts)) > 1:
        axes.legend(loc="upper left", ncols=len(LAYOUTS), fontsize=8, frameon=False)
    axes.hlines(caps, devices - 0.5, devices + 0.5, color=_GREY, linestyle="--", linewidth=1)
    _note(axes, f"cap {caps.max():.3g} GiB", float(caps.max()))
    top = _top(float(max(caps.max(), used.max())), 1.15 if len(set(plan.layouts)) == 1 else 1.3)
    axes.set(xlabel="device", ylabel="GiB", title="memory for shards", ylim=(0, top))


def _bars(axes: "Axes", values: FloatArray, bottom: FloatArray, color: str, name: str) -> None:
    """Draw a bar for each of D devices, from `bottom` (D,) up by `values` (D,).
    If there are many devices, draw a filled outline instead of bars.
    """
    devices = np.arange(len(values))
    if len(values) > _MANY_DEVICES:
        edges = np.arange(len(values) + 1) - 0.5
        axes.stairs(bottom + values, edges, baseline=bottom, fill=True, color=color, label=name)
    else:
        axes.bar(devices, values, bottom=bottom, label=name, color=color, width=0.7)
    axes.set_xlim(-0.5, len(values) - 0.5)
    if len(values) > _NUMBERED_DEVICES:
        axes.locator_params(axis="x", integer=True)
    else:
        axes.set_xticks(devices)


def _note(axes: "Axes", text: str, y: float) -> None:
    """Write a text at the right end of a horizontal line at height `y`."""
    axes.annotate(
        text, (1, y), xycoords=("axes fraction", "data"), xytext=(-4, 3), textcoords="offset points", ha="right",
        va="bottom", fontsize=9,
    )  # fmt: skip


def _top(highest: float, factor: float) -> float:
    """Return the upper end of an axis that begins with 0: the highest value times `factor`, or 1 if this value is 0."""
    return highest * factor if highest > 0 else 1.0


def curves_png(
    curves: Sequence[tuple[str, FloatArray]], references: Mapping[str, float], title: str | None = None
) -> bytes:
    """Return a PNG with learning curves: the mean cost of a policy's plans, in ms, after each round of training.
    Horizontal lines show the mean costs that other methods reach (`references`).

    If there are more than 10 curves, all curves are grey and without a name.

    Args:
        curves: name and values (rounds,) of each curve, in ms.
        references: results of other methods in ms, by name; drawn as horizontal lines.
        title: title of the picture; None for no title.
    """
    with canvas(8, 4.5) as (figure, picture):
        axes = figure.subplots()
        named = len(curves) <= _MOST_CURVES
        for name, values in curves:
            rounds, marker = np.arange(1, len(values) + 1), "o" if len(values) == 1 else ""
            color = None if named else "0.5"
            axes.plot(rounds, values, label=label(name), color=color, marker=marker, linewidth=1.8)
        for name, value in sorted(references.items(), key=lambda pair: -pair[1]):
            axes.axhline(value, color="0.6", linestyle="--", linewidth=1)
            axes.annotate(
                label(name), (1, value), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
                va="center", fontsize=8, color="0.35",
            )  # fmt: skip
        axes.set(xlabel="round", ylabel="mean plan cost, ms", title=None if title is None else label(title))
        axes.locator_params(axis="x", integer=True)
        if named:
            axes.legend(frameon=False, fontsize=8)
    return picture.getvalue()
