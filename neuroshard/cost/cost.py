"""Costs of plans: the named parts of a step on each device, and the timeline of a step over all devices."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from neuroshard.plumbing.arrays import FloatArray, evenly
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import Name, NonNegative, as_fields
from neuroshard.words.model_choice import ModelChoice

COMPUTE, FORWARD, BACKWARD, INPUT = "compute", "forward", "backward", "input"
FRAMEWORK = "framework"  # prefix of the names of parts for TorchRec's overhead
PARTS = (COMPUTE, FORWARD, BACKWARD)  # the parts of every step, in the order in which they are added up and shown
_DEVIATIONS = 1.645  # standard deviations in half the width of a 90% interval of a normal distribution
_STEPS = 400  # number of points for numerical integration


class When(IntEnum):
    """The positions in the time order of a training step. Each part of a step, such as the output dist, has a position.
    On each device, a part begins when all parts at earlier positions have ended.

    Attributes:
        BACKWARD: backward exchange of gradients: all devices meet, and begin together.
        INPUT: work before the lookups, such as the input dist.
        COMPUTE: kernels: the backward pass of one batch and the forward pass of the next batch.
        FORWARD: output dist: all devices meet again, and wait for the last device.
        HOST: waiting for the host, if a device ends its work before the host has launched all of it.
    """

    BACKWARD = 0
    INPUT = 1
    COMPUTE = 2
    FORWARD = 3
    HOST = 4


class KernelTimes(NamedTuple):
    """Predicted kernel times of B plans on D devices, for each of K types of kernel calls.
    The types differ in the sharding type and the memory tier of the tables, and in whether the tables are pooled.
    `CALLS` lists all types, in order.

    Attributes:
        ms: (B, D, K) kernel time in ms.
        spread_ms: (B, D, K) disagreement between the members of a model ensemble, in ms; zeros if it is not needed.
        kernels: (B, K) number of kernels of each call: one for each data type, and each width of sequence tables.
        counts: (B, D, C) the counts of `COUNTS`; C = 0 if no part of the step depends on counts.
    """

    ms: FloatArray
    spread_ms: FloatArray
    kernels: FloatArray
    counts: FloatArray

    def plus(self, other: "KernelTimes") -> "KernelTimes":
        """Return the sum of this object and `other`, field by field. Both objects are for the same plans on the same
        devices, but for different tables. No kernel call has tables of both objects.
        """
        return KernelTimes(*(these + more for these, more in zip(self, other, strict=True)))

    @property
    def evenly(self) -> "KernelTimes":
        """The kernel times if each plan's work were spread evenly: every device gets the mean over the D devices."""
        return self._replace(ms=evenly(self.ms), spread_ms=evenly(self.spread_ms), counts=evenly(self.counts))


class Part(NamedTuple):
    """One named kind of work in a step, with the time that D devices spend on it.

    Attributes:
        name: name of the part in models, margins and reports.
        when: place of the part in the step.
        ms: (..., D) time on each device in ms, including waiting for other devices.
        margin: (..., D) half the width of an interval that should contain 90% of measurements; None if unknown.
        counts: True if the part makes the step longer; False if other work hides the part, so it is only shown.
        about: text for people about a part that does not count, or about the wait for hosts.
        hides: share of the errors of earlier parts that this part hides on devices where its time is above 0.
    """

    name: str
    when: When
    ms: FloatArray
    margin: FloatArray | None = None
    counts: bool = True
    about: str = ""
    hides: float = 0.0


# A part that is not yet computed: its place in the step, and a function that returns the part. The argument of the
# function is the time at which each device is ready for the part, (..., D) ms after the start of the step.
Work = tuple[When, Callable[[FloatArray], Part]]


