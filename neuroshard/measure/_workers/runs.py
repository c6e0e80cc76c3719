"""Time a batch of samples (such as kernel calls or exchanges) in the order of a `TimingProtocol`.
The protocol gives the number of warm-up runs and of timed runs. All samples of the batch are in memory together. This
code runs in the measuring process.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from neuroshard.measure.store.samples import Repeats
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.timing import TimingProtocol


@dataclass(frozen=True)
class Timed:
    """The result of one run: the recorded times in ms, and the seconds spent inside the measured code.
    The seconds do not include the time to flush the cache or to agree on a start with other processes.
    """

    times_ms: FloatArray
    busy_s: float


Run = Callable[[], Timed]
Report = Callable[[int], None]  # receives the number of the next sample, so that a crash can be attributed to it
T = TypeVar("T")
FAILURES = (RuntimeError, MemoryError, ValueError)  # torch's out-of-memory errors are RuntimeErrors


@dataclass(frozen=True)
class Outcome:
    """The result of measuring one sample: the timed repeats, or the error that stopped the measurement.

    Attributes:
        repeats: the timed repeats; None after an error.
        error: the error; None if there was none.
        busy_s: seconds spent inside the sample's timed and warm-up runs.
        seen: the lookups in each of the sample's row blocks, if it has any; or the stretches of a rank's step.
    """

    repeats: Repeats | None
    error: str | None
    busy_s: float
    seen: tuple[Any, ...] = ()


@dataclass
class _Tally:
    """The results of one sample of the batch so far: the recorded times, or an error."""

    times: list[FloatArray]
    at: list[float]
    busy_s: float = 0.0
    error: str | None = None

    def outcome(self) -> Outcome:
        """Return the measured times of all repetitions so far; if the sample has failed, return the error instead."""
        if self.error is not None:
            return Outcome(None, self.error, self.busy_s)
        return Outcome(Repeats(np.array(self.times), np.array(self.at)), None, self.busy_s)


def run_batch(
    builds: Sequence[Callable[[], Run]],
    protocol: TimingProtocol,
    rng: np.random.Generator,
    report: Report,
) -> list[Outcome]:
    """Prepare all samples, run the samples in the order of the timing protocol, and return an outcome for each sample.

    A sample that fails does not stop the others.
    """
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
    """Call `action` and return the result; if the action fails, record the error in `tally` and return None."""
    try:
        return action()
    except FAILURES as error:
        tally.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
        return None
