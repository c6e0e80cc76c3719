"""Measuring the samples of a round: in batches of live ones, each a part on disk that is measured once."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np

from neuroshard.hardware import Meter
from neuroshard.records import Parts
from neuroshard.records.samples import Measurement, Repeats, Sample
from neuroshard.records.splits import TRAIN, VALID
from neuroshard.refine.choose import Chosen
from neuroshard.refine.rounds import Foreseen, Part

_VALID_EVERY = 5  # sample, by its number, is never trained on

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Batch(Generic[Sample]):
    """Samples with their numbers, which one meter measures together, for the first or the second time."""

    samples: tuple[tuple[int, Sample], ...]
    second: bool

    @property
    def part(self) -> int:
        """The number of its part on disk, which no other batch has."""
        return 2 * self.samples[0][0] + self.second


@dataclass(frozen=True)
class Kind(Generic[Sample]):
    """One kind of samples in a run.

    Attributes:
        parts: where measurements are kept.
        live: samples of a batch, at most.
        seed, stream: fix what is looked up; kinds have different streams.
        group: what a meter measures together with others, by a number.
        meter: of a group.
        amount: of a sample with its repeats, as predictions are compared with it.
    """

    part: Part
    parts: Parts[Sample]
    live: int
    seed: int
    stream: int
    group: Callable[[Sample], int]
    meter: Callable[[int], Meter[Sample]]
    amount: Callable[[Sample, Repeats], float]

    def measured(self, below: int) -> list[Measurement[Sample]]:
        """The samples with numbers below that were measured, once each; failed ones are left out."""
        its = self.parts.read()
        return [m for m in its if m.sample_id < below and not m.second_pass and m.repeats is not None]

    def measure(
        self, first: int, chosen: Sequence[Chosen[Sample]], predicted: Sequence[float], again: int, advance: Advance
    ) -> list[Foreseen]:
        """What became of samples, numbered from `first` on, that were predicted so; `again` of them measured twice.

        Parts that are there already are not measured again; `advance` is told of the others' measurements.
        """
        numbered = [(first + i, one.sample) for i, one in enumerate(chosen)]
        for batch in self._batches(numbered, again):
            if not self.parts.has(batch.part):
                self.parts.write(batch.part, self._measured(batch))
                advance(len(batch.samples))
        found = {(m.sample_id, m.second_pass): self._amount(m) for m in self.parts.read()}
        return [
            Foreseen(self.part, number, one.why, ms, found[number, False], found.get((number, True)))
            for (number, _), one, ms in zip(numbered, chosen, predicted, strict=True)
        ]

    def _batches(self, numbered: Sequence[tuple[int, Sample]], again: int) -> Iterator[Batch[Sample]]:
        """All samples, then those that are measured again, spread over them."""
        spread = np.linspace(0, max(len(numbered) - 1, 0), again).round().astype(int).tolist()
        for its, second in ((numbered, False), ([numbered[i] for i in spread], True)):
            groups: dict[int, list[tuple[int, Sample]]] = defaultdict(list)
            for one in its:
                groups[self.group(one[1])].append(one)
            for _, group in sorted(groups.items()):
                for start in range(0, len(group), self.live):
                    yield Batch(tuple(group[start : start + self.live]), second)

    def _measured(self, batch: Batch[Sample]) -> list[Measurement[Sample]]:
        meter = self.meter(self.group(batch.samples[0][1]))
        seeds = [self._lookup_seed(number, batch.second) for number, _ in batch.samples]
        outcomes = meter.measure([sample for _, sample in batch.samples], seeds)
        return [
            Measurement(sample, number, _split(number), self.seed, outcome.repeats, outcome.error, batch.second)
            for (number, sample), outcome in zip(batch.samples, outcomes, strict=True)
        ]

    def _lookup_seed(self, number: int, second: bool) -> int:
        return int(np.random.SeedSequence([self.seed, self.stream, number, second]).generate_state(1)[0])

    def _amount(self, measurement: Measurement[Sample]) -> float | None:
        return None if measurement.repeats is None else self.amount(measurement.sample, measurement.repeats)


def _split(number: int) -> str:
    return VALID if number % _VALID_EVERY == _VALID_EVERY - 1 else TRAIN
