"""What models are fitted to: measurements by split, by kernel call, by collective."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD, FRAMEWORK
from neuroshard.layouts import LAYOUTS
from neuroshard.models.host_tiers import memory_bytes
from neuroshard.models.interface import waits
from neuroshard.models.parts import compute_part, exchange_part, of_calls, of_exchanges
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import by_place
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.records import DataDirectory
from neuroshard.records import samples as records
from neuroshard.records.noise import fastest
from neuroshard.records.sample_loads import by_group, loads_of, starts_of, traffic_of
from neuroshard.records.samples import CommSample, ComputeSample, Measurement, Sample
from neuroshard.records.speed import slowness_between, with_slowness
from neuroshard.records.splits import REFERENCE, TEST, TRAIN, VALID
from neuroshard.stages.pretrain.result import Predicted
from neuroshard.tables import Table
from neuroshard.words.collective import BACK_ONLY, Collective, name_of
from neuroshard.words.form import CALLS, IN_COLUMNS, Call
from neuroshard.words.placement import Tier

_QUARTILES, _BYTES_PER_MS = (0.25, 0.5, 0.75), 1e6  # of 1 GB/s


@dataclass(frozen=True)
class SplitMeasurements:
    """Measurements by split; `everything` holds the second passes too."""

    train: list[Measurement[Any]]
    valid: list[Measurement[Any]]
    test: list[Measurement[Any]]
    everything: list[Measurement[Any]]

    @classmethod
    def of(cls, measurements: Sequence[Measurement[Sample]]) -> "SplitMeasurements":
        """Split the measurements that succeeded; any split may be empty."""
        good = [m for m in measurements if m.error is None]
        once = [m for m in good if not m.second_pass]
        train, valid, test = ([m for m in once if m.split == name] for name in (TRAIN, VALID, TEST))
        return cls(train, valid, test, good)

    def check(self, what: str, where: str) -> None:
        """Raise UserError if a split is empty."""
        if self.empty:
            raise UserError(
                "split-empty",
                f"the {self.empty[0]} split has no {what}",
                where=where,
                limit=f"{number_of(len(self.everything), 'sample')} found in all splits together, and each split needs "
                "1 or more",
                remedy="Collect more samples",
            )

    @property
    def known(self) -> list[Measurement[Any]]:
        """The measurements that aren't for testing, once each."""
        return [*self.train, *self.valid]

    def limited(self, most: int | None, most_tables: int | None = None) -> "SplitMeasurements":
        """Keep the first `most` training samples only, of those with at most so many tables; None keeps all.

        Raises:
            UserError: none have so few tables.
        """
        train = [m for m in self.train if most_tables is None or len(m.sample.tables) <= most_tables]
        if self.train and not train:
            fewest = min(len(m.sample.tables) for m in self.train)
            raise UserError(
                "max-tables-excludes-all",
                f"max_tables={most_tables} excludes all training samples",
                limit=f"the training sample with the fewest tables has {number_of(fewest, 'table')}",
                remedy=f"Set max_tables={fewest} or more",
            )
        return replace(self, train=train[:most])

    @property
    def level(self) -> "SplitMeasurements":
        """All measurements as if made at one speed of the machine."""
        splits = (self.train, self.valid, self.test, self.everything)
        return SplitMeasurements(*([m.level for m in split] for split in splits))

    @property
    def moved_gb_per_s(self) -> tuple[float, float, float]:
        """Quartiles of the rate at which kernel calls, of which there are some, move bytes (`memory_bytes`)."""
        sets, took_ms = loads_of([m.sample for m in self.everything]), [m.typical_ms for m in self.everything]
        low, middle, high = np.quantile(sets.totals(memory_bytes(sets.loads)) / took_ms / _BYTES_PER_MS, _QUARTILES)
        return float(low), float(middle), float(high)

    def by_group(self) -> "SplitMeasurements":
        """Split exchanges by group, each as if it were an all-to-all; what is measured twice stays as it is."""
        splits = {name: [one for m in getattr(self, name) for one in by_group(m)] for name in (TRAIN, VALID, TEST)}
        return replace(self, **splits)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of samples in each split."""
        return {TRAIN: len(self.train), VALID: len(self.valid), TEST: len(self.test)}

    @property
    def empty(self) -> tuple[str, ...]:
        """The splits that hold nothing."""
        return tuple(name for name, count in self.sizes.items() if not count)


@dataclass(frozen=True)
class MeasuredCalls:
    """Kernel calls of one type, with their measurements."""

    call: Call
    measured: SplitMeasurements

    @property
    def name(self) -> str:
        """The name of the model that is fitted to the calls: "compute", "compute.row_wise"."""
        return compute_part(self.call)

    def predict(self, model: Any, some: list[Measurement[Any]]) -> Predicted:
        """Predict some of the calls by their model, those of the smallest batches first."""
        some = sorted(some, key=lambda m: m.sample.batch_size)
        sets, took_ms = loads_of([m.sample for m in some]), np.array([m.typical_ms for m in some])
        return Predicted.alone(model.predict(sets), model.spread_ms(sets), took_ms)

    def quantities(self) -> dict[str, FloatArray]:
        """Collect what the calls' costs hang on in the training samples, by name."""
        return of_calls(loads_of([m.sample for m in self.measured.train]))


