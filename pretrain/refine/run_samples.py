"""Both kinds of samples of a run on disk, and one round of them: predicted, then measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.cost import parts
from neuroshard.hardware import Hardware
from neuroshard.lab.meters import Meters
from neuroshard.lab.recorder import Recorder
from neuroshard.models import CostModels
from neuroshard.models.interface import waits
from neuroshard.models.named_parts import exchange_part
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.threads import torch_threads
from neuroshard.plumbing.timing import typical_ms
from neuroshard.records import DataDirectory
from neuroshard.records.sample_loads import loads_of, traffic_of
from neuroshard.records.samples import BACKWARD, FORWARD, CommSample, ComputeSample, Repeats
from neuroshard.stages.pretrain.fit import Fit, margins_of
from neuroshard.stages.pretrain.measurements import Measured
from neuroshard.stages.pretrain.pieces import Pieces, pieces_of
from neuroshard.stages.pretrain.refine.candidates import RoundSamples
from neuroshard.stages.pretrain.refine.measure import Advance, Kind
from neuroshard.stages.pretrain.refine.rounds import Again, Foreseen, Round, slowness

_CALLS, _EXCHANGES = 0, 1  # streams of random numbers


@dataclass(frozen=True)
class RunSamples:
    """What a run measures, by kind."""

    calls: Kind[ComputeSample]
    exchanges: Kind[CommSample]

    @classmethod
    def of(cls, directory: DataDirectory, hardware: Hardware, meters: Meters, seed: int) -> "RunSamples":
        """Kept in a data directory."""
        calls, exchanges = directory.compute(), directory.comm()
        call = Recorder(meters.of, hardware.compute_timing.live, seed, calls)
        exchange = Recorder(meters.of, hardware.comm_timing.live, seed, exchanges)
        return cls(
            Kind("compute", calls, call, _CALLS, lambda _: 0, lambda _, its: float(typical_ms(its.times_ms))),
            Kind("exchange", exchanges, exchange, _EXCHANGES, lambda one: one.num_devices, _measured_exchange),
        )

    def known(self, rounds: Sequence[Round]) -> tuple[list[ComputeSample], list[CommSample]]:
        """The samples of these rounds that were measured."""
        return [m.sample for m in self.calls.measured(rounds)], [m.sample for m in self.exchanges.measured(rounds)]

    def learned(self, fit: Fit, start: CostModels, rounds: Sequence[Round]) -> CostModels:
        """Return the start's models, fitted further to all of these rounds; with margins.

        Models are fitted to kernel calls as if all had been measured at the typical round's speed. Margins are set on
        what was measured, so they hold changes of speed too.
        """
        of_round = np.repeat(slowness(rounds, self.calls.part), [one.count(self.calls.part) for one in rounds])
        calls = [replace(m, slowness=float(of_round[m.sample_id])) for m in self.calls.measured(rounds)]
        measured = Measured.split(calls, self.exchanges.measured(rounds))
        with torch_threads(1):
            models = fit(measured.level, start)
        return replace(models, margins=margins_of(models, measured, start))

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
        samples = [one.sample for one in chosen.calls]
        foreseen_calls = models.compute.predict(loads_of(samples)).tolist() if samples else []
        foreseen_exchanges = _predicted_exchanges(models, [one.sample for one in chosen.exchanges])
        calls, called = self.calls.measure(rounds, chosen.calls, foreseen_calls, chosen.calls_again, advance)
        exchanges, exchanged = self.exchanges.measure(
            rounds, chosen.exchanges, foreseen_exchanges, chosen.exchanges_again, advance
        )
        return (*calls, *exchanges), (*called, *exchanged)


def _predicted_exchanges(models: CostModels, samples: Sequence[CommSample]) -> list[float]:
    """(n,) ms of the device of each that takes longest for both ways."""
    pieces = pieces_of(models)
    return [_predicted(pieces, sample) for sample in samples]


def _predicted(pieces: Pieces, sample: CommSample) -> float:
    traffic, starts = traffic_of([sample]), np.array([sample.start_ms])
    forward, backward = (exchange_part(way, sample.collective) for way in (parts.FORWARD, parts.BACKWARD))
    there, back = pieces[forward if forward in pieces else backward], pieces[backward]
    cost = there.predict(traffic, starts) - waits(starts) + back.predict(traffic, np.zeros_like(starts))
    return float(cost.max())


def _measured_exchange(sample: CommSample, repeats: Repeats) -> float:
    """Ms of the device that takes longest for both ways, without waiting; noise can make that next to nothing."""
    times: FloatArray = typical_ms(repeats.times_ms)
    there = times[FORWARD] - waits(np.array([sample.start_ms]))[0]
    return max(float((there + times[BACKWARD]).max()), 0.0)
