"""Costs of plans: named parts of a step, by device, and the timeline over devices that the parts make."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import Name, NonNegative, as_fields
from neuroshard.words.model_choice import ModelChoice

COMPUTE, FORWARD, BACKWARD, INPUT = "compute", "forward", "backward", "input"
FRAMEWORK = "framework"  # begins the names of parts that TorchRec adds to a step
PARTS = (COMPUTE, FORWARD, BACKWARD)  # of every step, in the order in which they are added up and shown
_DEVIATIONS = 1.645  # half of an interval that holds 90%, if errors are normal
_STEPS = 400


class When(IntEnum):
    """A part's place in a step: on each device, parts begin when those of the places before have ended there.

    Attributes:
        BACKWARD: gradients are exchanged: all devices meet, and begin together.
        INPUT: what comes to a device before it can look anything up.
        COMPUTE: kernels: backward of one batch and forward of the next.
        FORWARD: embeddings are exchanged: all devices meet again, and wait for the last one.
        HOST: a device that has done all this sooner than its host has launched it waits for the host.
    """

    BACKWARD = 0
    INPUT = 1
    COMPUTE = 2
    FORWARD = 3
    HOST = 4


class KernelTimes(NamedTuple):
    """The kernel times and the work of D devices of B plans, by the K kernel calls in `CALLS`.

    Attributes:
        ms: (B, D, K) kernel times.
        spread_ms: (B, D, K) standard deviation of the times that the members of an ensemble predict; zeros if margins
            are unknown.
        kernels: (B, K) number of kernels of each call: one for each data type, and each width of sequence tables.
        counts: (B, D, C) counts of work, by `COUNTS`; C = 0 if no part of a step depends on counts.
    """

    ms: FloatArray
    spread_ms: FloatArray
    kernels: FloatArray
    counts: FloatArray

    def plus(self, other: "KernelTimes") -> "KernelTimes":
        """Add the kernel times and the work of other calls on the same devices."""
        return KernelTimes(*(own + its for own, its in zip(self, other, strict=True)))


class Part(NamedTuple):
    """One named thing that D devices spend time on in a step.

    Attributes:
        name: as models, margins and reports have it.
        when: its place in the step.
        ms: (..., D), waiting for others included.
        margin: (..., D) half the width of an interval that is meant to hold 90% of measurements; None if unknown.
        counts: whether the step takes so much longer; else something hides it, and it is only shown.
        about: what it is, for people; where it doesn't count.
        hides: what share of errors in the parts before it shows no more where it takes any time.
    """

    name: str
    when: When
    ms: FloatArray
    margin: FloatArray | None = None
    counts: bool = True
    about: str = ""
    hides: float = 0.0


# A part's place in the step, and how it comes about when each device is ready for it, (..., D) ms after the meeting
# that opens the step.
Work = tuple[When, Callable[[FloatArray], Part]]


@dataclass(frozen=True, eq=False)
class Step:
    """A timeline over D devices, of one plan, (D,), or of B plans, (B, D).

    The papers' maximum of sums is the case with two meetings: all devices begin the exchange of gradients together,
    and wait for the last one in that of embeddings.
    """

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, works: Sequence[Work], shape: tuple[int, ...]) -> "Step":
        """Run works in the order of their places in a step, on devices (..., D); parts are in the order of `works`."""
        ready, parts = np.zeros(shape), dict[int, Part]()
        for number in sorted(range(len(works)), key=lambda number: works[number][0]):
            parts[number] = part = works[number][1](ready)
            ready = ready + part.ms if part.counts else ready
        return cls(tuple(parts[number] for number in range(len(works))))

    def __getitem__(self, plan: int) -> "Step":
        """Pick the step of one of B plans."""
        margins = (None if part.margin is None else part.margin[plan] for part in self.parts)
        its = (part._replace(ms=part.ms[plan], margin=one) for part, one in zip(self.parts, margins, strict=True))
        return Step(tuple(its))

    def ms(self, name: str) -> FloatArray:
        """Return the (..., D) ms of a part by its name.

        Raises:
            KeyError: the step has no part of that name.
        """
        return {part.name: part.ms for part in self.parts}[name]

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
        """The parts that count: they make the step longer."""
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
        """(..., D) half the width of an interval around every device's sum; None if a part's margin isn't known.

        Errors of parts are taken as independent. Devices wait for the last of them at the last meeting, so the errors
        of that device before the meeting count for all devices.
        """
        squares = [(part.when, part.margin**2) for part in self.counted if part.margin is not None]
        if len(squares) < len(self.counted):
            return None
        last = self.ready_ms.argmax(axis=-1)[..., None]
        before = _sum(square for when, square in squares if when < When.FORWARD)
        after, of_hosts = (_sum(square for at, square in squares if at is when) for when in (When.FORWARD, When.HOST))
        shown = 1.0 - _sum(np.where(part.ms > 0, part.hides, 0.0) for part in self.counted)
        return np.sqrt((np.take_along_axis(before, last, axis=-1) + after) * shown**2 + of_hosts)


def _sum(values: Iterable[FloatArray]) -> FloatArray:
    return sum(values, np.zeros(()))


@dataclass(frozen=True, eq=False)
class Cost(Step):
    """Milliseconds of each part of a plan's step on each device, (D,), and the cost of the plan.

    A step runs backward communication, then compute (fused backward and forward), then forward communication;
    a device's cost is their sum, the plan's cost the largest of them ("embedding cost" in NeuroShard, section 2).
    Parts that don't count, such as an input dist that a pipeline hides, are only shown.

    `caveat` is shown wherever the cost is shown; it is None for costs that were measured, or predicted by models that
    were measured on such a machine.

    `outside_training_range` is the imbalance of the plan's all-to-alls relative to the largest imbalance in the models'
    training range: above 1 if it is larger, else 1. It is 1 too if that range is not known.
    """

    caveat: str | None = None
    outside_training_range: float = 1.0

    @property
    def scope(self) -> str:
        """The kinds of work that the cost counts, in a few words, such as "kernels and exchanges"."""
        return ", ".join(dict.fromkeys(map(_scope_of, self.counted)))

    @property
    def total_ms(self) -> float:
        """The plan's cost, ms: the sum of the straggler's parts."""
        return float(np.max(self.device_ms))

    @property
    def margin_ms(self) -> float:
        """The margin of the plan's cost, ms, which is the straggler's; NaN if it isn't known."""
        return float("nan") if self.margin is None else float(self.margin[np.argmax(self.device_ms)])

    @property
    def likely_ms(self) -> float:
        """The cost by which plans are compared: the expected cost if models know margins, else the predicted one."""
        return self.total_ms if self.margin is None else self.expected_ms

    @property
    def expected_ms(self) -> float:
        """The plan's cost, ms, with less bias than `total_ms`, which is too low; NaN if no margin is known.

        A step waits for its true straggler. The predictions of devices have independent errors, so the true straggler
        is slower on average than the predicted straggler, and more so the more devices have nearly the same predicted
        cost. Time that devices wait for their hosts hides this.
        """
        if self.margin is None:
            return float("nan")
        if self.total_ms <= self.waited_ms:
            return self.total_ms
        ready_ms = self.ready_ms
        deviation_ms = ready_ms * (self.margin_ms / (self.total_ms - self.waited_ms) / _DEVIATIONS)
        slower_ms = self.total_ms + _expected_largest(ready_ms, deviation_ms) - float(np.max(ready_ms))
        return max(slower_ms - self.waited_ms, self.total_ms)

    @property
    def waited_ms(self) -> float:
        """The ms that all devices wait for their hosts at the end of a step."""
        return float(sum(part.ms.min() for part in self.counted if part.when is When.HOST))

    def __str__(self) -> str:
        rows = [self._row(device) for device in range(len(self.device_ms))]
        margin = "" if self.margin is None else f" +- {self.margin_ms:.3f}"
        expected = "" if self.margin is None else f", expected_ms {self.expected_ms:.3f}"
        caveat = "" if self.caveat is None else f" ({self.caveat})"
        return "\n".join([*rows, f"total_ms {self.total_ms:.3f}{margin}{expected}{caveat}: {self.scope}"])

    def _row(self, device: int) -> str:
        told = [(part.counts, f"{part.name} {part.ms[device]:.3f}") for part in self.parts]
        counted = " + ".join(text for counts, text in told if counts)
        beside = "".join(f" ({text}, not counted)" for counts, text in told if not counts)
        return f"device {device}: {counted} = {self.device_ms[device]:.3f} ms{beside}"