@dataclass(frozen=True)
class MeasuredExchange:
    """One collective in one direction, with its measurements.

    Attributes:
        direction: "forward" or "backward".
    """

    direction: str
    collective: Collective
    measured: SplitMeasurements

    @property
    def repeats(self) -> int:
        """The repeats that say what it takes: with delays where devices begin when they have computed, forward.

        In a step all begin together with the input and with what goes backward, and plans are measured so.
        """
        delayed = self.direction == FORWARD and self.collective is not Collective.INPUT
        return records.FORWARD if delayed else records.BACKWARD

    @property
    def name(self) -> str:
        """The name of the model that is fitted to the exchange: "forward", "backward.all_reduce", "input"."""
        return exchange_part(self.direction, self.collective)

    def predict(self, model: Any, some: list[Measurement[Any]]) -> Predicted:
        """Predict some of the exchanges, every device, by their model: alike batches, devices and hosts together."""
        groups = []
        alike = grouped(some, lambda m: (m.sample.batch_size, m.sample.num_devices, m.sample.host_size))
        for _, group in sorted(alike.items()):
            samples, measured = [m.sample for m in group], np.array([m.typical_ms[self.repeats] for m in group])
            starts = starts_of(samples, self.repeats)
            predicted = model.predict(traffic_of(samples), starts)
            of_devices = (predicted, np.zeros_like(predicted), measured, waits(starts))
            groups.append([*(array.ravel() for array in of_devices), np.full(len(group), measured.shape[1])])
        return Predicted(*(np.concatenate(arrays) for arrays in zip(*groups, strict=True)))

    def quantities(self) -> dict[str, FloatArray]:
        """Collect what the exchange's costs hang on in the training samples, by name."""
        each = [of_exchanges(traffic_of([m.sample])) for m in self.measured.train]
        return {name: np.concatenate([one[name] for one in each]) for name in each[0]}


MeasuredPart = MeasuredCalls | MeasuredExchange


