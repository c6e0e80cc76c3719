"""The rule by which a search accepts or rejects a plan that is predicted to be cheaper: the gain must exceed a margin
for the errors of the cost models.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import NamedTuple

from neuroshard.cost.cost import Cost
from neuroshard.cost.loads import LoadSets
from neuroshard.models import CostModels
from neuroshard.models.assumed import has_own_margins, with_assumed_margins
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.schema import NonNegative, Share
from neuroshard.tasks.task import Task

_WORTH_SAYING = 0.01  # smallest saving, as a share of the step, for which a user would change a setting


@dataclass(frozen=True)
@checked
class Acceptance:
    """The rule by which a search chooses between a first plan and other plans. Another plan is accepted if the
    predicted gain over the first plan exceeds a margin. Among the first plan and the accepted plans, the search takes
    the plan with the lowest expected cost. The expected cost is the predicted cost plus a correction, because predicted
    costs are too low on average.

    A search for lower predictions finds better plans, and errors of the models as well. Expected costs
    (`Cost.expected_ms`) count little of what is gained by balancing devices more finely than they are known. But they
    also favour plans that only look better known: where a plan is expected to cost less and predicted to cost more, it
    truly costs more (docs/results/accepting.md). So a gain must be both.

    Models without margins may be off by as much as others of their kind. The search assumes margins for them
    (`neuroshard/models/assumed.py`), and a gain must exceed a fraction of the assumed margins.

    Exchanges whose imbalance is outside the training range look cheaper than they are. So plans with such exchanges are
    left out, unless the first plan's exchanges are as unbalanced.

    Attributes:
        margin_fraction: fraction of both plans' expected prediction errors together that the predicted gain of a new
            plan must exceed; larger values accept fewer plans; for ensembles of cost models; 0 requires only min_gain
            and a lower expected cost. Margins of ensembles distinguish tables that the models know from others.
        single_model_margin_fraction: fraction of both plans' expected prediction errors together that the predicted
            gain of a new plan must exceed; larger values accept fewer plans; for cost models that are not ensembles,
            such as the papers' models. Their margins do not grow away from the data that they were fitted to; at 1 the
            two intervals must not overlap. By such models a gain counts only as far as it is not a gain of all devices
            together: the same tables rarely cost less in all, and such models are led astray there most. Analytic
            models, whose margins are assumed, are not among these models.
        sharding_type_margin_fraction: as margin_fraction (fraction of both plans' prediction errors that the gain must
            exceed), but for plans with row-wise or data-parallel tables, whose costs are often predicted too low; the
            larger of the two fractions applies; ignored if the models predict whole training steps. At 1 the two
            intervals must not overlap, which is right wherever steps were measured (docs/explanation/whole_steps.md).
            Models of whole steps (framework=torchrec) ignore it.
        min_gain: minimum predicted gain, as a fraction of the current plan's cost (0.003 is 0.3%), at which the search
            accepts a new plan; smaller predicted gains do not materialise on average (docs/results/accepting.md).
        assumed_margin_fraction: fraction of both plans' prediction errors together that the predicted gain of a new
            plan must exceed; larger values accept fewer plans; for cost models without measured errors, such as
            analytic (roofline) models, whose errors are assumed from similar measured models. At 0.5 the search accepts
            gains above the mean of both plans' margins (docs/explanation/trust.md).
    """

    margin_fraction: NonNegative = 0.0
    single_model_margin_fraction: NonNegative = 1.0
    sharding_type_margin_fraction: NonNegative = 1.0
    min_gain: Share = 0.003
    assumed_margin_fraction: NonNegative = 0.5

    def of_forms(self, models: CostModels) -> "Acceptance":
        """Return the acceptance rule for plans that change the sharding types of tables. In this rule,
        `margin_fraction` is at least `sharding_type_margin_fraction`, so that a plan may need a larger gain.

        If the models predict whole steps, `self` is returned unchanged.
        """
        if models.of_whole_steps:
            return self
        return replace(self, margin_fraction=max(self.margin_fraction, self.sharding_type_margin_fraction))

    def assess(self, costs: Sequence[Cost], task: Task, simulator: Simulator) -> list["Assessment"]:
        """Return an assessment for each of several plans of a task, given the costs of the plans. The first plan is
        accepted. Each other plan is accepted if the predicted gain over the first plan is large enough by this rule.
        """
        judged = [with_assumed_margins(cost, simulator.models) for cost in costs]
        kind = ModelKind.of(costs[0], task, simulator)
        single, fraction = kind is ModelKind.SINGLE, self._fraction(kind, has_own_margins(costs[0]))
        reasons = (self._reason(judged[0], cost, single, fraction) for cost in judged[1:])
        return [Assessment.of(cost, reason) for cost, reason in zip(judged, (None, *reasons), strict=True)]

    def may_accept(self, first: Cost, least_ms: float, task: Task, simulator: Simulator) -> bool:
        """Return True if this rule may accept a plan that is cheaper than the first plan. If not, a search for cheaper
        plans is a waste of time. `first` is the cost of the first plan. `least_ms` is a lower bound of the expected
        costs of all other plans.

        The margin of a cheaper plan is taken to be the same share of its cost as the first plan's margin is. If gains
        need not exceed margins, the result is True.
        """
        judged = with_assumed_margins(first, simulator.models)
        fraction = self._fraction(ModelKind.of(first, task, simulator), has_own_margins(first))
        margins_ms = judged.margin_ms * (1 + least_ms / judged.total_ms)
        return not fraction or judged.expected_ms - least_ms > fraction * margins_ms

    def _fraction(self, kind: "ModelKind", own: bool) -> float:
        """Return the fraction of the error margins that the gain of a new plan must exceed. The error margins of the
        first plan and the new plan are added up. `kind` is the kind of the compute model. `own` is True if the cost
        models have error margins of their own for kernels, forward exchanges and backward exchanges.
        """
        of_kind = self.single_model_margin_fraction if kind is ModelKind.SINGLE else self.margin_fraction
        return max(of_kind, 0.0 if own else self.assumed_margin_fraction)

    def _reason(self, before: Cost, after: Cost, single: bool, fraction: float) -> "Rejection | None":
        """Return the reason to reject a new plan, or None to accept the plan. `before` is the cost of the first plan,
        and `after` is the cost of the new plan. The gain must exceed `fraction` of the sum of both error margins.

        If `single` is True, a lower mean compute time of all devices does not count as a gain.
        """
        if after.outside_training_range > before.outside_training_range:
            return Rejection.OUTSIDE_TRAINING_RANGE
        if after.total_ms >= before.total_ms * (1 - self.min_gain):
            return Rejection.SMALL_GAIN
        saved_ms = max(0.0, float((before.compute - after.compute).mean())) if single else 0.0
        exceeds = before.expected_ms - after.expected_ms - saved_ms > fraction * (before.margin_ms + after.margin_ms)
        return None if exceeds else Rejection.WITHIN_MARGINS


class ModelKind(Enum):
    """The kinds of compute models. A search accepts a new plan if the predicted gain exceeds a margin, and this margin
    depends on the kind.

    Attributes:
        SINGLE: one model that was fitted to measurements.
        ENSEMBLE: several such models, whose disagreement is known.
        ANALYTIC: formulas, without margins of their own.
    """

    SINGLE = "single"
    ENSEMBLE = "ensemble"
    ANALYTIC = "analytic"

    @classmethod
    def of(cls, cost: Cost, task: Task, simulator: Simulator) -> "ModelKind":
        """Return the kind of the simulator's compute model: a single fitted model, an ensemble, or formulas. `cost` is
        the predicted cost of any plan of the task. Formulas count as a fitted model if this cost has error margins.
        """
        compute = simulator.models.compute
        if compute.spread_ms(LoadSets.alone(task.loads)).any():
            return cls.ENSEMBLE
        return cls.ANALYTIC if compute.arithmetic and not has_own_margins(cost) else cls.SINGLE


class Rejection(StrEnum):
    """The reason for which a search rejects a plan."""

    OUTSIDE_TRAINING_RANGE = "its exchanges are more unbalanced than in the training data of the cost models"
    SMALL_GAIN = "its predicted gain is too small"
    WITHIN_MARGINS = "its predicted gain is within the error margins"


class Assessment(NamedTuple):
    """A plan's predicted cost, error margin and expected cost, and the reason for which the search rejects the plan, if
    it does. The expected cost is the predicted cost plus a correction, because predicted costs are too low on average.

    Attributes:
        predicted_ms: predicted cost.
        margin_ms: margin of the predicted cost; NaN if no margin is known.
        expected_ms: expected cost; the predicted cost if no margin is known.
        rejected: why the search rejects the plan; None if the search accepts it.
    """

    predicted_ms: float
    margin_ms: float
    expected_ms: float
    rejected: Rejection | None = None

    @classmethod
    def of(cls, cost: Cost, rejected: Rejection | None = None) -> "Assessment":
        """Return the assessment of a plan, given the cost of the plan. `rejected` is the reason to reject the plan, or
        None if the plan is accepted.
        """
        return cls(cost.total_ms, cost.margin_ms, cost.likely_ms, rejected)


def assess(acceptance: Acceptance | None, costs: Sequence[Cost], task: Task, simulator: Simulator) -> list[Assessment]:
    """Return an assessment for each of several plans of a task, by an acceptance rule. If the rule is None, every plan
    is accepted, and the expected cost of a plan is the predicted cost.
    """
    if acceptance is None:
        return [Assessment(cost.total_ms, cost.margin_ms, cost.total_ms) for cost in costs]
    return acceptance.assess(costs, task, simulator)


def choose(assessments: Sequence[Assessment]) -> tuple[int, int | None]:
    """Return the index of the chosen plan, and the index of the plan with the lowest predicted cost. The chosen plan
    is the accepted plan with the lowest expected cost. The second index is None if no plan has a lower predicted cost
    than the chosen plan.

    The expected cost is the predicted cost plus a correction, because predicted costs are too low on average.
    """
    accepted = [number for number, assessment in enumerate(assessments) if assessment.rejected is None]
    chosen = min(accepted, key=lambda number: assessments[number].expected_ms)
    least = min(range(len(assessments)), key=lambda number: assessments[number].predicted_ms)
    return chosen, least if assessments[least].predicted_ms < assessments[chosen].predicted_ms else None


def cheapest(costs: Sequence[Cost]) -> int:
    """Return the index of the plan with the lowest predicted cost; the first such index if plans cost the same."""
    return min(range(len(costs)), key=lambda number: costs[number].total_ms)


def likeliest(costs: Sequence[Cost]) -> int:
    """Return the index of the plan with the lowest expected cost; the first such index if several plans have the same
    expected cost. The expected cost is the predicted cost plus a correction, because predicted costs are too low on
    average.

    A plan without a known margin is expected to have the predicted cost.
    """
    return min(range(len(costs)), key=lambda number: costs[number].likely_ms)


def rejected_remark(plan: Plan, rejected: Plan | None, simulator: Simulator) -> Message | None:
    """Return a message that the search rejected a cheaper plan, and why. `plan` is the plan that the search found, and
    `rejected` is the cheaper plan. Return None if no message is needed.

    No message is needed in three cases: `rejected` is None; `rejected` breaks constraints or memory limits; or the
    predicted cost of `rejected` is less than 1% below the predicted cost of `plan`.

    Both are plans of the same task. The compared costs are the costs of all tables of the task.
    """
    if rejected is None or rejected.violations:
        return None
    before, after = simulator.costs(plan.task, [plan, rejected])
    if after.total_ms > before.total_ms * (1 - _WORTH_SAYING):
        return None
    if after.outside_training_range > before.outside_training_range:
        why = "the imbalance of the rejected plan's exchanges is outside the training range of the cost models"
    elif has_own_margins(before):
        why = "the gain is within the error margins of the cost models"
    else:
        assumed = with_assumed_margins(before, simulator.models).margin_ms / before.total_ms
        why = f"the cost models have no error margins, and the gain is within the assumed margin ({assumed:.0%})"
    return Message(
        "search-cheaper-plan-rejected",
        f"the search rejected a plan whose predicted cost is {1 - after.total_ms / before.total_ms:.1%} lower "
        f"({after.total_ms:.2f} ms instead of {before.total_ms:.2f} ms)",
        limit=why,
        remedy="Set searcher.acceptance=null to accept every predicted gain",
    )
