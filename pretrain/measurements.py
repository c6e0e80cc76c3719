"""The measurements to which cost models are fitted, grouped by split, kernel call and collective."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD, FRAMEWORK
from neuroshard.layouts import LAYOUTS
from neuroshard.measure.store import DataDirectory
from neuroshard.measure.store import samples as records
from neuroshard.measure.store.noise import fastest
from neuroshard.measure.store.sample_loads import by_group, loads_of, starts_of, traffic_of
from neuroshard.measure.store.samples import CommSample, ComputeSample, Measurement, Sample
from neuroshard.measure.store.speed import slowness_between, with_slowness
from neuroshard.measure.store.splits import REFERENCE, TEST, TRAIN, VALID
from neuroshard.models.host_tiers import memory_bytes
from neuroshard.models.interface import waits
from neuroshard.models.parts import compute_part, exchange_part, of_calls, of_exchanges
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import by_place
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.stages.pretrain.result import Predicted
from neuroshard.tables import Table
from neuroshard.words.collective import BACK_ONLY, Collective, name_of
from neuroshard.words.form import CALLS, COLUMN_WISE_CALL, Call
from neuroshard.words.placement import Tier

_QUARTILES, _BYTES_PER_MS = (0.25, 0.5, 0.75), 1e6  # 1e6 bytes per ms are 1 GB/s


@dataclass(frozen=True)
class SplitMeasurements:
    """Measurements grouped by split: training, validation and test samples. `everything` has the samples of all splits.
    If a sample was measured twice, the split of the sample has only the first measurement, and `everything` has both.
    """

    train: list[Measurement[Any]]
    valid: list[Measurement[Any]]
    test: list[Measurement[Any]]
    everything: list[Measurement[Any]]

    @classmethod
    def of(cls, measurements: Sequence[Measurement[Sample]]) -> "SplitMeasurements":
        """Group the successful measurements by split: training, validation or test. A split may be empty."""
        good = [m for m in measurements if m.error is None]
        once = [m for m in good if not m.second_pass]
        train, valid, test = ([m for m in once if m.split == name] for name in (TRAIN, VALID, TEST))
        return cls(train, valid, test, good)

    def check(self, what: str, where: str) -> None:
        """Raise UserError if a split has no samples. In the error message, `what` describes the samples, such as
        "compute samples of row_wise tables", and `where` names the directories of the measurements.
        """
        if self.empty:
            found = sum(self.sizes.values())  # a sample that was measured twice counts once
            raise UserError(
                "split-empty",
                f"the {self.empty[0]} split has no {what}",
                where=where,
                limit=f"{number_of(found, 'sample')} found in all splits together, and each split needs 1 or more",
                remedy="Collect more samples",
            )

    @property
    def known(self) -> list[Measurement[Any]]:
        """The training samples and the validation samples. A sample that was measured twice appears once."""
        return [*self.train, *self.valid]

    def limited(self, most: int | None, most_tables: int | None = None) -> "SplitMeasurements":
        """Return the measurements with fewer training samples. First, training samples with more than `most_tables`
        tables are removed; then the first `most` of the remaining training samples are kept. An argument that is None
        sets no limit.

        Other splits are unchanged.

        Raises:
            UserError: all training samples have more than `most_tables` tables.
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
        """A copy of the measurements in which all times are corrected to the typical speed of the machine."""
        splits = (self.train, self.valid, self.test, self.everything)
        return SplitMeasurements(*([m.level for m in split] for split in splits))

    @property
    def moved_gb_per_s(self) -> tuple[float, float, float]:
        """Quartiles (25%, 50% and 75%) of the rate in GB/s at which kernel calls move bytes. The function
        `memory_bytes` computes the bytes of a call. At least one call must have been measured.
        """
        sets, took_ms = loads_of([m.sample for m in self.everything]), [m.typical_ms for m in self.everything]
        low, middle, high = np.quantile(sets.totals(memory_bytes(sets.loads)) / took_ms / _BYTES_PER_MS, _QUARTILES)
        return float(low), float(middle), float(high)

    def by_group(self) -> "SplitMeasurements":
        """Return a copy in which every training, validation and test sample is an all-to-all. Each exchange is replaced
        by one all-to-all for each group of devices that exchange data with each other, such as the devices of one host.
        The measurements in `everything` are unchanged.

        Groups that exchange nothing are left out, and so are groups of one device in an exchange of several devices.
        """
        splits = {name: [group for m in getattr(self, name) for group in by_group(m)] for name in (TRAIN, VALID, TEST)}
        return replace(self, **splits)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of samples in each split, by name of the split."""
        return {TRAIN: len(self.train), VALID: len(self.valid), TEST: len(self.test)}

    @property
    def empty(self) -> tuple[str, ...]:
        """The names of the splits without samples."""
        return tuple(name for name, count in self.sizes.items() if not count)


@dataclass(frozen=True)
class MeasuredCalls:
    """All measurements of one type of kernel call."""

    call: Call
    measured: SplitMeasurements

    @property
    def name(self) -> str:
        """The name of the cost model of these kernel calls, such as "compute" or "compute.row_wise"."""
        return compute_part(self.call)

    def predict(self, model: Any, some: list[Measurement[Any]]) -> Predicted:
        """Predict the times of the measured kernel calls in `some` with the cost model `model`. Return the predicted
        times together with the measured times, sorted by the batch size of the calls.
        """
        some = sorted(some, key=lambda m: m.sample.batch_size)
        sets, took_ms = loads_of([m.sample for m in some]), np.array([m.typical_ms for m in some])
        return Predicted.alone(model.predict(sets), model.spread_ms(sets), took_ms)

    def quantities(self) -> dict[str, FloatArray]:
        """Return the quantities that decide the times of the kernel calls, such as "rows" and "dim". The result is a
        dictionary from the name of a quantity to the values in the training samples.
        """
        return of_calls(loads_of([m.sample for m in self.measured.train]))


@dataclass(frozen=True)
class MeasuredExchange:
    """All measurements of the exchanges by one collective (such as an all-to-all) in one direction.

    Attributes:
        direction: "forward" or "backward".
    """

    direction: str
    collective: Collective
    measured: SplitMeasurements

    @property
    def repeats(self) -> int:
        """The index (FORWARD or BACKWARD) of the measured times to which the cost model of these exchanges is fitted.
        Each exchange has measured times of two kinds: with start delays of the devices (index FORWARD), and without
        start delays (index BACKWARD).

        In a step, all devices begin the input dist and the backward exchanges at the same time; forward exchanges begin
        on each device when its kernels finish. Plans are measured in the same way.
        """
        delayed = self.direction == FORWARD and self.collective is not Collective.INPUT
        return records.FORWARD if delayed else records.BACKWARD

    @property
    def name(self) -> str:
        """The name of the exchange's cost model, such as "forward", "backward.all_reduce" or "input"."""
        return exchange_part(self.direction, self.collective)

    def predict(self, model: Any, some: list[Measurement[Any]]) -> Predicted:
        """Predict the times of the exchanges `some` with `model`, and return the predictions together with the measured
        times. The result has one value for each device of each exchange.

        Exchanges with the same batch size, number of devices and host size are predicted together, and the result is in
        that order.
        """
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
        """Return the quantities that decide the times of the exchanges, such as "devices" and "bytes from a device".
        The result is a dictionary from the name of a quantity to the values in the training samples.
        """
        each = [of_exchanges(traffic_of([m.sample])) for m in self.measured.train]
        return {name: np.concatenate([values[name] for values in each]) for name in each[0]}


