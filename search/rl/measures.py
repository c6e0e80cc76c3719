"""Who says what a placement costs while a policy is trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from neuroshard.checked import checked
from neuroshard.cost import Cost
from neuroshard.hardware import Hardware
from neuroshard.hardware.plan_costs import measure_plans
from neuroshard.plans.plan import Plan
from neuroshard.schema import Seed
from neuroshard.simulator import Simulator


class CostSource(Protocol):
    """Costs of plans, of any tasks."""

    def costs(self, plans: Sequence[Plan], simulator: Simulator) -> list[Cost | str]:
        """Each plan's cost, or why it has none."""
        ...


@dataclass(frozen=True)
class Simulated:
    """The simulator."""

    def costs(self, plans: Sequence[Plan], simulator: Simulator) -> list[Cost | str]:
        """Predictions."""
        return [simulator.cost(plan.task, plan) for plan in plans]


@dataclass(frozen=True)
@checked
class OnHardware:
    """Real hardware.

    Attributes:
        hardware: what plans run on.
        seed: fixes the lookups.
    """

    hardware: Hardware
    seed: Seed = 0

    def costs(self, plans: Sequence[Plan], simulator: Simulator) -> list[Cost | str]:
        """Measurements."""
        return measure_plans(plans, self.hardware, self.seed, print, lambda _: None)
