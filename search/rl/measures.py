"""Who says what a placement costs while a policy is trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from neuroshard.cost.cost import Cost
from neuroshard.hardware import Hardware
from neuroshard.lab.meters import meters_of
from neuroshard.lab.plan_costs import measure_plans
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import Seed


class CostSource(Protocol):
    """Says what plans cost, each of a task of its own."""

    def costs(self, plans: Sequence[Plan], simulator: Simulator) -> list[Cost | str]:
        """Each plan's cost, or why it has none."""
        ...


@dataclass(frozen=True)
class Simulated:
    """Plans cost what the simulator predicts."""

    def costs(self, plans: Sequence[Plan], simulator: Simulator) -> list[Cost | str]:
        """Each plan's predicted cost."""
        return [simulator.cost(plan.task, plan) for plan in plans]


@dataclass(frozen=True)
@checked
class OnHardware:
    """Plans cost what they do on real hardware.

    Attributes:
        hardware: what plans run on.
        seed: fixes the lookups.
    """

    hardware: Hardware
    seed: Seed = 0

    def costs(self, plans: Sequence[Plan], simulator: Simulator) -> list[Cost | str]:
        """Each plan's measured cost, or why it couldn't be measured."""
        with meters_of(self.hardware, print) as meters:
            return measure_plans(meters, plans, self.seed, lambda _: None)
