"""What measures in tests: this machine's CPU, with as few repeats as there may be, and what only seems to."""

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
    """A meter that measures nothing: it answers each sample and its seed."""

    answer: Callable[[Any, int], Outcome]

    def close(self) -> None:
        """End nothing."""

    def measure(self, samples: Sequence[Any], seeds: Sequence[int]) -> list[Outcome]:
        """Answer each sample."""
        return [self.answer(*each) for each in zip(samples, seeds, strict=True)]
