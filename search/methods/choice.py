"""Which of two plans is believed to be the cheaper one."""

from dataclasses import dataclass

from neuroshard.checked import checked
from neuroshard.loads import LoadSets
from neuroshard.plans.plan import Plan
from neuroshard.schema import NonNegative
from neuroshard.simulator import Simulator


@dataclass(frozen=True)
@checked
class Choice:
    """Keeps a plan unless another one's predicted gain is large beside what the predictions may be off by.

    A search for lower predictions finds better plans, and errors of the models as well: gains that are small beside
    the margins don't come true. Models that know no margins are believed as they are.

    Attributes:
        doubt: share of both plans' margins that a gain must exceed, where the models' members disagree: margins then
            tell tables that the models know from others.
        blind_doubt: the same for models without members, whose margins don't grow away from what they were fitted to;
            at 1 the two intervals must not overlap.
    """

    doubt: NonNegative = 0.125
    blind_doubt: NonNegative = 1.0

    def choose(self, first: Plan, other: Plan, simulator: Simulator) -> Plan:
        """`other`, plan of the same task, if its gain is believed; else `first`."""
        costs = simulator.costs(first.task, [first, other])
        gain_ms = costs[0].total_ms - costs[1].total_ms
        asked = 0.0
        if simulator.models.margins is not None:
            asked = self._doubt_of(other, simulator) * (costs[0].margin_ms + costs[1].margin_ms)
        return other if gain_ms > asked else first

    def _doubt_of(self, plan: Plan, simulator: Simulator) -> float:
        sets = LoadSets.of(plan.device_tables, plan.task.batch_size)
        return self.doubt if simulator.models.compute.spread_ms(sets).any() else self.blind_doubt
