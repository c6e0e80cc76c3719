"""What was predicted of samples before anything was learned from them, and what came of it, round by round."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from msgspec import Meta

from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.journal import Journal
from neuroshard.plumbing.schema import Count, NonNegative, PositiveCount, Share
from neuroshard.plumbing.timing import repeatability
from neuroshard.records.speed import Pair, slowness_of

Part = Literal["compute", "exchange"]
Why = Literal["proposal", "doubt", "random"]
PARTS: tuple[Part, ...] = ("compute", "exchange")
WHYS: tuple[Why, ...] = ("proposal", "doubt", "random")

_LEAST = 4  # of proposals, and of second measurements, before anything is concluded from them
_LEAST_MS = 1e-9


@dataclass(frozen=True)
@checked
class Shares:
    """How a round spends its measurements.

    Attributes:
        measurements: in a round; then models are fitted anew.
        again: share of a round that measures samples of earlier rounds a second time: noise, and how fast kernels are
            now. In the first round, its own.
        exchanges: share of the other ones that are exchanges; the rest are kernel calls.
        proposals: share of either that plans of searches ask for.
        doubts: share of kernel calls on which the models' members disagree most; the rest are random combinations.
        tasks: searched in a round, at most.
        placements: random plans of each of these tasks, whose doubtful calls, and exchanges, are measured.
    """

    measurements: PositiveCount = 50
    again: Annotated[float, Meta(ge=0, le=0.5)] = 0.1
    exchanges: Share = 0.25
    proposals: Share = 0.5
    doubts: Share = 0.25
    tasks: PositiveCount = 4
    placements: Annotated[int, Meta(ge=1, le=1000)] = 8

    def of(self, measurements: int) -> dict[Part, tuple[int, int]]:
        """Divide so many measurements by part: new samples, and second measurements."""
        again = int(self.again * measurements)
        new = measurements - again
        exchanges = round(self.exchanges * new)
        calls = new - exchanges
        second = max(min(again // 2, exchanges), again - calls)
        return {"compute": (calls, again - second), "exchange": (exchanges, second)}


@dataclass(frozen=True)
class Foreseen:
    """One sample, predicted by models that hadn't seen it, then measured.

    Milliseconds of an exchange are those of the device that takes longest for both ways, without waiting.

    Attributes:
        why: a content of proposed plans, one that the models' members disagree on, or a random combination.
        measured_ms: None where measuring failed.
    """

    part: Part
    sample_id: Count
    why: Why
    predicted_ms: NonNegative
    measured_ms: NonNegative | None


@dataclass(frozen=True)
class Again:
    """The second measurement of a sample; no sample has a third.

    Attributes:
        before: number of the round that first measured it.
        first_ms, again_ms: None where measuring failed.
    """

    part: Part
    sample_id: Count
    before: Count
    first_ms: NonNegative | None
    again_ms: NonNegative | None


@dataclass(frozen=True)
class Round:
    """All samples of a round, and how many measurements it took, second and failed ones included.

    Attributes:
        again: second measurements, of samples of earlier rounds, or, where there are not enough, of this one.
    """

    number: Count
    measurements: PositiveCount
    samples: tuple[Foreseen, ...]
    again: tuple[Again, ...] = ()

    def of(self, part: Part, why: Why | None = None) -> tuple[Foreseen, ...]:
        """Select the samples of a part that were measured, all of them or for one reason."""
        its = (one for one in self.samples if one.part == part and why in (None, one.why))
        return tuple(one for one in its if one.measured_ms is not None)

    def ratios(self, part: Part, why: Why | None = None) -> FloatArray:
        """Compute measured over predicted, (n,)."""
        pairs = [(one.measured_ms or 0.0, one.predicted_ms) for one in self.of(part, why)]
        measured, predicted = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        return np.maximum(measured, _LEAST_MS) / np.maximum(predicted, _LEAST_MS)

    def errors(self, part: Part, why: Why | None = None) -> FloatArray:
        """Compute the errors of predictions, relative to what was measured, (n,)."""
        return np.abs(1 / self.ratios(part, why) - 1)

    def count(self, part: Part) -> int:
        """Count the samples of the part, failed ones included."""
        return sum(one.part == part for one in self.samples)


def noise_of(rounds: Sequence[Round], part: Part) -> FloatArray:
    """Compute by how much two measurements of one sample differ, (n,), relative."""
    pairs = [(one.first_ms, one.again_ms) for one in repeated(rounds, part)]
    first, second = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return repeatability(first, second)


def repeated(rounds: Sequence[Round], part: Part) -> list[Again]:
    """Select the second measurements in these rounds, of samples that both measurements took some time of."""
    return [one for its in rounds for one in its.again if one.part == part and one.first_ms and one.again_ms]


def well_predicted(rounds: Sequence[Round], times: float) -> bool:
    """Tell whether the last round's proposals were predicted within `times` the noise, in every part on average."""
    return bool(rounds) and all(_within(rounds, part, times) for part in PARTS if rounds[-1].count(part))


def _within(rounds: Sequence[Round], part: Part, times: float) -> bool:
    errors, noise = rounds[-1].errors(part, "proposal"), noise_of(rounds, part)
    return min(len(errors), len(noise)) >= _LEAST and bool(errors.mean() <= times * noise.mean())


def slowness(rounds: Sequence[Round], part: Part) -> FloatArray:
    """Compute how many times as long as in the typical round the part's measurements took in each, (R,).

    A round's batches count as one.
    """
    again = ((its.number, one) for its in rounds for one in repeated([its], part))
    pairs = [Pair(one.before, number, one.first_ms or 0.0, one.again_ms or 0.0) for number, one in again]
    return slowness_of(len(rounds), pairs)


def rounds_in(run: Path) -> Journal[Round]:
    """Open the journal of the rounds of a run that are done."""
    return Journal(run / "rounds", "round", Round, anew="it is made again of what was measured", version=2)


def frame_of(rounds: Sequence[Round]) -> pd.DataFrame:
    """Make a row for every sample; a second measurement stands in the row of its sample."""
    again = {
        (one.part, one.sample_id): {"again_ms": one.again_ms, "again_in_round": its.number}
        for its in rounds
        for one in its.again
    }
    once = {"again_ms": None, "again_in_round": None}
    rows = [
        {"round": its.number, **asdict(one), **again.get((one.part, one.sample_id), once)}
        for its in rounds
        for one in its.samples
    ]
    return pd.DataFrame(rows)