@dataclass(frozen=True)
class Measured:
    """Measurements by kernel call and by collective, of those that there are any of, and of local work in steps."""

    compute: dict[Call, SplitMeasurements]
    comm: dict[Collective, SplitMeasurements]
    local: SplitMeasurements = field(default_factory=lambda: SplitMeasurements.of(()))

    @classmethod
    def split(
        cls, calls: Sequence[Measurement[ComputeSample]], exchanges: Sequence[Measurement[CommSample]]
    ) -> "Measured":
        """Group and split the measurements that succeeded, without exchanges that no measured sharding type needs."""
        of_call = grouped(calls, lambda m: m.sample.call)
        of_collective = grouped(exchanges, lambda m: m.sample.collective)
        layouts = [LAYOUTS[call.form] for call in of_call if call.pooled]
        of_forms = {one for layout in layouts for one in (*layout.exchanges, *layout.host_exchanges)}
        known = of_collective.keys() & (of_forms | {Collective.ALL_TO_ALL, Collective.INPUT})
        return cls(
            {call: SplitMeasurements.of(of_call[call]) for call in CALLS if call in of_call},
            {one: SplitMeasurements.of(of_collective[one]).by_group() for one in Collective if one in known},
        )

    @classmethod
    def of(
        cls,
        directories: Sequence[DataDirectory],
        calls: Collection[Call] | None,
        exchanges: Collection[Collective] = (Collective.ALL_TO_ALL,),
    ) -> "Measured":
        """Read what there is of columns and other kernel calls in all directories together; of all calls where None.

        Raises:
            UserError: a split holds nothing of columns, of a call that is named, or of `exchanges`; or a table is in
                different splits, or a directory is named twice.
        """
        if twice := [same[-1] for same in by_place(its.path for its in directories) if len(same) > 1]:
            raise UserError(
                "data-directory-twice",
                f"data names the directory '{twice[0]}' twice",
                limit="the samples of this directory would count twice",
                remedy="Name each directory once",
            )
        needed = {IN_COLUMNS, *(calls or ())}
        where = " and ".join(str(directory.path) for directory in directories)
        called, exchanged, drawn = zip(*map(_read, directories), strict=True)
        local = SplitMeasurements.of(_numbered([directory.local().read() for directory in directories]))
        samples = _numbered(called)
        _check_splits([*chain(*drawn)], where)
        its = [m for m in samples if calls is None or m.sample.call in needed]
        measured = cls.split(its, _numbered(exchanged))
        nothing = SplitMeasurements.of(())
        for call in sorted(needed, key=CALLS.index):
            measured.compute.get(call, nothing).check(_of_call(call), where)
        for one in sorted(set(exchanges)):
            named = "" if one is Collective.ALL_TO_ALL else f"{name_of(one)} "
            measured.comm.get(one, nothing).check(f"{named}exchanges", where)
        return replace(measured, local=local)

    def fittable(self, known: Collection[str]) -> "Measured":
        """Leave out what has an empty split, but for parts `known` by name, whose models learn from any samples."""
        lacking = {part.name for part in self.parts if part.measured.empty}.difference(known)
        return Measured(
            {call: its for call, its in self.compute.items() if compute_part(call) not in lacking},
            {
                one: its
                for one, its in self.comm.items()
                if lacking.isdisjoint(exchange_part(direction, one) for direction in (FORWARD, BACKWARD))
            },
            self.local if FRAMEWORK in known or not self.local.empty else SplitMeasurements.of(()),
        )

    def limited(self, max_samples: int | None, max_tables: int | None) -> "Measured":
        """Keep so many training samples of each part at most, and so many tables in each; None keeps all."""
        return Measured(
            {call: one.limited(max_samples, max_tables) for call, one in self.compute.items()},
            {collective: one.limited(max_samples) for collective, one in self.comm.items()},
            self.local.limited(max_samples),
        )

    @property
    def level(self) -> "Measured":
        """The measurements that models are fitted to: kernel calls as if measured at one speed of the machine.

        Exchanges differ by much more than its speeds. How good models are is said by what was measured.
        """
        return replace(self, compute={call: its.level for call, its in self.compute.items()})

    @property
    def parts(self) -> tuple[MeasuredPart, ...]:
        """The parts of a step that were measured: kernel calls, forward and backward exchanges, the input dist.

        Data-parallel tables exchange nothing in the forward pass.
        """
        back = [one for one in self.comm if one is not Collective.INPUT]
        there = [(FORWARD, one) for one in back if one not in BACK_ONLY]
        before = [(FORWARD, one) for one in self.comm if one is Collective.INPUT]
        ways = (*there, *((BACKWARD, one) for one in back), *before)
        calls = (MeasuredCalls(call, its) for call, its in self.compute.items())
        return (*calls, *(MeasuredExchange(direction, one, self.comm[one]) for direction, one in ways))

    @property
    def columns(self) -> SplitMeasurements:
        """The kernel calls of pooled column-wise tables in device memory."""
        return self.compute.get(IN_COLUMNS, SplitMeasurements.of(()))

    @property
    def all_to_alls(self) -> SplitMeasurements:
        """The all-to-alls, which column-wise tables need."""
        return self.comm.get(Collective.ALL_TO_ALL, SplitMeasurements.of(()))

    @property
    def batch_sizes(self) -> set[int | None]:
        """The different batch sizes of `columns` and `all_to_alls`."""
        return {m.sample.batch_size for its in (self.columns, self.all_to_alls) for m in its.everything}

    @property
    def slowness(self) -> tuple[float, float] | None:
        """The minimum and maximum slowness of the machine during kernel calls; None if that is unknown."""
        return slowness_between([m for its in self.compute.values() for m in its.everything])

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """The number of samples in each split, of every part except column-wise tables and all-to-alls."""
        others = {p.name: p.measured.sizes for p in self.parts if p.name not in (COMPUTE, FORWARD, BACKWARD)}
        return others | ({FRAMEWORK: self.local.sizes} if self.local.everything else {})


