"""Pictures."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from neuroshard.arrays import FloatArray
from neuroshard.cost import Cost
from neuroshard.files import write_atomically
from neuroshard.plan import Plan

_COLORS = {"backward communication": "#c44e52", "compute": "#4c72b0", "forward communication": "#dd8452"}
_GIB = 1 << 30


def plan_png(plan: Plan, cost: Cost, title: str) -> bytes:
    """A PNG: stacked bars of every device's cost by part, and bars of its memory beside the cap."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    times, memory = figure.subplots(1, 2, width_ratios=[3, 2])
    devices = np.arange(len(cost.compute))
    bottom = np.zeros(len(devices))
    parts = zip(_COLORS.items(), (cost.backward, cost.compute, cost.forward), strict=True)
    for (name, color), values in parts:
        times.bar(devices, values, bottom=bottom, label=name, color=color, width=0.7)
        bottom = bottom + values
    times.axhline(cost.total_ms, color="0.3", linestyle="--", linewidth=1)
    times.annotate(
        f"plan cost {cost.total_ms:.1f} ms", (1, cost.total_ms), xycoords=("axes fraction", "data"),
        xytext=(-4, 3), textcoords="offset points", ha="right", va="bottom", fontsize=9,
    )  # fmt: skip
    times.set(xlabel="device", ylabel="ms", title="cost", xticks=devices, ylim=(0, cost.total_ms * 1.3))
    times.legend(loc="upper left", ncols=3, fontsize=8, frameon=False)
    caps = np.array(plan.task.shard_memory) / _GIB
    cap = caps.max()
    memory.bar(devices, np.array(plan.device_bytes) / _GIB, color="#55a868", width=0.7)
    memory.hlines(caps, devices - 0.45, devices + 0.45, color="0.3", linestyle="--", linewidth=1)
    memory.annotate(
        f"cap {cap:.3g} GiB", (1, cap), xycoords=("axes fraction", "data"),
        xytext=(-4, 3), textcoords="offset points", ha="right", va="bottom", fontsize=9,
    )  # fmt: skip
    memory.set(xlabel="device", ylabel="GiB", title="memory for shards", xticks=devices, ylim=(0, cap * 1.15))
    for axes in (times, memory):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    return png(figure)


def curves_png(
    curves: Sequence[tuple[str, FloatArray]], references: Mapping[str, float], title: str | None = None
) -> bytes:
    """A PNG: learning curves, ms by round, beside what other methods reach (horizontal lines)."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, values in curves:
        axes.plot(np.arange(1, len(values) + 1), values, label=name, linewidth=1.8)
    for name, value in sorted(references.items(), key=lambda pair: -pair[1]):
        axes.axhline(value, color="0.6", linestyle="--", linewidth=1)
        axes.annotate(
            name, (1, value), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8, color="0.35",
        )  # fmt: skip
    axes.set(xlabel="round", ylabel="mean plan cost, ms", title=title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return png(figure)


def png(figure: Figure) -> bytes:
    """The figure, drawn without a display."""
    FigureCanvasAgg(figure)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def save_png(path: Path, picture: bytes) -> None:
    """Write a picture, atomically."""
    write_atomically(path, lambda temporary: temporary.write_bytes(picture))