@dataclass(frozen=True, eq=False)
class Step:
    """The timeline of a step over D devices, for one plan (arrays (D,)) or B plans (arrays (B, D)).

    All devices begin the backward exchange together, and wait for the last device in the output dist. With these two
    meetings, the cost is the maximum over devices of the sum of parts, as in the papers.
    """

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, works: Sequence[Work], shape: tuple[int, ...]) -> "Step":
        """Compute the time of each part of a step (such as the kernels and the output dist), and return the step.
        `works` has a pair for each part: the position of the part in the step (`When`), and a function that computes
        the part. The times of each part have the shape `shape`, which is (..., D) for D devices.

        Works are computed in the order of their places in the step: each begins on a device when the counted parts
        before it have ended there. The parts of the result are in the order of `works`.
        """
        ready, parts = np.zeros(shape), dict[int, Part]()
        for number in sorted(range(len(works)), key=lambda number: works[number][0]):
            parts[number] = part = works[number][1](ready)
            ready = ready + part.ms if part.counts else ready
        return cls(tuple(parts[number] for number in range(len(works))))

    def __getitem__(self, plan: int) -> "Step":
        """Return the timeline of a single plan out of the B plans; `plan` is the index of the plan."""
        margins = (None if part.margin is None else part.margin[plan] for part in self.parts)
        pairs = zip(self.parts, margins, strict=True)
        return Step(tuple(part._replace(ms=part.ms[plan], margin=margin) for part, margin in pairs))

    def ms(self, name: str) -> FloatArray:
        """Return the time of the part with this name on each device, (..., D) ms.

        Raises:
            KeyError: the step has no part of that name.
        """
        return {part.name: part.ms for part in self.parts}[name]

    @property
    def compute(self) -> FloatArray:
        """(..., D) kernel time of each of D devices in ms."""
        return self.ms(COMPUTE)

    @property
    def forward(self) -> FloatArray:
        """(..., D) time of the forward exchange (output dist) on each of D devices in ms."""
        return self.ms(FORWARD)

    @property
    def backward(self) -> FloatArray:
        """(..., D) time of the backward exchange (gradients of the outputs) on each of D devices in ms."""
        return self.ms(BACKWARD)

    @property
    def counted(self) -> tuple[Part, ...]:
        """The parts of the step that are counted as cost, because these parts make the step longer."""
        return tuple(part for part in self.parts if part.counts)

    @property
    def device_ms(self) -> FloatArray:
        """(..., D) cost of each device in ms: the sum of the times of the parts in `counted`."""
        return _sum(part.ms for part in self.counted)

    @property
    def ready_ms(self) -> FloatArray:
        """(..., D) time in ms from the start of the step until each of D devices is ready for the output dist.
        The time is the sum of the device's counted parts before the output dist, such as the kernels.
        """
        return _sum(part.ms for part in self.counted if part.when < When.FORWARD)

    @property
    def margin(self) -> FloatArray | None:
        """(..., D) margin of each device's cost in ms: half the width of a 90% interval around the cost.
        None if the margin of a part that belongs to the cost is unknown.

        The errors of parts are assumed to be independent, so their squares are added. In the output dist all devices
        wait for the last device, so the errors of this device before the output dist count for all devices.
        """
        squares = [(part.when, part.margin**2) for part in self.counted if part.margin is not None]
        if len(squares) < len(self.counted):
            return None
        last = self.ready_ms.argmax(axis=-1)[..., None]
        before = _sum(square for when, square in squares if when < When.FORWARD)
        after, of_hosts = (_sum(square for at, square in squares if at is when) for when in (When.FORWARD, When.HOST))
        visible = 1.0 - _sum(np.where(part.ms > 0, part.hides, 0.0) for part in self.counted)
        return np.sqrt((np.take_along_axis(before, last, axis=-1) + after) * visible**2 + of_hosts)


def _sum(values: Iterable[FloatArray]) -> FloatArray:
    return sum(values, np.zeros(()))


