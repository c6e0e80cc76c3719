"""What a plan was predicted to cost, and by which models: a plan keeps it, so that nobody compares it with others'."""

from dataclasses import dataclass

from neuroshard.checked import checked
from neuroshard.cost import described_expectation
from neuroshard.schema import Name, NonNegative


@dataclass(frozen=True)
@checked
class Prediction:
    """A plan's predicted cost.

    Attributes:
        models: name or path of the cost models, as `CostModels.load` takes it; None for models made in Python.
        cost_ms: the plan's cost.
        margin_ms: half the width of its 90% interval; None where the models know none.
        expected_ms: the cost to be expected, as `Cost.expected_ms` has it; None where the models know no margin.
        caveat: what is said wherever the cost is shown (`Cost.caveat`); None if nothing is.
    """

    models: Name | None
    cost_ms: NonNegative
    margin_ms: NonNegative | None = None
    expected_ms: NonNegative | None = None
    caveat: Name | None = None

    def __str__(self) -> str:
        margin = "" if self.margin_ms is None else f" ± {self.margin_ms:.2f}"
        told = None if self.expected_ms is None else described_expectation(self.cost_ms, self.expected_ms)
        expected = "" if told is None else f"; expected {told}"
        caveat = "" if self.caveat is None else f" ({self.caveat})"
        return f"{self.cost_ms:.2f}{margin} ms predicted by {self.models or 'models without a name'}{caveat}{expected}"
