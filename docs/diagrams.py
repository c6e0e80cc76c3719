"""Draws the schematic pictures of docs/explanation/: `python docs/diagrams.py`. They show no measured figures."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from neuroshard.plans.picture import canvas
from neuroshard.plumbing.files import write_atomically

DOCS = Path(__file__).resolve().parent
BLUE, ORANGE, RED, GREY, PALE = "#4c72b0", "#dd8452", "#c44e52", "#8a8a8a", "#e8eef7"


def draw(folder: Path) -> None:
    """Draw every picture into a folder."""
    with mpl.rc_context({"font.size": 11}):
        for name, (size, drawn) in PICTURES.items():
            with canvas(*size) as (figure, picture):
                axes = figure.add_subplot()
                axes.axis("off")
                drawn(axes)
            write_atomically(folder / f"{name}.png", picture.getvalue())


def _box(axes: Axes, x: float, y: float, size: tuple[float, float], text: str, color: str = PALE) -> None:
    width, height = size
    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=color, edgecolor=GREY))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center")


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], bend: float = 0.0) -> None:
    style = {"arrowstyle": "->", "color": "black", "connectionstyle": f"arc3,rad={bend}"}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


def _stages(axes: Axes) -> None:
    """Draw the four stages, what each hands to the next, and the way of new measurements back."""
    axes.set(xlim=(0, 11), ylim=(-0.8, 2.9))
    stages = (
        ("collect", "measures random\ncombinations of tables,\nand exchanges"),
        ("pretrain", "fits cost models,\nonce"),
        ("search", "beam, grid and greedy\nsearch, with the models\nas simulator"),
        ("evaluate", "measures plans\non the hardware"),
    )
    handed = ("samples", "cost\nmodels", "plans")
    for place, (name, what) in enumerate(stages):
        x = 2.85 * place
        _box(axes, x, 0.5, (2.0, 1.6), "")
        axes.text(x + 1.0, 1.83, name, ha="center", va="center", weight="bold")
        axes.text(x + 1.0, 1.14, what, ha="center", va="center", fontsize=9)
        if place < len(handed):
            _arrow(axes, (x + 2.03, 1.3), (x + 2.82, 1.3))
            axes.text(x + 2.42, 1.4, handed[place], ha="center", va="bottom", fontsize=9)
    _arrow(axes, (9.5, 0.45), (3.9, 0.45), bend=-0.12)
    axes.text(6.7, -0.3, "new measurements improve the models", ha="center", va="top", fontsize=9)
    axes.text(0.0, 2.35, "once for each kind of hardware", fontsize=9, color=GREY)
    axes.text(5.7, 2.35, "for every model", fontsize=9, color=GREY)


def _bars(axes: Axes, y: float, parts: Sequence[tuple[float, float, str]]) -> None:
    for start, length, color in parts:
        axes.add_patch(Rectangle((start, y), length, 0.6, facecolor=color, edgecolor="white"))


def _step(axes: Axes) -> None:
    """Draw the step of three devices: all meet in two exchanges, and wait there for the last."""
    axes.set(xlim=(-1.6, 10.2), ylim=(-0.9, 4.0))
    for device, compute in enumerate((3.2, 4.8, 2.4)):
        y = 2.2 - 0.9 * device
        ready = 2.0 + compute
        _bars(axes, y, ((0.0, 2.0, RED), (2.0, compute, BLUE), (6.8, 2.2, ORANGE)))
        if ready < 6.8:
            axes.add_patch(Rectangle((ready, y), 6.8 - ready, 0.6, facecolor="none", edgecolor=GREY, hatch="////"))
        axes.text(-0.2, y + 0.3, f"device {device}", ha="right", va="center")
    for x in (2.0, 6.8):
        axes.plot([x, x], [0.1, 3.1], color="black", linewidth=1, linestyle=":")
    for x, text in (
        (1.0, "exchange of\ngradients"),
        (4.4, "kernels: update and look up"),
        (7.9, "exchange of\nembeddings"),
    ):
        axes.text(x, 3.15, text, ha="center", va="bottom")
    axes.text(6.8, -0.15, "all wait for device 1, the straggler", ha="center", va="top", fontsize=9)
    axes.annotate("", xy=(9.0, -0.65), xytext=(0.0, -0.65), arrowprops={"arrowstyle": "<->"})
    axes.text(2.6, -0.6, "cost of the plan", ha="center", va="bottom", fontsize=9)


def _search(axes: Axes) -> None:
    """Draw the three nested loops of the search: beam search, grid search, greedy placement."""
    axes.set(xlim=(0, 12), ylim=(-0.2, 4.6))
    titles = (
        "beam search:\nhalve one shard",
        "grid search:\ncap the columns per device",
        "greedy placement:\nmost expensive first",
    )
    for x, title in zip((1.8, 6.0, 10.2), titles, strict=True):
        axes.text(x, 4.5, title, ha="center", va="top", weight="bold", fontsize=10)
    for place, (y, widths) in enumerate(((2.6, (4, 2, 2)), (1.4, (2, 2, 2, 2)), (0.2, (2, 2, 2, 1, 1)))):
        x = 0.4
        for width in widths:
            axes.add_patch(Rectangle((x, y), 0.35 * width - 0.05, 0.55, facecolor=BLUE, edgecolor="white"))
            x += 0.35 * width
        if place < 2:
            _arrow(axes, (1.8, y - 0.06), (1.8, y - 0.58))
    axes.text(1.8, 3.3, "keep the K cheapest splits", ha="center", fontsize=9)
    for place, cap in enumerate((1.0, 1.25, 1.5)):
        x = 4.6 + 1.1 * place
        axes.add_patch(Rectangle((x, 0.4), 0.6, 1.4, facecolor=PALE, edgecolor=GREY))
        axes.plot([x - 0.1, x + 0.7], [0.4 + 1.4 * cap] * 2, color=RED, linewidth=2)
        axes.text(x + 0.3, 0.05, f"{cap:g} x", ha="center", va="bottom", fontsize=9)
    axes.text(6.0, 3.3, "M caps, from the mean up", ha="center", fontsize=9)
    stacks = ((0.9, 0.5), (0.8, 0.3), (0.7,), (0.6, 0.4))
    for device, heights in enumerate(stacks):
        y = 0.4
        for height in heights:
            axes.add_patch(Rectangle((8.9 + 0.7 * device, y), 0.55, height, facecolor=BLUE, edgecolor="white"))
            y += height
    axes.add_patch(Rectangle((10.3, 2.1), 0.55, 0.45, facecolor=ORANGE, edgecolor="white"))
    _arrow(axes, (10.57, 2.05), (10.57, 1.2))
    axes.text(10.2, 3.3, "to the device whose\ncompute ends lowest", ha="center", va="top", fontsize=9)
    axes.text(10.2, 0.05, "devices", ha="center", va="bottom", fontsize=9)
    for x in (3.55, 7.95):
        _arrow(axes, (x, 1.6), (x + 0.6, 1.6))


def _types(axes: Axes) -> None:
    """Draw a table on four devices by each sharding type: which columns and rows a device has."""
    axes.set(xlim=(0, 13.6), ylim=(-0.6, 4.3))
    colors = ("#4c72b0", "#dd8452", "#55a868", "#c44e52")
    whole = (0.0, 0.0, 1.0, 1.0)
    blocks = [(0.0, 0.75 - 0.25 * device, 1.0, 0.25) for device in range(4)]
    types: Sequence[tuple[str, Sequence[tuple[int, tuple[float, float, float, float]]]]] = (
        ("table_wise", [(0, whole)]),
        ("column_wise", [(device, (0.25 * device, 0.0, 0.25, 1.0)) for device in range(4)]),
        ("row_wise", [*enumerate(blocks)]),
        ("table_row_wise", [(0, (0.0, 0.5, 1.0, 0.5)), (1, (0.0, 0.0, 1.0, 0.5))]),
    )
    for place, (name, shards) in enumerate(types):
        x = 2.7 * place
        axes.text(x + 1.0, 3.75, name, ha="center", va="bottom")
        for device, (left, low, width, height) in shards:
            box = (x + 2 * left, 0.6 + 3 * low), 2 * width, 3 * height
            axes.add_patch(Rectangle(*box, facecolor=colors[device], edgecolor="white", linewidth=2))
    axes.text(11.8, 3.75, "data_parallel", ha="center", va="bottom")
    for device in range(4):
        x, y = 10.8 + 1.05 * (device % 2), 2.15 - 1.55 * (device // 2)
        axes.add_patch(Rectangle((x, y), 0.95, 1.45, facecolor=colors[device], edgecolor="white", linewidth=2))
    for device, color in enumerate(colors):
        axes.add_patch(Rectangle((2.2 + 2.4 * device, -0.4), 0.4, 0.4, facecolor=color))
        axes.text(2.75 + 2.4 * device, -0.2, f"device {device}", va="center", fontsize=9)


# By the picture's name: its size in inches, and the function that draws it.
PICTURES: dict[str, tuple[tuple[float, float], Callable[[Axes], None]]] = {
    "stages": ((8.6, 2.7), _stages),
    "step": ((7.6, 3.2), _step),
    "search": ((8.6, 3.4), _search),
    "types": ((8.6, 2.9), _types),
}

if __name__ == "__main__":
    draw(DOCS)