MeasuredPart = MeasuredCalls | MeasuredExchange


@dataclass(frozen=True)
class Measured:
    """All measurements to which cost models are fitted.
    `compute` has the kernel calls by type of call, and `comm` has the exchanges by collective. `local` has the mirrored
    steps, in which one process runs one rank of a larger job. `comm` and `local` may be empty.
    """

    compute: dict[Call, SplitMeasurements]
    comm: dict[Collective, SplitMeasurements]
    local: SplitMeasurements = field(default_factory=lambda: SplitMeasurements.of(()))

    @classmethod
    def split(
        cls, calls: Sequence[Measurement[ComputeSample]], exchanges: Sequence[Measurement[CommSample]]
    ) -> "Measured":
        """Group the successful measurements: kernel calls by type, exchanges by collective, and both by split.
        Exchanges by a collective are left out if the sharding types of the measured kernel calls do not need the
        collective.

        All-to-alls and input dists are always kept.
        """
        of_call = grouped(calls, lambda m: m.sample.call)
        of_collective = grouped(exchanges, lambda m: m.sample.collective)
        layouts = [LAYOUTS[call.form] for call in of_call if call.pooled]
        of_forms = {collective for layout in layouts for collective in (*layout.exchanges, *layout.host_exchanges)}
        needed = of_collective.keys() & (of_forms | {Collective.ALL_TO_ALL, Collective.INPUT})
        return cls(
            {call: SplitMeasurements.of(of_call[call]) for call in CALLS if call in of_call},
            {
                collective: SplitMeasurements.of(of_collective[collective]).by_group()
                for collective in Collective
                if collective in needed
            },
        )

    @classmethod
    def of(
        cls,
        directories: Sequence[DataDirectory],
        calls: Collection[Call] | None,
        exchanges: Collection[Collective] = (Collective.ALL_TO_ALL,),
    ) -> "Measured":
        """Read the measured kernel calls, exchanges and mirrored steps of all directories.
        If `calls` is None, all types of kernel calls are read.

        Raises:
            UserError: a split has no column-wise samples, no samples of a named call or no samples of one of
                `exchanges`; a table is in different splits; or a directory is named twice.
        """
        if twice := [same[-1] for same in by_place(chosen.path for chosen in directories) if len(same) > 1]:
            raise UserError(
                "data-directory-twice",
                f"data names the directory '{twice[0]}' twice",
                limit="the samples of this directory would count twice",
                remedy="Name each directory once",
            )
        needed = {COLUMN_WISE_CALL, *(calls or ())}
        where = " and ".join(str(directory.path) for directory in directories)
        called, exchanged, drawn = zip(*map(_read, directories), strict=True)
        local = SplitMeasurements.of(_numbered([fastest(directory.local().each()) for directory in directories]))
        samples = _numbered(called)
        _check_splits([*chain(*drawn)], where)
        chosen = [m for m in samples if calls is None or m.sample.call in needed]
        measured = cls.split(chosen, _numbered(exchanged))
        nothing = SplitMeasurements.of(())
        for call in sorted(needed, key=CALLS.index):
            measured.compute.get(call, nothing).check(_of_call(call), where)
        for collective in sorted(set(exchanges)):
            named = "" if collective is Collective.ALL_TO_ALL else f"{name_of(collective)} "
            measured.comm.get(collective, nothing).check(f"{named}exchanges", where)
        return replace(measured, local=local)

    def fittable(self, known: Collection[str]) -> "Measured":
        """Return only the measurements to which cost models can be fitted. A part of a step, such as the all-to-alls,
        is left out if a split (training, validation or test) has no samples of the part. Parts whose names are in
        `known` are not left out, because models of these parts exist already.

        An existing model can be adjusted to any samples.
        """
        lacking = {part.name for part in self.parts if part.measured.empty}.difference(known)
        return Measured(
            {call: samples for call, samples in self.compute.items() if compute_part(call) not in lacking},
            {
                collective: samples
                for collective, samples in self.comm.items()
                if lacking.isdisjoint(exchange_part(direction, collective) for direction in (FORWARD, BACKWARD))
            },
            self.local if FRAMEWORK in known or not self.local.empty else SplitMeasurements.of(()),
        )

    def limited(self, max_samples: int | None, max_tables: int | None) -> "Measured":
        """Return the measurements with fewer training samples: at most `max_samples` for each part of a step, and only
        kernel calls with at most `max_tables` tables. None sets no limit.
        """
        return Measured(
            {call: samples.limited(max_samples, max_tables) for call, samples in self.compute.items()},
            {collective: samples.limited(max_samples) for collective, samples in self.comm.items()},
            self.local.limited(max_samples),
        )

    @property
    def level(self) -> "Measured":
        """The measurements to which models are fitted. The times of kernel calls are corrected for changes of the
        machine's speed during the measurements.

        Exchanges are not corrected, because they vary much more than the machine's speed. Errors of models are computed
        from the uncorrected measurements.
        """
        return replace(self, compute={call: samples.level for call, samples in self.compute.items()})

    @property
    def parts(self) -> tuple[MeasuredPart, ...]:
        """The measured parts of a step: kernel calls, forward and backward exchanges, and the input dist.

        Data-parallel tables exchange nothing in the forward pass.
        """
        backward = [collective for collective in self.comm if collective is not Collective.INPUT]
        forward = [(FORWARD, collective) for collective in backward if collective not in BACK_ONLY]
        before = [(FORWARD, collective) for collective in self.comm if collective is Collective.INPUT]
        ways = (*forward, *((BACKWARD, collective) for collective in backward), *before)
        calls = (MeasuredCalls(call, samples) for call, samples in self.compute.items())
        return (
            *calls,
            *(MeasuredExchange(direction, collective, self.comm[collective]) for direction, collective in ways),
        )

    @property
    def columns(self) -> SplitMeasurements:
        """The measured kernel calls of column-wise tables that are pooled and in device memory."""
        return self.compute.get(COLUMN_WISE_CALL, SplitMeasurements.of(()))

    @property
    def all_to_alls(self) -> SplitMeasurements:
        """The measured all-to-alls, in which devices exchange embeddings and gradients of column-wise tables."""
        return self.comm.get(Collective.ALL_TO_ALL, SplitMeasurements.of(()))

    @property
    def batch_sizes(self) -> set[int | None]:
        """The batch sizes of the measured column-wise kernel calls and all-to-alls."""
        return {m.sample.batch_size for samples in (self.columns, self.all_to_alls) for m in samples.everything}

    @property
    def slowness(self) -> tuple[float, float] | None:
        """The range of the machine's slowness during the measured kernel calls: the smallest and the largest value;
        None if the slowness is unknown. The slowness is the measured time divided by the time at the machine's typical
        speed.
        """
        return slowness_between([m for samples in self.compute.values() for m in samples.everything])

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """The number of samples of each part of a step in each split, such as {"compute.row_wise": {"train": 80,
        "valid": 10, "test": 10}}. Column-wise kernel calls and all-to-alls are left out.
        """
        others = {p.name: p.measured.sizes for p in self.parts if p.name not in (COMPUTE, FORWARD, BACKWARD)}
        return others | ({FRAMEWORK: self.local.sizes} if self.local.everything else {})


