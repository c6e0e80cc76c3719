"""Measuring the samples of a round: in batches of live ones, each a part on disk that is measured once."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from neuroshard.hardware import Meter
from neuroshard.plumbing.errors import UserError
from neuroshard.records import Parts
from neuroshard.records.samples import Measurement, Repeats, Sample
from neuroshard.records.splits import TRAIN, VALID
from neuroshard.stages.pretrain.refine.choose import Chosen
from neuroshard.stages.pretrain.refine.rounds import Again, Foreseen, Part, Round

_VALID_EVERY = 5  # sample, by its number, is never trained on

Advance = Callable[[int], None]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Due(Generic[Sample]):
    """A sample to be measured, with its number, for the first or the second time."""

    number: int
    sample: Sample
    second: bool = False

    @property
    def part(self) -> int:
        """The number on disk of the part that begins with it, which no other has."""
        return 2 * self.number + self.second


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

    def measured(self, rounds: Sequence[Round]) -> list[Measurement[Sample]]:
        """The samples of these rounds that were measured, once each; failed ones are left out.

        Raises:
            UserError: some are no longer there.
        """
        wanted = {one.sample_id for its in rounds for one in its.of(self.part)}
        found = [m for m in self.parts.read() if m.sample_id in wanted and not m.second_pass]
        if len(found) < len(wanted):
            raise UserError(
                f"{self.parts.directory} lacks {len(wanted) - len(found)} measurements of rounds that are done; put "
                "them back, or give another out=DIRECTORY"
            )
        return found

    def measure(
        self,
        rounds: Sequence[Round],
        chosen: Sequence[Chosen[Sample]],
        predicted: Sequence[float],
        again: int,
        advance: Advance,
    ) -> tuple[list[Foreseen], list[Again]]:
        """What became of the samples of the round after these, that were predicted so, and of `again` second times.

        Samples of earlier rounds are measured a second time among the new ones: what those of a batch have in common,
        such as where memory came to lie, is in them too. Parts that are there already are not measured again; `advance`
        is told of the others' measurements.

        Raises:
            UserError: parts that are there are of other samples.
        """
        first = self._count(rounds)
        new: list[Due[Sample]] = [Due(first + i, one.sample) for i, one in enumerate(chosen)]
        repeated: list[tuple[Due[Sample], int]] = self._earlier(rounds, again)
        self._make(_mixed(new, [due for due, _ in repeated]), advance)
        own: list[Due[Sample]] = [replace(one, second=True) for one in _spread(new, again - len(repeated))]
        self._make(own, advance)
        repeated += [(due, len(rounds)) for due in own]
        found = self._found(new + [due for due, _ in repeated])
        foreseen = [
            Foreseen(self.part, due.number, one.why, ms, found[due])
            for due, one, ms in zip(new, chosen, predicted, strict=True)
        ]
        return foreseen, [
            Again(self.part, due.number, before, found[replace(due, second=False)], found[due])
            for due, before in repeated
        ]

    def _found(self, due: Sequence[Due[Sample]]) -> dict[Due[Sample], float | None]:
        """What all samples took, those that are due among them; None where measuring failed."""
        found = {Due(m.sample_id, m.sample, m.second_pass): self._amount(m) for m in self.parts.read()}
        for one in due:
            if one not in found:
                raise UserError(
                    f"{self.parts.directory} holds another sample {one.number} than this run chooses now; was it begun "
                    "with other versions? Give another out=DIRECTORY"
                )
        return found

    def _count(self, rounds: Sequence[Round]) -> int:
        """Samples of these rounds; the number of the next one."""
        return sum(one.count(self.part) for one in rounds)

    def _earlier(self, rounds: Sequence[Round], again: int) -> list[tuple[Due[Sample], int]]:
        """So many samples of these rounds, or all, that weren't measured twice, with their rounds' numbers."""
        done = {one.sample_id for its in rounds for one in its.again if one.part == self.part}
        of_round = {one.sample_id: its.number for its in rounds for one in its.of(self.part)}
        once = _spread([m for m in self.measured(rounds) if m.sample_id not in done], again)
        return [(Due(m.sample_id, m.sample, second=True), of_round[m.sample_id]) for m in once]

    def _make(self, due: Sequence[Due[Sample]], advance: Advance) -> None:
        """Measure what isn't on disk."""
        for batch in self._batches(due):
            if not self.parts.has(batch[0].part):
                self.parts.write(batch[0].part, self._measured(batch))
                advance(len(batch))

    def _batches(self, due: Sequence[Due[Sample]]) -> Iterator[Sequence[Due[Sample]]]:
        """Those of a group together."""
        groups: dict[int, list[Due[Sample]]] = defaultdict(list)
        for one in due:
            groups[self.group(one.sample)].append(one)
        for _, group in sorted(groups.items()):
            for start in range(0, len(group), self.live):
                yield group[start : start + self.live]

    def _measured(self, batch: Sequence[Due[Sample]]) -> list[Measurement[Sample]]:
        meter = self.meter(self.group(batch[0].sample))
        outcomes = meter.measure([one.sample for one in batch], [self._lookup_seed(one) for one in batch])
        return [
            Measurement(
                one.sample, one.number, _split(one.number), self.seed, outcome.repeats, outcome.error, one.second
            )
            for one, outcome in zip(batch, outcomes, strict=True)
        ]

    def _lookup_seed(self, due: Due[Sample]) -> int:
        return int(np.random.SeedSequence([self.seed, self.stream, due.number, due.second]).generate_state(1)[0])

    def _amount(self, measurement: Measurement[Sample]) -> float | None:
        return None if measurement.repeats is None else self.amount(measurement.sample, measurement.repeats)


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """So many of the items, or all of them, from the first to the last."""
    places = np.linspace(0, max(len(items) - 1, 0), min(count, len(items))).round().astype(int).tolist()
    return [items[i] for i in places]


def _mixed(items: Sequence[Item], others: Sequence[Item]) -> list[Item]:
    """All of both, the others at equal distances among the items."""
    places = np.concatenate([np.arange(len(its)) / max(len(its), 1) for its in (items, others)])
    return [[*items, *others][i] for i in np.argsort(places, kind="stable").tolist()]


def _split(number: int) -> str:
    return VALID if number % _VALID_EVERY == _VALID_EVERY - 1 else TRAIN