@dataclass(frozen=True, eq=False)
class Cost(Step):
    """The cost of one plan: the time of each part of a training step on each device, (D,) ms.

    A step runs the backward exchange, then kernels (fused backward and forward), then the forward exchange. The cost of
    a device is the sum of these parts, and the cost of the plan is the largest cost of a device ("embedding cost" in
    NeuroShard, section 2). Parts that do not count, such as an input dist that a pipeline hides, are only shown.

    `caveat` is a text that is shown wherever the cost is shown. It is None for measured costs, and for costs predicted
    by models that were measured on this type of machine.

    `outside_training_range` is the imbalance of the plan's all-to-alls divided by the largest imbalance in the models'
    training data, but at least 1. It is 1 if the training range is unknown.
    """

    caveat: str | None = None
    outside_training_range: float = 1.0

    @property
    def scope(self) -> str:
        """The kinds of work that the cost includes, as text such as "kernels and exchanges"."""
        return ", ".join(dict.fromkeys(map(_scope_of, self.counted)))

    @property
    def total_ms(self) -> float:
        """The cost of the plan in ms: the cost of the slowest device, the straggler.
        The cost of a device is the sum of the times of all parts that make the step longer.
        """
        return float(np.max(self.device_ms))

    @property
    def margin_ms(self) -> float:
        """The margin of the plan's cost in ms: half the width of the 90% interval for the cost of the slowest device.
        NaN if this margin is unknown.
        """
        return float("nan") if self.margin is None else float(self.margin[np.argmax(self.device_ms)])

    @property
    def likely_ms(self) -> float:
        """The cost in ms by which plans are compared: `expected_ms` if error margins are known, else `total_ms`.
        `total_ms` is the predicted cost, which is too low on average. `expected_ms` is corrected for this bias.
        """
        return self.total_ms if self.margin is None else self.expected_ms

    @property
    def expected_ms(self) -> float:
        """The expected cost of the plan in ms; NaN if the margin is unknown.
        On average, `total_ms` is lower than the real cost. The expected cost is corrected for this bias.

        A step waits for its true straggler. The predictions for devices have independent errors, so on average the true
        straggler is slower than the predicted straggler. The difference is larger if more devices have nearly the same
        predicted cost. It is E[max over d of N(ready_d, sigma_d)] - max over d of ready_d, where sigma_d is in
        proportion to `ready_ms`. Time that devices wait for their hosts hides a part of the difference.
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
        """The time in ms that devices wait for their hosts at the end of a step: the shortest wait of any device. The
        time is 0 if the cost does not include such waits.
        """
        return float(sum(part.ms.min() for part in self.counted if part.when is When.HOST))

    def __str__(self) -> str:
        rows = [self._row(device) for device in range(len(self.device_ms))]
        margin = "" if self.margin is None else f" +- {self.margin_ms:.3f}"
        expected = "" if self.margin is None else f", expected_ms {self.expected_ms:.3f}"
        caveat = "" if self.caveat is None else f" ({self.caveat})"
        return "\n".join([*rows, f"total_ms {self.total_ms:.3f}{margin}{expected}{caveat}: {self.scope}"])

    def _row(self, device: int) -> str:
        texts = [(part.counts, f"{part.name} {part.ms[device]:.3f}") for part in self.parts]
        counted = " + ".join(text for counts, text in texts if counts)
        hidden = "".join(f" ({text}, not counted)" for counts, text in texts if not counts)
        return f"device {device}: {counted} = {self.device_ms[device]:.3f} ms{hidden}"


def _scope_of(part: Part) -> str:
    """Return a text for the kind of work of one part of a step, such as "input dist" or "kernels and exchanges".
    `Cost.scope` lists these texts.
    """
    if part.when is When.HOST:
        return part.about
    if part.name.startswith(f"{FRAMEWORK}."):
        return "framework overhead"
    return {INPUT: "input dist", **dict.fromkeys(PARTS, "kernels and exchanges")}.get(part.name, part.name)


def described_expectation(total_ms: float, expected_ms: float) -> str | None:
    """Return a text for users about the expected cost `expected_ms` of a plan, which is corrected for prediction
    errors. Return None if `expected_ms` is NaN, or if `expected_ms` and the predicted cost `total_ms` are equal after
    rounding.
    """
    if np.isnan(expected_ms) or f"{expected_ms:.2f}" == f"{total_ms:.2f}":
        return None
    return (
        f"{expected_ms:.2f} ms, higher than predicted because prediction errors make some device slower than predicted"
    )


def described_wait(waited_ms: float) -> str | None:
    """Return a text for users about the time `waited_ms` that devices wait for their hosts.
    Return None if the time rounds to 0.00 ms.
    """
    if f"{waited_ms:.2f}" == "0.00":
        return None
    return (
        f"devices wait {waited_ms:.2f} ms until the host has launched all their work; a longer dense network hides "
        "this wait (dense_ms sets its time)"
    )


def _expected_largest(mean: FloatArray, deviation: FloatArray) -> float:
    """Return E[max(X_1, ..., X_D)], the expected value of the largest of D independent normal variables.
    `mean` and `deviation` are the means and the standard deviations of the variables, (D,).

    E[max] = high - integral of P(max <= x) dx from low to high, where P(max <= x) is the product over d of
    Phi((x - mean_d) / deviation_d).
    """
    from scipy.special import ndtr  # slow to import: not with this module

    scatter = np.maximum(deviation, 1e-9 * np.abs(mean).max())
    low, high = float(mean.max() - 8 * scatter.max()), float(mean.max() + 8 * scatter.max())
    points = np.linspace(low, high, _STEPS)
    below = ndtr((points[:, None] - mean) / scatter).prod(axis=1)
    return high - float(np.trapezoid(below, points))


@dataclass(frozen=True)
@checked
class Prediction:
    """The predicted cost of a plan, as plan files store it.

    Attributes:
        models: name or path of the cost models, and the settings that they were loaded with; None for models made in
            Python.
        cost_ms: predicted cost of the plan in ms (`Cost.total_ms`).
        margin_ms: half the width of the 90% interval of the cost in ms; None if the models have no margins.
        expected_ms: expected cost in ms (`Cost.expected_ms`); None if the models have no margins.
        caveat: text that is shown wherever the cost is shown (`Cost.caveat`); None if there is no caveat.
        counts_input: True if the cost includes the input dist, which a pipeline would hide.
        scope: the kinds of work that the cost includes, as text (`Cost.scope`); None in old files.
    """

    models: ModelChoice | None
    cost_ms: NonNegative
    margin_ms: NonNegative | None = None
    expected_ms: NonNegative | None = None
    caveat: Name | None = None
    counts_input: bool = False
    scope: Name | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the prediction as a dict that can be written as JSON.
        Some fields, such as `caveat`, are left out if they have the default value.
        """
        models = None if self.models is None else self.models.fields
        return as_fields(self, ("expected_ms", "caveat", "counts_input", "scope")) | {"models": models}

    def __str__(self) -> str:
        margin = "" if self.margin_ms is None else f" ± {self.margin_ms:.2f}"
        expectation = None if self.expected_ms is None else described_expectation(self.cost_ms, self.expected_ms)
        expected = "" if expectation is None else f"; expected {expectation}"
        caveat = "" if self.caveat is None else f" ({self.caveat})"
        scope = "" if self.scope is None else f" for {self.scope}"
        by = "models without a name" if self.models is None else self.models
        return f"{self.cost_ms:.2f}{margin} ms{scope}, predicted by {by}{caveat}{expected}"
