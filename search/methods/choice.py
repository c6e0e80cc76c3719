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
    the margins don't come true. Gains are of expected costs (`Cost.expected_ms`), which count little of what is gained
    by balancing devices more finely than they are known. Models that know no margins are believed as they are.

    Attributes:
        doubt: share of both plans' margins that a gain must exceed, where the models' members disagree: margins then
            tell tables that the models know from others.
        blind_doubt: the same for models without members, whose margins don't grow away from what they were fitted to;
            at 1 the two intervals must not overlap.
    """

    doubt: NonNegative = 0.2
    blind_doubt: NonNegative = 1.0

    def choose(self, first: Plan, other: Plan, simulator: Simulator) -> Plan:
        """`other`, plan of the same task, if its gain is believed; else `first`."""
        before, after = simulator.costs(first.task, [first, other])
        if simulator.models.margins is None:
            return other if after.total_ms < before.total_ms else first
        asked_ms = self._doubt_of(other, simulator) * (before.margin_ms + after.margin_ms)
        return other if before.expected_ms - after.expected_ms > asked_ms else first

    def _doubt_of(self, plan: Plan, simulator: Simulator) -> float:
        sets = LoadSets.of(plan.device_tables, plan.task.batch_size)
        return self.doubt if simulator.models.compute.spread_ms(sets).any() else self.blind_doubt