def _numbered(directories: Sequence[Sequence[Measurement[Sample]]]) -> list[Measurement[Sample]]:
    """Return the measurements of all directories in one list, with new sample numbers. Samples of different directories
    get different numbers. If a sample was measured twice, both measurements get the same number.
    """
    joined: list[Measurement[Sample]] = []
    for measurements in directories:
        first = 1 + max((m.sample_id for m in joined), default=-1)
        joined += [replace(m, sample_id=first + m.sample_id) for m in measurements] if first else measurements
    return joined


_Read = tuple[list[Measurement[ComputeSample]], list[Measurement[CommSample]], list[tuple[Table, str]]]


def _read(directory: DataDirectory) -> _Read:
    """Read a data directory. Return three lists: the kernel calls, the exchanges, and pairs of a table and the split
    (training, validation or test) to which the table belongs.

    If the directory has measured plans (no held-out tables), every second validation sample becomes a test sample, and
    all tables count as training tables. There, every call that was measured again shows the machine's speed. In other
    directories only references do, so that the repeatability of the other samples stays unbiased.
    """
    held_out = directory.manifest().holds_out_tables
    calls = fastest(with_slowness(directory.compute().each(), {REFERENCE} if held_out else {TRAIN, VALID}))
    drawn = {(t.name, t.features, t.pooled, m.split): t for m in calls for t in m.sample.tables}
    splits = [(table.with_dim(DIM_MULTIPLE), split) for (*_, split), table in drawn.items()]
    exchanges = fastest(directory.comm().each())
    if held_out:
        return calls, exchanges, splits
    return _some_tested(calls), _some_tested(exchanges), [(table, TRAIN) for table, _ in splits]


def _some_tested(measurements: Sequence[Measurement[Sample]]) -> list[Measurement[Sample]]:
    """Return the measurements with every second validation sample moved to the test split."""
    tested = {*sorted({m.sample_id for m in measurements if m.split == VALID})[1::2]}
    return [replace(m, split=TEST) if m.sample_id in tested else m for m in measurements]


def _check_splits(drawn: Sequence[tuple[Table, str]], where: str) -> None:
    """Raise UserError if the samples of one table are in several splits: test tables must not be trained on.

    A table is identified by name, rows and pooling factor; features and batch size do not matter.
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
    """Return a short description of the samples of one type of kernel call for error messages, such as "compute samples
    of row_wise tables".
    """
    words = [] if LAYOUTS[call.form].free else [call.form.value]
    words += [] if call.pooled else ["sequence"]
    of_tables = f" of {' '.join(words)} tables" if words else ""
    return f"compute samples{of_tables}" + ("" if call.tier is Tier.DEVICE else f" in tier {call.tier}")
