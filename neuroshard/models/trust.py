"""How far to trust the predictions of cost models: the training ranges, the error margins, and the provenance of the
models.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Protocol

import numpy as np
from msgspec import Meta

from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD, FRAMEWORK, INPUT, PARTS
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.schema import NonNegative, readable_number
from neuroshard.tables import Table
from neuroshard.tasks.task import Task
from neuroshard.words.fingerprint import Fingerprint, fingerprint, other_kernels

_SLACK = 0.05
_UNREAD = 1.001  # most lookups in a batch of a table that is never read: sources count 0 lookups as 1
_LEAST_MS = 1e-9  # for models that are barely fitted, which may predict 0 ms
_MOST = 1e6
_NO_EXCHANGES = {"devices": None, "columns_on_a_device": None}
_LIKE_EXCHANGES = (INPUT, "framework", "conversion")  # parts whose time is proportional to bytes, as that of exchanges
MODELS = (COMPUTE, FORWARD, BACKWARD, INPUT, FRAMEWORK, "more")  # fields of a model set
_MEASURED_WITH: dict[str, Any] = {"hardware": None, "versions": {}}
_FOUND_BY: dict[str, Any] = {"choice": None, "digest": None}
_FACTS = ("margins", "ranges", *_FOUND_BY, *_MEASURED_WITH)
_OF_CALLS = ("rows", "dim", "pooling_factor", "bytes_per_element", "batch_size", "tables_on_a_device", "features")
_OF_ALL_TO_ALLS = ("devices", "columns_on_a_device")
EXCHANGES = "exchanges"  # ranges of the exchanges of all collectives
LEVEL = 0.9  # share of the measurements that should be inside an interval
DATASHEET = "analytic"  # name of datasheet costs in caveats; docs/results/roofline_errors.md has their errors
ELSEWHERE = "from measurements on other hardware, and may be wrong by 30% or more"
ADAPT = (  # a remedy
    "Trust the order of plans more than the milliseconds. For exact milliseconds adapt the cost models to this "
    "machine: run `neuroshard collect experiment=collect_adapt`, then `neuroshard pretrain experiment=pretrain_adapt`"
)


def fields_of(by_part: dict[str, Any]) -> dict[str, Any]:
    """Return the constructor arguments of a `Margins` or a `ModelTests`, as a dict. `by_part` is a dict with a value
    for each part of a step. For example, {"compute": a, "input": b} becomes {"compute": a, "others": {"input": b}}.

    The main parts ("compute", "forward" and "backward") are arguments of the same names. All other parts are in the
    argument "others", a dict by name of the part.
    """
    others = {part: known for part, known in by_part.items() if part not in PARTS}
    return {part: by_part[part] for part in PARTS if part in by_part} | {"others": others}


def hardware_warning(models: str | None, measured: Fingerprint | None) -> Message | None:
    """Return a warning if the models may have been measured on other hardware than this machine;
    None if there is no reason for a warning.

    On a machine without such a device there is no warning: plans for GPUs are searched anywhere.
    """
    if measured is None:
        return None
    here = fingerprint(measured.kind)
    if here.count == 0 or here.surely(measured):
        return None
    return Message(
        "models-of-other-hardware",
        f"the cost models {'without a name' if models is None else repr(models)} were fitted to measurements on "
        f"{measured}",
        limit=f"this machine is {here}, so predicted costs may be wrong by 30% or more",
        remedy=ADAPT,
    )


def versions_caveat(made_with: Mapping[str, str], measured: Fingerprint | None) -> str | None:
    """Return a caveat if the models were measured with other versions of torch or FBGEMM than
    the versions installed here.

    None if the versions are alike, and on a machine without a device of the models' type, as with `hardware_warning`.
    """
    other = other_kernels(made_with)
    if other is None or (measured is not None and fingerprint(measured.kind).count == 0):
        return None
    there, here = other
    return f"from measurements with {there}, but {here} is installed here; errors may be larger than the margins"


@dataclass(frozen=True)
class Range:
    """The smallest and the largest value of one quantity in the training data."""

    name: str
    least: NonNegative
    most: NonNegative

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise UserError(
                "range-least-above-most",
                f"'least' is {self.least:g}",
                where=f"training range of {self.name}",
                limit=f"'least' must not be above 'most', which is {self.most:g}",
                remedy="Make the file again with the command that wrote it",
            )

    @classmethod
    def of(cls, name: str, values: Sequence[float] | FloatArray) -> "Range":
        """Return the range of all measured `values` of the quantity `name`."""
        return cls(name, float(np.min(values)), float(np.max(values)))

    def joined(self, other: "Range") -> "Range":
        """Return the smallest range that includes this range and the other range."""
        return Range(self.name, min(self.least, other.least), max(self.most, other.most))

    def warning(self, values: Sequence[float] | FloatArray) -> Message | None:
        """Return a warning if any of `values` is more than 5% outside the range; None if all values are inside."""
        amounts = np.asarray(values, dtype=np.float64)
        outside = amounts[(amounts < self.least * (1 - _SLACK)) | (amounts > self.most * (1 + _SLACK))]
        if not outside.size:
            return None
        worst = outside[np.argmax(np.maximum(outside / max(self.most, 1e-9), self.least / np.maximum(outside, 1e-9)))]
        least, most, farthest = map(readable_number, (self.least, self.most, float(worst)))
        fitted = f"{least} to {most}, the training range of the cost models"
        if amounts.size == 1:
            what = f"{farthest} is outside {fitted}"
        else:
            verb = "is" if outside.size == 1 else "are"
            some = f"{outside.size:,} of {amounts.size:,} values"
            what = f"{some} {verb} outside {fitted} (the farthest value is {farthest})"
        return Message(
            "values-outside-training-range",
            what,
            where=self.name,
            limit="predicted costs may be wrong",
            remedy="Collect samples with such values and pretrain cost models on the samples, or measure the plan",
        )


class CallSample(Protocol):
    """Interface of a sampled kernel call, to which cost models are fitted."""

    @property
    def tables(self) -> Sequence[Table]:
        """The n tables of the call, (n,). The width of each table is the width of the shard that the device has."""

    @property
    def batch_size(self) -> int:
        """The batch size: the number of samples whose lookups are in the call."""


class ExchangeSample(Protocol):
    """Interface of a sampled exchange, to which cost models are fitted."""

    @property
    def dims(self) -> Sequence[int]:
        """The number of columns of pooled embeddings that each device sends, (D,)."""


@dataclass(frozen=True)
class Ranges:
    """Training ranges: the smallest and the largest measured value of each quantity on which a cost depends.

    `others` has the ranges of other kernel calls and collectives, by the names of their parts; all other fields are of
    column-wise tables and all-to-alls. `devices` and `columns_on_a_device` are None if no exchanges were measured; a
    datasheet has a coverage instead. The ranges of a model that was replaced are None, too.
    """

    rows: Range | None
    dim: Range | None
    pooling_factor: Range | None
    bytes_per_element: Range | None
    batch_size: Range | None
    tables_on_a_device: Range | None
    devices: Range | None
    columns_on_a_device: Range | None
    features: Range | None
    others: dict[str, tuple[Range, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, compute: Sequence[CallSample], comm: Sequence[ExchangeSample]) -> "Ranges":
        """Return the training ranges of all quantities in measured samples: kernel calls of column-wise tables
        (`compute`) and all-to-alls (`comm`).
        """
        return cls(**_of_calls(compute), **(_of_exchanges(comm) if comm else _NO_EXCHANGES))

    def widened(self, compute: Sequence[CallSample], comm: Sequence[ExchangeSample]) -> "Ranges":
        """Return these ranges, widened to include the samples in `compute` and `comm`; either sequence may be empty."""
        ranges = (_of_calls(compute) if compute else {}) | (_of_exchanges(comm) if comm else {})
        known = {name: getattr(self, name) or one for name, one in ranges.items()}
        return replace(self, **{name: known[name].joined(one) for name, one in ranges.items()})

    def with_part(self, part: str, quantities: Mapping[str, FloatArray]) -> "Ranges":
        """Return a copy of these training ranges, in which the ranges of one part of a step include new measured
        values. `part` is the name of the part, a part other than column-wise kernel calls and all-to-alls. `quantities`
        has the measured values of each quantity that decides the cost of the part, by name of the quantity.
        """
        known = {one.name: one for one in self.others.get(part, ())}
        ranges = [Range.of(name, values) for name, values in quantities.items()]
        return replace(self, others=self.others | {part: tuple(one.joined(known.get(one.name, one)) for one in ranges)})

    def outside(self, part: str, quantity: str, values: FloatArray) -> FloatArray:
        """Return the ratio of each value in `values` (B,) to the largest value in the training data, (B,). Ratios below
        1 are raised to 1, so a ratio of 1.5 means that the value is 50% above the training data.

        `quantity` is the name of the quantity with these values, on which the cost of `part`, a part of a step,
        depends. All ratios are 1 if the training range of the quantity is not known.
        """
        most = [one.most for one in self.others.get(part, ()) if one.name == quantity]
        return np.maximum(1.0, values / most[0]) if most else np.ones(len(values))

    def part_warnings(self, part: str, quantities: Mapping[str, FloatArray]) -> tuple[Message, ...]:
        """Return a warning for each of the `quantities` that has values outside the training range. The quantities
        decide the cost of `part`, a part of a step other than column-wise kernel calls and all-to-alls.

        There are no warnings if the part is unknown.
        """
        warnings = [one.warning(quantities[one.name]) for one in self.others.get(part, ()) if one.name in quantities]
        return tuple(replace(one, where=f"{part}: {one.where}") for one in warnings if one is not None)

    def warnings(self, task: Task) -> tuple[Message, ...]:
        """Return a warning for each quantity of the task and of its pooled tables whose values
        are outside the training range.

        Tables that no batch reads cost nothing, and are ignored.
        """
        tables = [table for table in task.tables if table.pooled and table.pooling_factor * task.batch_size > _UNREAD]
        if not tables:
            return ()
        return _warnings(
            (self.rows, [table.rows for table in tables]),
            (self.dim, [table.dim for table in tables]),
            (self.pooling_factor, [table.pooling_factor for table in tables]),
            (self.bytes_per_element, [table.bytes_per_element for table in tables]),
            (self.batch_size, [task.batch_size]),
            (self.devices, [task.topology.num_devices]),
            (self.features, [table.features for table in tables]),
        )

    def device_warnings(self, tables: Sequence[int], columns: Sequence[float]) -> tuple[Message, ...]:
        """Return warnings if the devices of a plan have numbers of tables or columns that are outside the training
        range. `tables` and `columns` (D,) are the numbers on each device.

        Devices without tables are ignored.
        """
        counts = [count for count in tables if count]
        return _warnings((self.tables_on_a_device, counts), (self.columns_on_a_device, columns))


def _warnings(*known: tuple[Range | None, Sequence[float]]) -> tuple[Message, ...]:
    """Return a warning for each argument that has a value more than 5% outside a training range. Each argument is a
    pair of the range and the values of one quantity. Pairs without a range (None) are ignored.
    """
    warnings = [limits.warning(values) for limits, values in known if limits is not None]
    return tuple(warning for warning in warnings if warning is not None)


def _of_calls(samples: Sequence[CallSample]) -> dict[str, Any]:
    """Return the ranges of the quantities in sampled kernel calls, as a dict by field of `Ranges`."""
    tables = [table for sample in samples for table in sample.tables]
    return {
        "rows": Range.of("rows", [table.rows for table in tables]),
        "dim": Range.of("dim", [table.dim for table in tables]),
        "pooling_factor": Range.of("pooling factor", [table.pooling_factor for table in tables]),
        "bytes_per_element": Range.of("bytes per element", [table.bytes_per_element for table in tables]),
        "batch_size": Range.of("batch size", [sample.batch_size for sample in samples]),
        "tables_on_a_device": Range.of("tables on a device", [len(sample.tables) for sample in samples]),
        "features": Range.of("features of a table", [table.features for table in tables]),
    }


def _of_exchanges(samples: Sequence[ExchangeSample]) -> dict[str, Any]:
    """Return the ranges of the quantities in sampled exchanges, as a dict by field of `Ranges`."""
    return {
        "devices": Range.of("devices", [len(sample.dims) for sample in samples]),
        "columns_on_a_device": Range.of("columns on a device", [dim for sample in samples for dim in sample.dims]),
    }


@dataclass(frozen=True)
class Margin:
    """Error margin of predictions: half the width of the interval around a prediction that
    should contain 90% of the measurements.

    The width grows with the prediction and with the spread of an ensemble's members. `factor` was fitted to samples
    that were not in the training data (split conformal prediction).
    """

    relative: Annotated[float, Meta(ge=0, le=_MOST)]
    factor: Annotated[float, Meta(ge=0, le=_MOST)]

    def __call__(self, predicted_ms: FloatArray, spread_ms: FloatArray) -> FloatArray:
        """Return the error margin of each prediction, (...,) ms: how far the measured time is likely to differ from the
        prediction. `spread_ms` (...,) is the standard deviation of an ensemble's predictions.
        """
        return self.factor * np.hypot(self.relative * predicted_ms, spread_ms)

    @classmethod
    def fitted(cls, predicted_ms: FloatArray, spread_ms: FloatArray, measured_ms: FloatArray) -> "Margin":
        """Return a margin that is fitted to n samples outside the training data. Each argument has one value for each
        sample, (n,): the predicted ms, the spread (standard deviation of an ensemble's predictions), and the measured
        ms.
        """
        error = np.abs(predicted_ms - measured_ms)
        relative = float(np.median(error / np.maximum(predicted_ms, _LEAST_MS)))
        ratios = error / np.maximum(cls(relative, 1.0)(predicted_ms, spread_ms), _LEAST_MS)
        level = min(1.0, LEVEL * (1 + 1 / len(ratios)))
        return cls(min(relative, _MOST), min(float(np.quantile(ratios, level)), _MOST))


@dataclass(frozen=True)
class Margins:
    """Error margins of the parts of a step. `compute` is the margin of the kernels of column-wise tables; `forward` and
    `backward` are the margins of all-to-alls. `others` has the margins of other parts, by name of the part.

    A margin is None if the part's model was replaced by a model that was not compared with measurements.
    """

    compute: Margin | None
    forward: Margin | None
    backward: Margin | None
    others: dict[str, Margin | None] = field(default_factory=dict)

    @classmethod
    def by_part(cls, margins: Mapping[str, Margin | None]) -> "Margins":
        """Return a `Margins` with the margins in `margins`, a dict by name of the part of a step."""
        return cls(**fields_of(dict(margins)))

    def of(self, part: str) -> Margin | None:
        """Return the error margin of a part of a step, such as "forward". Return None if the margin is unknown. For
        example, the margin of a part that a user adds may be unknown.

        Without a margin of its own, a kernel call has the margin of column-wise tables, a collective has the margin of
        all-to-alls, and the input dist, conversion and framework overhead have the margin of forward exchanges.
        """
        prefix = part.partition(".")[0]
        like = FORWARD if prefix in _LIKE_EXCHANGES else prefix
        of_kind: Margin | None = getattr(self, like) if like in PARTS else None
        return self.others.get(part, of_kind)


@dataclass(frozen=True, eq=False)
class Origin:
    """A record of the cost models in a `CostModels` and of the facts about these models: error margins, training ranges
    and provenance. A later comparison with this record shows which cost models were replaced, so that the facts about
    the replaced models can be removed.

    `dataclasses.replace` keeps all fields that it does not replace. By this record, a model set knows which models its
    facts were set for: it drops the facts about a replaced model, unless new facts were set together with the model.

    Attributes:
        models: each model of the set, by the name of its field.
        facts: the values of margins, ranges, choice, digest, hardware and versions.
        kept: which of compute, forward and backward are still those that were loaded or fitted together.
    """

    models: Mapping[str, object]
    facts: Mapping[str, object]
    kept: frozenset[str] = frozenset(PARTS)

    @classmethod
    def of(cls, models: object, kept: Collection[str]) -> "Origin":
        """Return an `Origin` that records the cost models in `models`, a `CostModels`, and the facts about these cost
        models, such as margins.

        Three of the cost models are main cost models: "compute", "forward" and "backward". All three are first loaded
        or fitted together, and some may be replaced later. `kept` has the names of the main cost models that have not
        been replaced.
        """
        facts = {name: getattr(models, name) for name in _FACTS if hasattr(models, name)}
        return cls({name: getattr(models, name) for name in MODELS}, facts, frozenset(kept))

    def replaced(self, models: object) -> frozenset[str]:
        """Return the names of the cost models in `models`, a `CostModels`, that were replaced since this record was
        made. The names are fields of `models`, such as "forward".
        """
        return frozenset(name for name, known in self.models.items() if getattr(models, name) is not known)

    def corrected(self, models: object) -> dict[str, Any]:
        """Return the facts, such as margins, that must change because cost models in `models`, a `CostModels`, were
        replaced. The result is a dict from the name of each such fact to the new value. The dict is empty if no cost
        model was replaced since this record was made.

        If the forward model was replaced, for example, the new margins do not contain the margin of the old forward
        model. Fields that were set to other values since this record was made are not in the dict.
        """
        replaced, gone = self.replaced(models), dict[str, Any]()
        if replaced:
            gone |= _FOUND_BY
        if replaced and not self.kept - replaced:
            gone |= _MEASURED_WITH
        margins, ranges, named = self.facts.get("margins"), self.facts.get("ranges"), replaced - {"more"}
        if named and isinstance(margins, Margins):
            gone["margins"] = margins_without(margins, named)
        if named and isinstance(ranges, Ranges):
            gone["ranges"] = ranges_without(ranges, named)
        return {name: value for name, value in gone.items() if self._was_copied(models, name)}

    def _was_copied(self, models: object, fact: str) -> bool:
        return fact in self.facts and getattr(models, fact) is self.facts[fact]


def margins_without(margins: Margins, models: Collection[str]) -> Margins | None:
    """Return a copy of `margins` without the margins of some cost models. `models` has the names of these cost models,
    such as "forward". Return None if all three main margins ("compute", "forward" and "backward") of the copy are
    unknown.
    """
    for name in models:
        margins = margins_with(margins, name, None)
    return margins if any((margins.compute, margins.forward, margins.backward)) else None


def margins_with(margins: Margins, model: str, margin: Margin | None) -> Margins:
    """Set the margin of one cost model, and return the changed error margins. `model` is the name of the cost model,
    such as "forward", and `margin` is the new margin; None stands for an unknown margin. If the cost model also
    predicts other parts, such as "forward.reduce_scatter", the margins of these parts are removed.
    """
    others = {part: known for part, known in margins.others.items() if part.partition(".")[0] != model}
    if model in PARTS:
        return replace(margins, others=others, **{model: margin})
    return replace(margins, others=others | {model: margin})


def ranges_without(ranges: Ranges, models: Collection[str]) -> Ranges | None:
    """Remove the training ranges of some cost models from `ranges`, and return the remaining ranges. `models` has the
    names of these cost models, such as "forward". Return None if no range is left.

    All-to-alls have common ranges for both directions, which are removed with the model of either direction.
    """
    of_exchanges = not {FORWARD, BACKWARD}.isdisjoint(models)
    gone = {*(_OF_CALLS if COMPUTE in models else ()), *(_OF_ALL_TO_ALLS if of_exchanges else ())}
    parts = {*models, *([EXCHANGES] if of_exchanges else [])}
    others = {part: of_part for part, of_part in ranges.others.items() if part.partition(".")[0] not in parts}
    left = replace(ranges, others=others, **dict.fromkeys(gone))
    return left if others or any(getattr(left, name) for name in (*_OF_CALLS, *_OF_ALL_TO_ALLS)) else None
