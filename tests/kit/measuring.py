"""Meters in tests: the CPU of this machine with as few repeats as allowed, and a meter that measures nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from neuroshard.measure import DeviceSpec, EmbeddingSettings, Hardware, Meter, Outcome
from neuroshard.plumbing.timing import TimingProtocol
from tests.kit.processes import PATIENCE_S

QUICKLY = TimingProtocol(warmup=1, rounds=2, repeats_per_round=1, live=8, flush_bytes=0)
CPU = Hardware(DeviceSpec("cpu"), EmbeddingSettings(), QUICKLY, QUICKLY, timeout_s=PATIENCE_S)


@dataclass(frozen=True)
class Answering(Meter[Any]):
    """A meter that returns `answer(sample, seed)` for each sample instead of measuring."""

    answer: Callable[[Any, int], Outcome]

    def close(self) -> None:
        """Do nothing: the meter has no processes."""

    def measure(self, samples: Sequence[Any], seeds: Sequence[int]) -> list[Outcome]:
        """Return the answer to each sample and seed."""
        return [self.answer(*each) for each in zip(samples, seeds, strict=True)]
