"""The summary that a collect run prints at its end."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from neuroshard.measure.store.noise import FIT_NOISE, pass_drift, pass_noise, pass_repeatability
from neuroshard.measure.store.samples import CommSample, ComputeSample, LocalSample, Measurement
from neuroshard.measure.store.speed import slowness_between
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.fitness import UseVerdict
from neuroshard.plumbing.grouping import grouped
from neuroshard.words.collective import name_of

MAX_NOISE = 0.5  # above this, the machine is too busy to measure: one pass takes 1.7 times as long as the other


@dataclass(frozen=True)
class SeriesSummary:
    """The summary of one series (the samples of one type, such as kernel calls): counts, errors, times and noise.

    Attributes:
        measured, failed: number of samples in the directory, first pass.
        errors: the most frequent errors with their counts.
        wall_s, busy_s: seconds of this run, and seconds inside timed and warm-up kernel runs.
        repeatability: relative difference between two passes, one number per sample that was measured twice.
        noise: the relative difference between two passes that nine in ten samples stay below.
        drift: median relative difference by which the second pass was slower.
        slowness: minimum and maximum slowness of the machine during the samples; None if that is unknown.
        subsets: summaries of each sharding type or collective, if there are several.
    """

    name: str
    measured: int
    failed: int
    errors: tuple[tuple[str, int], ...]
    wall_s: float
    busy_s: float
    repeatability: tuple[float, ...]
    noise: float
    drift: float
    slowness: tuple[float, float] | None = None
    subsets: tuple["SeriesSummary", ...] = ()

    @classmethod
    def of(cls, name: str, measurements: list[Measurement[Any]], wall_s: float, busy_s: float) -> "SeriesSummary":
        """Return the summary of all measurements of a series (the samples of one type, such as kernel calls).
        `wall_s` is the time in seconds that this run took to measure the series. `busy_s` is the part of this time
        inside timed and warm-up runs.
        """
        by_subset = grouped(measurements, lambda measurement: _subset_of(measurement.sample))
        several = sorted(by_subset) if len(by_subset) > 1 else ()
        first = [m for m in measurements if not m.second_pass]
        errors = Counter(m.error for m in first if m.error is not None)
        return cls(
            name,
            sum(m.error is None for m in first),
            sum(errors.values()),
            tuple(errors.most_common(3)),
            wall_s,
            busy_s,
            tuple(float(difference) for difference in pass_repeatability(measurements)),
            pass_noise(measurements),
            pass_drift(measurements),
            slowness_between(measurements),
            tuple(cls.of(subset, by_subset[subset], 0.0, 0.0) for subset in several),
        )


@dataclass(frozen=True)
class Summary:
    """The printed summary of a collect run: the data directory and a summary of each series of samples."""

    directory: Path
    series: tuple[SeriesSummary, ...]

    def __getitem__(self, name: str) -> SeriesSummary:
        """Return the summary of the series of samples with this name."""
        return next(series for series in self.series if series.name == name)

    def check(self, max_noise: float) -> None:
        """Raise UserError if the noise of a series of samples is above `max_noise`."""
        if noisy := self._noisy_series(max_noise):
            raise UserError(
                "measurements-too-noisy",
                f"two measurements of the same samples differ too much ({noisy})",
                limit=f"the limit is {max_noise:.0%} (max_noise={max_noise:g}); all measurements are kept in the "
                f"directory '{self.directory}'",
                remedy="Do one of these: run the same command again when this machine is less busy, to measure the "
                "disturbed samples again; or set max_noise=null to keep the data as they are",
            )

    def _noisy_series(self, max_noise: float) -> str:
        """Return, as text, the series with noise above `max_noise`;
        the text is empty if no series exceeds `max_noise`.
        """
        return "; ".join(
            f"{series.name}: 90th percentile of the differences {series.noise:.1%}, drift {series.drift:+.1%}"
            for series in self.series
            if series.noise > max_noise
        )

    @property
    def verdict(self) -> UseVerdict:
        """The verdict on whether the measurements are good enough for pre-training, with the reason.

        The verdict is positive if samples were measured, no series failed completely, and two passes over the samples
        agree.
        """
        if empty := [series.name for series in self.series if series.failed and not series.measured]:
            return UseVerdict(
                False,
                f"every measurement of {' and '.join(empty)} failed",
                "correct the errors listed above, and run the command again",
            )
        if not any(series.measured for series in self.series):
            return UseVerdict(False, "no sample was measured", "set numbers of samples above 0")
        if noisy := self._noisy_series(FIT_NOISE):
            return UseVerdict(
                False,
                f"the measurements are too noisy to pre-train on ({noisy}, limit {FIT_NOISE:.0%})",
                f"close other programs and run the command again with max_noise={FIT_NOISE:g}, which measures the "
                "samples that disagree again and keeps the others",
            )
        if unknown := [series.name for series in self.series if series.measured and not series.repeatability]:
            return UseVerdict(
                True,
                f"but the noise of {' and '.join(unknown)} is unknown, because no sample was measured twice",
                "set num_second_pass to learn the noise",
            )
        return UseVerdict(True, f"in two passes 9 in 10 samples differ by less than {FIT_NOISE:.0%}")

    def show(self, console: Console) -> None:
        """Print a row for each series, the most common errors, the meaning of the columns, and the verdict."""
        grid = Grid(title=f"Measurements in {self.directory}")
        for column in ("kind", "measured", "failed", "wall s", "in kernels", "noise p50", "noise p90", "drift"):
            grid.add_column(column, justify="left" if column == "kind" else "right")
        for series in self.series:
            grid.add_row(*_cells(series, series.name, f"{series.wall_s:.1f}"))
            for subset in series.subsets:
                grid.add_row(*_cells(subset, f"  {subset.name}", "-"))
        console.print(grid)
        for series in self.series:
            for error, count in series.errors:
                console.print(f"{series.name}: {count} failed with {error!r}", markup=False)
        console.print(
            "in kernels: share of the wall time inside timed and warm-up runs (this run); "
            "noise: how far two passes of the measurement differ on the same samples; "
            "drift: by how much the second pass was slower"
        )
        for series in self.series:
            if series.slowness is not None:
                least, most = series.slowness
                took = f"{series.name}: batches took {least:.2f} to {most:.2f} times as long as typically"
                console.print(f"{took} (pretrain makes up for it)", markup=False)
        self.verdict.show(console)


def _subset_of(sample: ComputeSample | CommSample | LocalSample) -> str:
    if isinstance(sample, LocalSample):
        return "local work"
    return sample.call.name if isinstance(sample, ComputeSample) else name_of(sample.collective)


def _cells(series: SeriesSummary, name: str, wall_s: str) -> tuple[str, ...]:
    noise = (f"{np.median(series.repeatability):.1%}", f"{series.noise:.1%}") if series.repeatability else ("-", "-")
    busy = f"{series.busy_s / series.wall_s:.0%}" if series.busy_s else "-"
    return (
        name, str(series.measured), str(series.failed), wall_s, busy, *noise,
        "-" if np.isnan(series.drift) else f"{series.drift:+.1%}",
    )  # fmt: skip
