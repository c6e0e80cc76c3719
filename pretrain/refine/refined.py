"""What a refine run gives: a bundle, and how well samples were predicted before they were learned from."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter
from rich.console import Console
from rich.table import Table as Grid

from neuroshard.plans.picture import canvas
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.files import write_atomically
from neuroshard.plumbing.parquet import write_frame
from neuroshard.stages.pretrain.refine.rounds import PARTS, WHYS, Part, Round, Why, frame_of, noise_of, slowness

_NAMES: dict[Part, str] = {"compute": "kernel calls", "exchange": "exchanges"}
_COLORS: dict[Why, str] = {"proposal": "#c44e52", "doubt": "#dd8452", "random": "#4c72b0"}
_PLURAL: dict[Why, str] = {"proposal": "proposals", "doubt": "doubts", "random": "random"}


@dataclass(frozen=True)
class Refined:
    """A finished refine run.

    Attributes:
        models: the bundle's directory.
        why: what ended it.
    """

    path: Path
    models: Path
    rounds: tuple[Round, ...]
    why: str

    def save(self) -> None:
        """Write `rounds.parquet`, a row for every sample, and `refine.png`."""
        write_frame(self.path / "rounds.parquet", frame_of(self.rounds))
        with canvas(9, 3.9) as (figure, picture):
            for axes, part in zip(np.ravel(figure.subplots(1, len(PARTS))), PARTS, strict=True):
                self._draw(axes, part)
        write_atomically(self.path / "refine.png", picture.getvalue())

    def show(self, console: Console) -> None:
        """Print errors by round, and what comes next."""
        grid = Grid(title=f"Predicted, then measured: {self.path}")
        for column in ("round", "measured", "samples", *_PLURAL.values(), "too low by", "noise", "slower by"):
            grid.add_column(column, justify="left" if column == "samples" else "right")
        slower = [f"{times - 1:+.1%}" if len(self.rounds) > 1 else "-" for times in slowness(self.rounds, "compute")]
        for one in self.rounds:
            for part in PARTS:
                if one.count(part):
                    grid.add_row(*self._row(one, part), slower[one.number] if part == "compute" else "")
        console.print(grid)
        console.print(
            "proposals, doubts, random: mean error of predictions, relative, before they were learned from; "
            "too low by: predictions of proposals, median; noise: how far second measurements differ from the "
            "first ones, which are of earlier rounds (in round 1 of its own); slower by: kernel calls than in the "
            "typical round"
        )
        failed = sum(sample.measured_ms is None for one in self.rounds for sample in one.samples)
        spent = sum(one.measurements for one in self.rounds)
        console.print(f"{spent} measurements, {failed} failed; {self.why}")
        console.print(f"models: {self.models}   use them: neuroshard search model={self.models} ...", soft_wrap=True)

    def _row(self, one: Round, part: Part) -> tuple[str, ...]:
        first = part == PARTS[0]
        ratios = one.ratios(part, "proposal")
        low = f"{float(np.median(ratios)) - 1:+.1%}" if len(ratios) else "-"
        return (
            str(one.number + 1) if first else "", str(one.measurements) if first else "", _NAMES[part],
            *(_mean(one.errors(part, why)) for why in WHYS), low, _mean(noise_of((one,), part)),
        )  # fmt: skip

    def _draw(self, axes: Axes, part: Part) -> None:
        for why in WHYS:
            by_round = [(one.number + 1, one.errors(part, why)) for one in self.rounds]
            points = [(number, float(errors.mean())) for number, errors in by_round if len(errors)]
            if points:
                numbers, means = zip(*points, strict=True)
                axes.plot(numbers, means, marker="o", color=_COLORS[why], label=_PLURAL[why])
        noise = noise_of(self.rounds, part)
        if len(noise):
            axes.axhline(float(noise.mean()), color="0.3", linestyle="--", linewidth=1, label="noise")
        axes.set(xlabel="round", ylabel="mean error of predictions", title=_NAMES[part])
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)


def _mean(values: FloatArray) -> str:
    return f"{values.mean():.1%}" if len(values) else "-"