def _numbered(directories: Sequence[Sequence[Measurement[Sample]]]) -> list[Measurement[Sample]]:
    """Join measurements of all directories, each sample with a number of its own; both passes of one keep the same."""
    joined: list[Measurement[Sample]] = []
    for its in directories:
        first = 1 + max((m.sample_id for m in joined), default=-1)
        joined += [replace(m, sample_id=first + m.sample_id) for m in its] if first else its
    return joined


_Read = tuple[list[Measurement[ComputeSample]], list[Measurement[CommSample]], list[tuple[Table, str]]]


def _read(directory: DataDirectory) -> _Read:
    """Read the kernel calls and exchanges of a directory, and its tables with their splits.

    Of plans every second validation sample is for testing, and all tables count as trained on. All calls that were
    measured again tell the machine's speeds there; elsewhere references do, so that the noise of others stays true.
    """
    held_out = directory.manifest().holds_out_tables
    calls = fastest(with_slowness(directory.compute().each(), {REFERENCE} if held_out else {TRAIN, VALID}))
    drawn = {(one.name, one.features, one.pooled, m.split): one for m in calls for one in m.sample.tables}
    splits = [(table.with_dim(DIM_MULTIPLE), split) for (*_, split), table in drawn.items()]
    exchanges = directory.comm().read()
    if held_out:
        return calls, exchanges, splits
    return _some_tested(calls), _some_tested(exchanges), [(table, TRAIN) for table, _ in splits]


def _some_tested(measurements: Sequence[Measurement[Sample]]) -> list[Measurement[Sample]]:
    tested = {*sorted({m.sample_id for m in measurements if m.split == VALID})[1::2]}
    return [replace(m, split=TEST) if m.sample_id in tested else m for m in measurements]


def _check_splits(drawn: Sequence[tuple[Table, str]], where: str) -> None:
    """Raise UserError unless every table's samples have one split: tables to test with must not be trained on.

    However many features read it, and however many samples a batch has: it is the same table.
    """
    splits: dict[tuple[str, int, float], str] = {}
    for table, drawn_for in drawn:
        split = splits.setdefault((table.name, table.rows, table.pooling_factor), drawn_for)
        if split != drawn_for:
            raise UserError(
                "table-in-two-splits",
                f"table {table.name!r} is in the {split} split and in the {drawn_for} split",
                where=where,
                limit="models must not be tested on tables that they were trained on",
                remedy="Collect the data of all directories with the same tables and the same seed, or use other "
                "tables for each directory",
            )


def _of_call(call: Call) -> str:
    words = [] if LAYOUTS[call.form].free else [call.form.value]
    words += [] if call.pooled else ["sequence"]
    of_tables = f" of {' '.join(words)} tables" if words else ""
    return f"compute samples{of_tables}" + ("" if call.tier is Tier.DEVICE else f" in tier {call.tier}")
