"""What a plan costs, by device and part."""

from dataclasses import dataclass

import numpy as np

from neuroshard.cost.parts import Step
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import Name, NonNegative

_DEVIATIONS = 1.645  # half of an interval that holds 90%, if errors are normal
_STEPS = 400


@dataclass(frozen=True, eq=False)
class Cost(Step):
    """Milliseconds of each part of a plan's step on each device, (D,), and what the plan costs by them.

    A step runs backward communication, then compute (fused backward and forward), then forward communication;
    a device's cost is their sum, the plan's cost the largest of them ("embedding cost" in NeuroShard, section 2).
    Parts that don't count, such as the exchange of indices that a pipeline hides, are only shown.

    `caveat` is what is said wherever the cost is shown; None for costs that were measured, or predicted by models that
    were measured on this kind of machine.

    `beyond` says how many times as lopsided its all-to-alls are as the most lopsided ones that the models were fitted
    to; 1 where they aren't, and where that isn't known.
    """

    caveat: str | None = None
    beyond: float = 1.0

    @property
    def total_ms(self) -> float:
        """Return the plan's cost, ms: what the straggler's parts add up to."""
        return float(np.max(self.device_ms))

    @property
    def margin_ms(self) -> float:
        """Return the margin of the plan's cost, ms: the straggler's; NaN where nothing is known of it."""
        return float("nan") if self.margin is None else float(self.margin[np.argmax(self.device_ms)])

    @property
    def likely_ms(self) -> float:
        """What the plan is judged by: the expected cost where the models know margins, else the predicted one."""
        return self.total_ms if self.margin is None else self.expected_ms

    @property
    def expected_ms(self) -> float:
        """Return the plan's cost, ms, with less bias than `total_ms`, which is too low; NaN where no margin is known.

        A plan waits for its true straggler, and with every device's prediction off by something of its own, that one
        is slower on average than the predicted straggler: the more devices are predicted to be about as slow, the
        more so.
        """
        if self.margin is None:
            return float("nan")
        if self.total_ms <= 0:
            return self.total_ms
        ready_ms = self.ready_ms
        deviation_ms = ready_ms * (self.margin_ms / self.total_ms / _DEVIATIONS)
        return self.total_ms + _expected_largest(ready_ms, deviation_ms) - float(np.max(ready_ms))

    def __str__(self) -> str:
        rows = [self._row(device) for device in range(len(self.device_ms))]
        margin = "" if self.margin is None else f" +- {self.margin_ms:.3f}"
        expected = "" if self.margin is None else f", expected_ms {self.expected_ms:.3f}"
        caveat = "" if self.caveat is None else f" ({self.caveat})"
        return "\n".join([*rows, f"total_ms {self.total_ms:.3f}{margin}{expected}{caveat}"])

    def _row(self, device: int) -> str:
        told = [(part.counts, f"{part.name} {part.ms[device]:.3f}") for part in self.parts]
        counted = " + ".join(text for counts, text in told if counts)
        beside = "".join(f" ({text}, not counted)" for counts, text in told if not counts)
        return f"device {device}: {counted} = {self.device_ms[device]:.3f} ms{beside}"


def described_expectation(total_ms: float, expected_ms: float) -> str | None:
    """What a predicted cost is expected to be, for people; None where that isn't known, or as good as the same."""
    if np.isnan(expected_ms) or f"{expected_ms:.2f}" == f"{total_ms:.2f}":
        return None
    return f"{expected_ms:.2f} ms, for a step waits for whichever device turns out to be the straggler"


def _expected_largest(mean: FloatArray, deviation: FloatArray) -> float:
    """Mean of the largest of independent normal numbers with these means and standard deviations, (D,)."""
    from scipy.special import ndtr  # slow to import: only where it is used

    scatter = np.maximum(deviation, 1e-9 * np.abs(mean).max())
    low, high = float(mean.max() - 8 * scatter.max()), float(mean.max() + 8 * scatter.max())
    points = np.linspace(low, high, _STEPS)
    below = ndtr((points[:, None] - mean) / scatter).prod(axis=1)
    return high - float(np.trapezoid(below, points))


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
