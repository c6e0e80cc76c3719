"""Which of several plans is believed to be the cheapest one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neuroshard.cost.cost import Cost
from neuroshard.cost.loads import LoadSets
from neuroshard.models import CostModels
from neuroshard.models.assumed import has_own_margins, with_assumed_margins
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import NonNegative, Share
from neuroshard.tasks.task import Task

_WORTH_SAYING = 0.01  # of a step: nobody changes a setting for less


@dataclass(frozen=True)
@checked
class Choice:
    """Takes the plan with the least expected cost of those that are predicted to cost less than the first; with doubt.

    A search for lower predictions finds better plans, and errors of the models as well. Expected costs
    (`Cost.expected_ms`) count little of what is gained by balancing devices more finely than they are known. But they
    also favour plans that only look better known: where a plan is expected to cost less and predicted to cost more, it
    truly costs more (docs/results.md). So a gain must be both.

    Models that know no margins may be off by as much as others of their kind: margins are assumed for them
    (`neuroshard/models/assumed.py`), and a gain must exceed a share of these.

    Exchanges that are more lopsided than any that the models were fitted to look cheaper than they are. So plans that
    have such are left out, unless the first plan's are as lopsided.

    Attributes:
        doubt: share of both plans' margins that a gain must exceed, or the published search's plan is kept. Where the
            models' members disagree: margins then tell tables that the models know from others.
        blind_doubt: the same for models that aren't ensembles, such as the papers'. Their margins don't grow away
            from what they were fitted to; at 1 the two intervals must not overlap. Of these a gain counts only as far
            as it isn't one of all devices together: the same tables rarely cost less in all, and that is where such
            models are led astray most. Datasheets whose margins are assumed aren't among these.
        form_doubt: doubt where tables are in rows or copies, and the models know kernels and exchanges only: using a
            form takes more in training. At 1 the two intervals must not overlap, which is right wherever steps were
            measured (docs/steps.md). Models that know what TorchRec adds (cpu+torchrec) need none.
        least_gain: share of the first plan's cost that a gain must exceed: on average smaller ones don't come true
            (docs/results.md).
        assumed_doubt: least doubt where the models know no margins of kernels or exchanges, such as datasheets, and
            margins of their kind are assumed; 0.5 takes gains above the mean of both plans' margins (docs/models.md).
    """

    doubt: NonNegative = 0.0
    blind_doubt: NonNegative = 1.0
    form_doubt: NonNegative = 1.0
    least_gain: Share = 0.003
    assumed_doubt: NonNegative = 0.5

    def of_forms(self, models: CostModels) -> "Choice":
        """Raise the doubt for plans in other forms than columns; models of whole steps know what a form takes."""
        return self if models.of_whole_steps else replace(self, doubt=max(self.doubt, self.form_doubt))

    def among(self, costs: Sequence[Cost], task: Task, simulator: Simulator) -> tuple[int, int | None]:
        """Choose, of some plans of a task, the one expected to cost least whose gain is believed, or else the first.

        Plans are told apart by their number among `costs`. With it the one that is predicted to cost least, where that
        costs less.
        """
        judged = [with_assumed_margins(cost, simulator.models) for cost in costs]
        available = [0, *self.accepted(costs, task, simulator)]
        chosen = available[likeliest([judged[number] for number in available])]
        least = cheapest(costs)
        return chosen, least if costs[least].total_ms < costs[chosen].total_ms else None

    def accepted(self, costs: Sequence[Cost], task: Task, simulator: Simulator) -> list[int]:
        """List the plans of a task whose gain over the first one is believed, by their number among `costs`."""
        judged = [with_assumed_margins(cost, simulator.models) for cost in costs]
        first, compute, own = judged[0], simulator.models.compute, has_own_margins(costs[0])
        known = [number for number, cost in enumerate(judged) if cost.beyond <= first.beyond]
        gains = [number for number in known if judged[number].total_ms < first.total_ms * (1 - self.least_gain)]
        blind = not compute.spread_ms(LoadSets.alone(task.loads)).any() and (own or not compute.arithmetic)
        least_doubt = 0.0 if own else self.assumed_doubt
        return [number for number in gains if self._believes(first, judged[number], blind, least_doubt)]

    def _believes(self, before: Cost, after: Cost, blind: bool, least_doubt: float) -> bool:
        """Return True if a gain exceeds the margins, by models that are `blind` to their errors or not."""
        doubt = max(self.blind_doubt if blind else self.doubt, least_doubt)
        saved_ms = max(0.0, float((before.compute - after.compute).mean())) if blind else 0.0
        return before.expected_ms - after.expected_ms - saved_ms > doubt * (before.margin_ms + after.margin_ms)


def cheapest(costs: Sequence[Cost]) -> int:
    """Choose the plan that is predicted to cost least, the earliest one among equals."""
    return min(range(len(costs)), key=lambda number: costs[number].total_ms)


def likeliest(costs: Sequence[Cost]) -> int:
    """Choose the plan that is expected to cost least, or predicted to where no margin is known; the first of equals."""
    return min(range(len(costs)), key=lambda number: costs[number].likely_ms)


def declined_remark(plan: Plan, declined: Plan | None, simulator: Simulator) -> str | None:
    """Describe a plan that was declined for `plan`, of the same task; None if it doesn't save 1% or breaks limits.

    Both cost what they do as wholes, whatever tables of the task they were found for.
    """
    if declined is None or declined.violations:
        return None
    before, after = simulator.costs(plan.task, [plan, declined])
    if after.total_ms > before.total_ms * (1 - _WORTH_SAYING):
        return None
    if after.beyond > before.beyond:
        why = "no exchange that the models know is so lopsided"
    elif has_own_margins(before):
        why = "the gain is within the models' margins"
    else:
        assumed = with_assumed_margins(before, simulator.models).margin_ms / before.total_ms
        why = (
            f"the models know no margins, and the gain is within an assumed margin of {assumed:.0%} (as for their kind)"
        )
    return (
        f"a plan predicted {1 - after.total_ms / before.total_ms:.1%} cheaper was found ({after.total_ms:.2f} ms, not "
        f"{before.total_ms:.2f}), but it is not accepted: {why}; searcher.choice=null takes it"
    )
