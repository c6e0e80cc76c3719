"""A round of samples: predicted, then measured in batches of live ones, each a chunk on disk that is measured once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from neuroshard.cost import cost as parts
from neuroshard.hardware import Hardware
from neuroshard.lab.recorder import Due, Meters, Recorder, in_batches, mixed
from neuroshard.models import CostModels
from neuroshard.models.interface import waits
from neuroshard.models.parts import exchange_part
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.threads import torch_threads
from neuroshard.records import Chunks, DataDirectory
from neuroshard.records.sample_loads import loads_of, starts_of, traffic_of
from neuroshard.records.samples import BACKWARD, FORWARD, CommSample, ComputeSample, Measurement, Sample, as_drawn
from neuroshard.records.splits import split_of
from neuroshard.stages.pretrain.fit import Fit, margins_of
from neuroshard.stages.pretrain.measurements import Measured
from neuroshard.stages.pretrain.pieces import by_part
from neuroshard.stages.pretrain.refine.candidates import RoundSamples
from neuroshard.stages.pretrain.refine.propose import Chosen
from neuroshard.stages.pretrain.refine.rounds import PARTS, Again, Foreseen, Part, Round, slowness

Advance = Callable[[int], None]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Series(Generic[Sample]):
    """A series of samples in a run.

    Attributes:
        chunks: where measurements are kept.
        recorder: measures, and keeps them there.
        group: what a meter measures together with others, by a number.
        predict: what models say of samples, ms of each.
        amount: what was measured, ms, as predictions are compared with it.
    """

    part: Part
    chunks: Chunks[Sample]
    recorder: Recorder[Sample]
    group: Callable[[Sample], int]
    predict: Callable[[CostModels, Sequence[Sample]], list[float]]
    amount: Callable[[Measurement[Sample]], float]

    def measured(self, rounds: Sequence[Round]) -> list[Measurement[Sample]]:
        """Read the samples of these rounds that were measured, once each; failed ones are left out.

        Raises:
            UserError: some are no longer there.
        """
        wanted = {one.sample_id for its in rounds for one in its.of(self.part)}
        measured = [m for m in self.chunks.read() if m.sample_id in wanted and not m.second_pass]
        if len(measured) < len(wanted):
            raise UserError(
                f"{self.chunks.directory} lacks {len(wanted) - len(measured)} measurements of rounds that are done; "
                "put them back, or give another out=DIRECTORY"
            )
        return measured

    def measure(
        self,
        rounds: Sequence[Round],
        chosen: Sequence[Chosen[Sample]],
        again: int,
        models: CostModels,
        advance: Advance,
    ) -> tuple[list[Foreseen], list[Again]]:
        """Measure the samples of the round after these, predicted before, and `again` samples a second time.

        Samples of earlier rounds are measured a second time among the new ones: what those of a batch have in common,
        such as where memory came to lie, is in them too. Chunks that are there already are not measured again;
        `advance` is told of the others' measurements.

        Raises:
            UserError: chunks that are there are of other samples.
        """
        predicted = self.predict(models, [one.sample for one in chosen])
        first = sum(one.count(self.part) for one in rounds)
        new = [self._due(first + i, one.sample) for i, one in enumerate(chosen)]
        repeated = self._earlier(rounds, again)
        self._make(mixed(new, [due for due, _ in repeated]), advance)
        own = [self._due(one.number, one.sample, second=True) for one in _spread(new, again - len(repeated))]
        self._make(own, advance)
        repeated += [(due, len(rounds)) for due in own]
        took = self._took(new + [due for due, _ in repeated])
        foreseen = [
            Foreseen(self.part, due.number, one.why, ms, took[due])
            for due, one, ms in zip(new, chosen, predicted, strict=True)
        ]
        return foreseen, [
            Again(self.part, due.number, before, took[self._due(due.number, due.sample)], took[due])
            for due, before in repeated
        ]

    def _took(self, due: Sequence[Due[Sample]]) -> dict[Due[Sample], float | None]:
        """Read what all samples took, those that are due among them; None where measuring failed."""
        took = {
            self._due(m.sample_id, m.sample, m.second_pass): None if m.repeats is None else self.amount(m)
            for m in self.chunks.read()
        }
        for one in due:
            if one not in took:
                raise UserError(
                    f"{self.chunks.directory} holds another sample {one.number} than this run chooses now; was it "
                    "begun with other versions? Give another out=DIRECTORY"
                )
        return took

    def _earlier(self, rounds: Sequence[Round], again: int) -> list[tuple[Due[Sample], int]]:
        """Choose so many samples of these rounds, or all, that weren't measured twice, with their rounds' numbers."""
        done = {one.sample_id for its in rounds for one in its.again if one.part == self.part}
        of_round = {one.sample_id: its.number for its in rounds for one in its.of(self.part)}
        once = _spread([m for m in self.measured(rounds) if m.sample_id not in done], again)
        return [(self._due(m.sample_id, m.sample, second=True), of_round[m.sample_id]) for m in once]

    def _make(self, due: Sequence[Due[Sample]], advance: Advance) -> None:
        """Measure what isn't on disk; the number of a chunk is made of its first sample's, so that no other has it."""
        groups = sorted(grouped(due, lambda one: self.group(one.sample)).items())
        batches = (batch for _, group in groups for batch in in_batches(group, self.recorder.live))
        for outcomes in self.recorder.complete(
            (2 * one[0].number + one[0].second_pass, partial(list, one)) for one in batches
        ):
            advance(len(outcomes))

    def _due(self, number: int, sample: Sample, second: bool = False) -> Due[Sample]:
        stream = PARTS.index(self.part)  # series look up other things than each other
        seeds = np.random.SeedSequence([self.recorder.seed, stream, number, second])
        return Due(as_drawn(sample), number, int(seeds.generate_state(1)[0]), split_of(number), second)


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """Take so many of the items, or all of them, spread from the first to the last."""
    places = np.linspace(0, max(len(items) - 1, 0), min(count, len(items))).round().astype(int).tolist()
    return [items[i] for i in places]


@dataclass(frozen=True)
class RunSamples:
    """What a run measures: kernel calls, and exchanges."""

    calls: Series[ComputeSample]
    exchanges: Series[CommSample]

    @classmethod
    def of(cls, directory: DataDirectory, hardware: Hardware, meters: Meters, seed: int) -> "RunSamples":
        """Set up samples that are kept in a data directory."""
        calls, exchanges = directory.compute(), directory.comm()
        call = Recorder(meters.of, hardware.compute_timing.live, seed, calls)
        exchange = Recorder(meters.of, hardware.comm_timing.live, seed, exchanges)
        return cls(
            Series("compute", calls, call, lambda _: 0, _predicted_calls, lambda m: float(m.typical_ms)),
            Series(
                "exchange", exchanges, exchange, lambda one: one.num_devices, _predicted_exchanges, _measured_exchange
            ),
        )

    def known(self, rounds: Sequence[Round]) -> tuple[list[ComputeSample], list[CommSample]]:
        """Read the samples of these rounds that were measured."""
        return [m.sample for m in self.calls.measured(rounds)], [m.sample for m in self.exchanges.measured(rounds)]

    def learned(self, fit: Fit, start: CostModels, rounds: Sequence[Round]) -> CostModels:
        """Fit the start to all of these rounds at once, so that a run that goes on equals one that wasn't stopped.

        With margins, where there is a round. Models are fitted to kernel calls as if all had been measured at the
        typical round's speed. Margins are set on what was measured, so they hold changes of speed too.

        Raises:
            UserError: nothing of these rounds could be measured.
        """
        if not rounds:
            return start
        self._check(rounds)
        of_round = np.repeat(slowness(rounds, self.calls.part), [one.count(self.calls.part) for one in rounds])
        calls = [replace(m, slowness=float(of_round[m.sample_id])) for m in self.calls.measured(rounds)]
        measured = Measured.split(calls, self.exchanges.measured(rounds))
        with torch_threads(1):
            models = fit(measured.level, start)
        return replace(models, margins=margins_of(models, measured, start))

    def _check(self, rounds: Sequence[Round]) -> None:
        """Raise UserError if nothing of these rounds could be measured."""
        if any(one.measured_ms is not None for its in rounds for one in its.samples):
            return
        errors = [m.error for m in self.calls.chunks.read()] + [m.error for m in self.exchanges.chunks.read()]
        tried = self.calls.chunks.directory.parent
        raise UserError(f"nothing could be measured: {next(filter(None, errors))}; what was tried stands in {tried}")

    def measure(
        self, rounds: Sequence[Round], chosen: RoundSamples, models: CostModels, advance: Advance
    ) -> tuple[tuple[Foreseen, ...], tuple[Again, ...]]:
        """Predict, then measure the samples of the round after these, and those that are measured again."""
        calls, called = self.calls.measure(rounds, chosen.calls, chosen.calls_again, models, advance)
        exchanges, exchanged = self.exchanges.measure(rounds, chosen.exchanges, chosen.exchanges_again, models, advance)
        return (*calls, *exchanges), (*called, *exchanged)


def _predicted_calls(models: CostModels, calls: Sequence[ComputeSample]) -> list[float]:
    """Predict the ms of each kernel call, (n,)."""
    return models.compute.predict(loads_of(calls)).tolist() if calls else []


def _predicted_exchanges(models: CostModels, samples: Sequence[CommSample]) -> list[float]:
    """Predict the ms of each exchange, (n,), of the device that takes longest for both ways."""
    pieces, predicted = by_part(models), []
    for sample in samples:
        traffic, starts, together = traffic_of([sample]), *(starts_of([sample], way) for way in (FORWARD, BACKWARD))
        forward, backward = (exchange_part(way, sample.collective) for way in (parts.FORWARD, parts.BACKWARD))
        there, back = pieces[forward if forward in pieces else backward], pieces[backward]
        cost = there.predict(traffic, starts) - waits(starts) + back.predict(traffic, together)
        predicted.append(float(cost.max()))
    return predicted


def _measured_exchange(measured: Measurement[CommSample]) -> float:
    """Compute the ms of the device that takes longest for both ways, without waiting; noise can leave next to none."""
    times = measured.typical_ms
    there = times[FORWARD] - waits(starts_of([measured.sample], FORWARD))[0]
    return max(float((there + times[BACKWARD]).max()), 0.0)
