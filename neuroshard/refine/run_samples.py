"""Both kinds of samples of a run on disk, and one round of them: predicted, then measured."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard.hardware import Hardware
from neuroshard.hardware.meters import Meters
from neuroshard.models import CostModels
from neuroshard.plumbing.errors import UserError
from neuroshard.records import DataDirectory
from neuroshard.records.samples import CommSample, ComputeSample, Measurement
from neuroshard.refine.amounts import measured_call, measured_exchange, predicted_calls, predicted_exchanges
from neuroshard.refine.candidates import RoundSamples
from neuroshard.refine.interfaces import LearnsModels
from neuroshard.refine.measure import Advance, Kind
from neuroshard.refine.rounds import Again, Foreseen, Round
from neuroshard.refine.speed import fit_levelled, slowness

_CALLS, _EXCHANGES = 0, 1  # streams of random numbers


@dataclass(frozen=True)
class RunSamples:
    """What a run measures, by kind."""

    calls: Kind[ComputeSample]
    exchanges: Kind[CommSample]

    @classmethod
    def of(cls, directory: DataDirectory, hardware: Hardware, meters: Meters, seed: int) -> "RunSamples":
        """Kept in a data directory."""
        return cls(
            Kind(
                "compute", directory.compute(), hardware.compute_timing.live, seed, _CALLS,
                lambda _: 0, lambda _: meters.compute(), measured_call,
            ),
            Kind(
                "exchange", directory.comm(), hardware.comm_timing.live, seed, _EXCHANGES,
                lambda sample: sample.num_devices, meters.comm, measured_exchange,
            ),
        )  # fmt: skip

    def calls_of(self, rounds: Sequence[Round]) -> list[Measurement[ComputeSample]]:
        """The kernel calls of these rounds that were measured."""
        return self.calls.measured(rounds)

    def exchanges_of(self, rounds: Sequence[Round]) -> list[Measurement[CommSample]]:
        """The exchanges of these rounds that were measured."""
        return self.exchanges.measured(rounds)

    def learned(self, learner: LearnsModels, start: CostModels, rounds: Sequence[Round]) -> CostModels:
        """The start's models, fitted further to all of these rounds.

        Kernel calls alone are brought to one speed: exchanges differ by much more than the speeds of rounds.
        """
        calls = self.calls_of(rounds)
        of_round = np.repeat(slowness(rounds, self.calls.part), [one.count(self.calls.part) for one in rounds])
        times = [of_round[m.sample_id] for m in calls]
        return fit_levelled(learner, start, calls, self.exchanges_of(rounds), times)

    def check(self, rounds: Sequence[Round]) -> None:
        """Raise UserError if nothing of these rounds could be measured."""
        if any(one.measured_ms is not None for its in rounds for one in its.samples):
            return
        errors = [m.error for m in self.calls.parts.read()] + [m.error for m in self.exchanges.parts.read()]
        tried = self.calls.parts.directory.parent
        raise UserError(f"nothing could be measured: {next(filter(None, errors))}; what was tried stands in {tried}")

    def measure(
        self, rounds: Sequence[Round], chosen: RoundSamples, models: CostModels, advance: Advance
    ) -> tuple[tuple[Foreseen, ...], tuple[Again, ...]]:
        """The samples of the round after these: predicted first; and those that are measured again."""
        foreseen_calls = predicted_calls(models, [one.sample for one in chosen.calls])
        foreseen_exchanges = predicted_exchanges(models, [one.sample for one in chosen.exchanges])
        calls, called = self.calls.measure(rounds, chosen.calls, foreseen_calls, chosen.calls_again, advance)
        exchanges, exchanged = self.exchanges.measure(
            rounds, chosen.exchanges, foreseen_exchanges, chosen.exchanges_again, advance
        )
        return (*calls, *exchanges), (*called, *exchanged)
