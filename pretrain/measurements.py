"""What a data directory holds for models to be fitted to: by kernel call, by collective."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neuroshard.cost.parts import BACKWARD, FORWARD
from neuroshard.layouts import LAYOUTS
from neuroshard.models.parts import compute_part, exchange_part
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.records import DataDirectory
from neuroshard.records import samples as records
from neuroshard.records.samples import ComputeSample, Measurement, Sample
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.tables import Table
from neuroshard.words.collective import BACK_ONLY, Collective, name_of
from neuroshard.words.form import CALLS, IN_COLUMNS, Call, Form
from neuroshard.words.home import Tier

# Measured with delays too, and alike both ways.
_EITHER_WAY = (Collective.ALL_REDUCE, Collective.INPUT)


@dataclass(frozen=True)
class StepExchange:
    """One collective in one direction of a step.

    Attributes:
        direction: "forward" or "backward".
        repeats: the direction whose repeats say what it takes, `records.FORWARD` or `records.BACKWARD`.
    """

    direction: str
    collective: Collective
    repeats: int

    @property
    def part(self) -> str:
        """Return the name of the bundle's model that is fitted to it."""
        return exchange_part(self.direction, self.collective)


@dataclass(frozen=True)
class Measured:
    """Measurements by kernel call and by collective: of columns and all-to-alls always, of others where there are any.

    Of forms that are left out, what they alone exchange is left out too.
    """

    compute: dict[Call, SplitMeasurements]
    comm: dict[Collective, SplitMeasurements]

    @classmethod
    def of(cls, directories: Sequence[DataDirectory], calls: Collection[Call] | None) -> "Measured":
        """What there is of the kernel calls in all directories together; of all that were measured where None.

        Raises:
            UserError: there is nothing of columns, of all-to-alls, or of a call that is named; or a split is empty; or
                a table is in different splits.
        """
        wanted = set(CALLS) if calls is None else {IN_COLUMNS, *calls}
        needed = {IN_COLUMNS, *(calls or ())}
        where = _named(directories)
        samples = _numbered([directory.compute().read() for directory in directories])
        exchanges = _numbered([directory.comm().read() for directory in directories])
        _check_splits(samples, where)
        of_call = _grouped(samples, "call")
        compute = {
            call: SplitMeasurements.of(of_call[call], _of_call(call), where)
            for call in CALLS
            if call in wanted and (of_call[call] or call in needed)
        }
        known = {Collective.INPUT, *(one for call in compute if call.pooled for one in LAYOUTS[call.form].exchanges)}
        of_collective = _grouped(exchanges, "collective")
        comm = {
            one: SplitMeasurements.of(of_collective[one], _of_collective(one), where).by_group()
            for one in Collective
            if one in known and (of_collective[one] or one is Collective.ALL_TO_ALL)
        }
        return cls(compute, comm)

    def limited(self, max_samples: int | None, max_tables: int | None) -> "Measured":
        """With so many training samples of each at most, and so many tables in each; None for all."""
        return Measured(
            {call: one.combining(max_tables).limited(max_samples) for call, one in self.compute.items()},
            {collective: one.limited(max_samples) for collective, one in self.comm.items()},
        )

    @property
    def exchanges(self) -> tuple[StepExchange, ...]:
        """Those of a step, in the order that they follow one another in each direction; the input last.

        Copies exchange nothing forward.
        """
        there, back = (
            [
                StepExchange(name, one, records.FORWARD if one in _EITHER_WAY else direction)
                for one in self.comm
                if one is not Collective.INPUT and (name == BACKWARD or one not in BACK_ONLY)
            ]
            for name, direction in ((FORWARD, records.FORWARD), (BACKWARD, records.BACKWARD))
        )
        before = [StepExchange(FORWARD, Collective.INPUT, records.FORWARD)] if Collective.INPUT in self.comm else []
        return (*there, *back, *before)

    def serves(self, direction: str) -> frozenset[Form]:
        """The forms all of whose exchanges in that direction are measured, besides those between hosts."""
        known = {*self.comm, *(BACK_ONLY if direction == FORWARD else ())}
        return frozenset(form for form, layout in LAYOUTS.items() if layout.exchanges[0] in known)

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """Samples in each split, of every part besides columns and all-to-alls."""
        parts = {compute_part(call): one.sizes for call, one in self.compute.items() if call != IN_COLUMNS}
        others = {one.part: self.comm[one.collective].sizes for one in self.exchanges}
        return parts | {part: sizes for part, sizes in others.items() if part not in (FORWARD, BACKWARD)}


def columns_of(directories: Sequence[DataDirectory]) -> list[SplitMeasurements]:
    """Kernel calls of columns in each directory, by itself.

    Raises:
        UserError: a directory has none for a split; or a table is in different splits, in one directory or in two.
    """
    found = [
        SplitMeasurements.of(_grouped(one.compute().read(), "call")[IN_COLUMNS], _of_call(IN_COLUMNS), str(one.path))
        for one in directories
    ]
    _check_splits([m for one in found for m in one.everything], _named(directories))
    return found


def _named(directories: Sequence[DataDirectory]) -> str:
    return " and ".join(str(directory.path) for directory in directories)


def _numbered(parts: Sequence[Sequence[Measurement[Sample]]]) -> list[Measurement[Sample]]:
    """Those of all directories, each sample with a number of its own; both passes of one keep the same."""
    found: list[Measurement[Sample]] = []
    for part in parts:
        first = 1 + max((m.sample_id for m in found), default=-1)
        found += [replace(m, sample_id=first + m.sample_id) for m in part] if first else part
    return found


def _check_splits(calls: Sequence[Measurement[ComputeSample]], where: str) -> None:
    """Raise UserError unless every table's samples have one split: tables to test with must not be trained on."""
    split: dict[Table, str] = {}
    for table, drawn_for in dict.fromkeys((table, m.split) for m in calls for table in m.sample.tables):
        whole = table.with_dim(DIM_MULTIPLE)
        if split.setdefault(whole, drawn_for) != drawn_for:
            raise UserError(
                f"{where}: table {table.name!r} is in the {split[whole]} and in the {drawn_for} split; "
                "collect with the same tables and seed, or with other tables"
            )


def _grouped(measurements: Sequence[Measurement[Any]], field: str) -> defaultdict[Any, list[Measurement[Any]]]:
    """The measurements in order, by the value of a field of their samples; none of what isn't there."""
    groups: defaultdict[Any, list[Measurement[Any]]] = defaultdict(list)
    for measurement in measurements:
        groups[getattr(measurement.sample, field)].append(measurement)
    return groups


def _of_call(call: Call) -> str:
    of_sequences = "" if call.pooled else " of sequence tables"
    in_form = "" if LAYOUTS[call.form].free else f" in {call.form.value}"
    return f"compute samples{of_sequences}{in_form}" + ("" if call.tier is Tier.DEVICE else f" in tier {call.tier}")


def _of_collective(collective: Collective) -> str:
    return "exchanges" if collective is Collective.ALL_TO_ALL else f"exchanges {name_of(collective)}"
