"""What a step is made of: named parts, and the timeline over devices that they make."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import FloatArray, IntArray

COMPUTE, FORWARD, BACKWARD, INPUT = "compute", "forward", "backward", "input"
PARTS = (COMPUTE, FORWARD, BACKWARD)  # of every step, in the order in which they are added up and shown


class When(IntEnum):
    """A part's place in a step: on each device, parts begin when those of the places before have ended there.

    Attributes:
        BACKWARD: gradients are exchanged: all devices meet, and begin together.
        INPUT: what comes to a device before it can look anything up.
        COMPUTE: kernels: backward of one batch and forward of the next.
        FORWARD: embeddings are exchanged: all devices meet again, and wait for the last one.
    """

    BACKWARD = 0
    INPUT = 1
    COMPUTE = 2
    FORWARD = 3


class Called(NamedTuple):
    """What D devices of B plans do, by the K kernel calls in `CALLS`.

    Attributes:
        ms: (B, D, K) of kernels.
        spread_ms: (B, D, K) by which the models' members disagree; zeros where nobody asks.
        shards: (B, D, K) that each call looks up in.
        counts: (B, D, C) of `COUNTS`; C = 0 where no part of a step hangs on them.
    """

    ms: FloatArray
    spread_ms: FloatArray
    shards: IntArray
    counts: FloatArray

    def beside(self, other: "Called") -> "Called":
        """These calls and others that the same devices make besides."""
        ms, spread_ms = self.ms + other.ms, self.spread_ms + other.spread_ms
        return Called(ms, spread_ms, self.shards + other.shards, self.counts + other.counts)


class Part(NamedTuple):
    """One named thing that D devices spend time on in a step.

    Attributes:
        name: as models, margins and reports have it.
        when: its place in the step.
        ms: (..., D), waiting for others included.
        margin: (..., D) half the width of an interval that is meant to hold 90% of measurements; None if unknown.
        counts: whether the step takes so much longer; else something hides it, and it is only shown.
        about: what it is, for people; where it doesn't count.
    """

    name: str
    when: When
    ms: FloatArray
    margin: FloatArray | None = None
    counts: bool = True
    about: str = ""


Took = tuple[FloatArray, FloatArray | None]  # (..., D) ms and their margin


class Work(NamedTuple):
    """What becomes a part when it is known how far devices are.

    `run` is told when each device is ready for it, (..., D) ms after the meeting that opens the step.
    """

    name: str
    when: When
    run: Callable[[FloatArray], Took]
    counts: bool = True
    about: str = ""


@dataclass(frozen=True, eq=False)
class Step:
    """A timeline over D devices, of one plan, (D,), or of B plans, (B, D).

    The papers' maximum of sums is the case with two meetings: all devices begin the exchange of gradients together,
    and wait for the last one in that of embeddings.
    """

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, works: Sequence[Work], shape: tuple[int, ...]) -> "Step":
        """Run works in the order of their places, on devices (..., D); the parts stand in the order of `works`."""
        ready, found = np.zeros(shape), {}
        for work in sorted(works, key=lambda work: work.when):
            ms, margin = work.run(ready)
            found[work.name] = Part(work.name, work.when, ms, margin, work.counts, work.about)
            ready = ready + ms if work.counts else ready
        return cls(tuple(found[work.name] for work in works))

    def __getitem__(self, plan: int) -> "Step":
        """The step of one of B plans."""
        margins = (None if part.margin is None else part.margin[plan] for part in self.parts)
        its = (part._replace(ms=part.ms[plan], margin=one) for part, one in zip(self.parts, margins, strict=True))
        return Step(tuple(its))

    def ms(self, name: str) -> FloatArray:
        """(..., D) ms of a part, by its name.

        Raises:
            KeyError: the step has none of that name.
        """
        for part in self.parts:
            if part.name == name:
                return part.ms
        raise KeyError(name)

    @property
    def compute(self) -> FloatArray:
        """(..., D) ms of kernels."""
        return self.ms(COMPUTE)

    @property
    def forward(self) -> FloatArray:
        """(..., D) ms of forward communication."""
        return self.ms(FORWARD)

    @property
    def backward(self) -> FloatArray:
        """(..., D) ms of backward communication."""
        return self.ms(BACKWARD)

    @property
    def counted(self) -> tuple[Part, ...]:
        """The parts that the step takes longer for."""
        return tuple(part for part in self.parts if part.counts)

    @property
    def device_ms(self) -> FloatArray:
        """(..., D) sum of the parts that count."""
        return _sum(part.ms for part in self.counted)

    @property
    def ready_ms(self) -> FloatArray:
        """(..., D) ms until each device comes to the last meeting."""
        return _sum(part.ms for part in self.counted if part.when < When.FORWARD)

    @property
    def margin(self) -> FloatArray | None:
        """(..., D) half the width of an interval around every device's sum; None where one of a part isn't known.

        Errors of parts are taken as independent. Waiting makes every device come out of the last meeting with the one
        that is last to come to it, so that one's errors before it count for all.
        """
        squares = [(part.when, part.margin**2) for part in self.counted if part.margin is not None]
        if len(squares) < len(self.counted):
            return None
        last = self.ready_ms.argmax(axis=-1)[..., None]
        before = _sum(square for when, square in squares if when < When.FORWARD)
        after = _sum(square for when, square in squares if when >= When.FORWARD)
        margin: FloatArray = np.sqrt(np.take_along_axis(before, last, axis=-1) + after)
        return margin


def _sum(values: Iterable[FloatArray]) -> FloatArray:
    return sum(values, np.zeros(()))
