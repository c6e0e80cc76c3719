"""Mirrored training steps: whose are measured, and what one rank's local work in a step is."""

from dataclasses import dataclass

import numpy as np

from neuroshard.hardware.runs import Outcome
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import Count

MOST_RANKS = 8  # of a plan that are measured


@dataclass(frozen=True)
@checked
class Stretch:
    """Local work of one phase until the next begins, or until an exchange does.

    Attributes:
        phase: of `LOCAL_PHASES`.
        until: the collective that it ends at; "" where another phase begins.
    """

    phase: str
    until: str


@dataclass(frozen=True)
@checked
class LocalStep:
    """One rank's local work in a step of a plan, without any exchange.

    Attributes:
        rank: it is.
        stretches: (S,) in the order of the step; every rank of a plan comes to the same collectives.
        ms: (S,) of each, the median over turns.
        sent_bytes, received_bytes: (S,) what the rank gives to the collective at the end, and gets.
        error: what stopped it; then there are no stretches.
    """

    rank: Count
    stretches: tuple[Stretch, ...] = ()
    ms: tuple[float, ...] = ()
    sent_bytes: tuple[float, ...] = ()
    received_bytes: tuple[float, ...] = ()
    error: str | None = None

    @classmethod
    def of(cls, rank: int, outcome: Outcome) -> "LocalStep":
        """Take the medians over an outcome's repeats, or its error."""
        if outcome.repeats is None:
            return cls(rank, error=outcome.error)
        ms, sent, received = np.median(outcome.repeats.times_ms, axis=0).tolist()
        return cls(rank, outcome.seen, tuple(ms), tuple(sent), tuple(received))


def measured_ranks(plan: Plan) -> tuple[int, ...]:
    """The ranks of a plan that are measured, in order: all up to `MOST_RANKS`; of more those that stand out.

    These look up the most bytes, write the most outputs, hold the most shards, bytes or rows' parts, and look up the
    least; of equal ones the first.
    """
    size = plan.task.topology.num_devices
    if size <= MOST_RANKS:
        return tuple(range(size))
    loads, counts = plan.device_loads.loads, plan.device_loads.counts
    device = np.repeat(np.arange(size), counts)
    looked_up = np.bincount(device, loads.lookups * loads.dim * loads.bytes_per_element, size)
    outputs = np.bincount(device, loads.output_bytes, size)
    held = np.array(plan.device_bytes)
    most = [int(np.argmax(amounts)) for amounts in (looked_up, outputs, counts, held)]
    return tuple(sorted({*most, int(np.argmin(looked_up))}))
