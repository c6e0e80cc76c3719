"""Running a batch of live samples by the timing protocol, in the process that measures."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.records.samples import Repeats


@dataclass(frozen=True)
class Timed:
    """One run: what is recorded of it, and the seconds spent inside what is measured (no flush, no waiting room)."""

    times_ms: FloatArray
    busy_s: float


Run = Callable[[], Timed]
Report = Callable[[int], None]  # told which sample comes next, so that a crash can be blamed on it
T = TypeVar("T")
FAILURES = (RuntimeError, MemoryError, ValueError)  # torch's out-of-memory errors are RuntimeErrors


@dataclass(frozen=True)
class Outcome:
    """A sample's repeats or error.

    Attributes:
        busy_s: seconds spent inside the sample's timed and warm-up runs.
        seen: the lookups in each of the sample's blocks of rows, if it has any; or the stretches of a rank's step.
    """

    repeats: Repeats | None
    error: str | None
    busy_s: float
    seen: tuple[Any, ...] = ()


@dataclass
class _Tally:
    """What has been seen of one live sample so far."""

    times: list[FloatArray]
    at: list[float]
    busy_s: float = 0.0
    error: str | None = None

    def outcome(self) -> Outcome:
        if self.error is not None:
            return Outcome(None, self.error, self.busy_s)
        return Outcome(Repeats(np.array(self.times), np.array(self.at)), None, self.busy_s)


def run_batch(
    builds: Sequence[Callable[[], Run]],
    protocol: TimingProtocol,
    rng: np.random.Generator,
    report: Report,
) -> list[Outcome]:
    """Build every sample, then run them all by the protocol; a sample that fails doesn't stop the others."""
    tallies = [_Tally([], []) for _ in builds]
    runs = []
    for index, build in enumerate(builds):
        report(index)
        runs.append(_attempt(tallies[index], build))
    for visit in protocol.visits(len(builds), rng):
        tally, run = tallies[visit.index], runs[visit.index]
        if tally.error is not None or run is None:
            continue
        report(visit.index)
        at = time.time()
        timed = _attempt(tally, run)
        if timed is None:
            continue
        tally.busy_s += timed.busy_s
        if visit.timed:
            tally.times.append(timed.times_ms)
            tally.at.append(at)
    return [tally.outcome() for tally in tallies]


def _attempt(tally: _Tally, action: Callable[[], T]) -> T | None:
    try:
        return action()
    except FAILURES as error:
        tally.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
        return None