def _scope_of(part: Part) -> str:
    """Name the kind of work that a part of a cost counts."""
    if part.when is When.HOST:
        return part.about
    if part.name.startswith(f"{FRAMEWORK}."):
        return "framework overhead"
    return {INPUT: "input dist", **dict.fromkeys(PARTS, "kernels and exchanges")}.get(part.name, part.name)


def described_expectation(total_ms: float, expected_ms: float) -> str | None:
    """Return the expected cost as text; None if it isn't known or rounds to the predicted cost."""
    if np.isnan(expected_ms) or f"{expected_ms:.2f}" == f"{total_ms:.2f}":
        return None
    return (
        f"{expected_ms:.2f} ms, higher than predicted because prediction errors make some device slower than predicted"
    )


def described_wait(waited_ms: float) -> str | None:
    """Return the time that devices wait for their hosts, as text; None if the time rounds to zero."""
    if f"{waited_ms:.2f}" == "0.00":
        return None
    return (
        f"devices wait {waited_ms:.2f} ms until the host has launched all their work; a dense network hides this wait "
        "(dense_ms=8 predicts the cost with a dense network of 8 ms)"
    )


def _expected_largest(mean: FloatArray, deviation: FloatArray) -> float:
    """Compute the mean of the largest of independent normal numbers with these means and deviations, (D,)."""
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
        models: name or path of the cost models, and the settings that they were loaded with; None for models made in
            Python.
        cost_ms: the plan's cost.
        margin_ms: half the width of its 90% interval; None where the models know none.
        expected_ms: the cost to be expected, as `Cost.expected_ms` has it; None where the models know no margin.
        caveat: text that is shown wherever the cost is shown (`Cost.caveat`); None if there is no caveat.
        counts_input: whether the exchange of indices, which a pipeline hides, counts as well.
        scope: what the cost counts, in a few words (`Cost.scope`); None in files from before that was known.
    """

    models: ModelChoice | None
    cost_ms: NonNegative
    margin_ms: NonNegative | None = None
    expected_ms: NonNegative | None = None
    caveat: Name | None = None
    counts_input: bool = False
    scope: Name | None = None

    def to_json(self) -> dict[str, Any]:
        """Convert the prediction to JSON-ready fields, without rare ones that are as they are by default."""
        models = None if self.models is None else self.models.fields
        return as_fields(self, ("expected_ms", "caveat", "counts_input", "scope")) | {"models": models}

    def __str__(self) -> str:
        margin = "" if self.margin_ms is None else f" ± {self.margin_ms:.2f}"
        told = None if self.expected_ms is None else described_expectation(self.cost_ms, self.expected_ms)
        expected = "" if told is None else f"; expected {told}"
        caveat = "" if self.caveat is None else f" ({self.caveat})"
        scope = "" if self.scope is None else f" for {self.scope}"
        by = "models without a name" if self.models is None else self.models
        return f"{self.cost_ms:.2f}{margin} ms{scope}, predicted by {by}{caveat}{expected}"
