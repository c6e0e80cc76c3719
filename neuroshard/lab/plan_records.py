"""What is measured of plans, kept as data that models can be fitted to, in the directory of the run that measures."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Generic

import numpy as np

from neuroshard.hardware import Hardware
from neuroshard.lab.recorder import Due
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.records import DataDirectory, Manifest, Parts
from neuroshard.records.samples import CommSample, ComputeSample, Sample, as_drawn
from neuroshard.records.splits import split_of
from neuroshard.records.store import MEASURED
from neuroshard.tables import Table

_SEED_RANGE = 2**31


@dataclass(frozen=True)
class Numbers(Generic[Sample]):
    """The numbers of samples: what was measured before keeps its own, so that the machine's speeds can be told.

    Attributes:
        parts: where measurements are kept; None: nowhere.
        known: of samples as they were drawn.
        named: samples by the names that they are kept under.
    """

    parts: Parts[Sample] | None = None
    known: dict[Sample, int] = field(default_factory=dict)
    named: Callable[[Sequence[Sample]], Sequence[Sample]] = lambda samples: samples

    def due(self, samples: Sequence[Sample], rng: np.random.Generator) -> list[Due[Sample]]:
        """Number the samples, and give each lookups of its own; exchanges that differ in delays alone share a split."""
        seeds = rng.integers(_SEED_RANGE, size=len(samples)).tolist()
        return [self._numbered(sample, seed) for sample, seed in zip(self.named(samples), seeds, strict=True)]

    def _numbered(self, sample: Sample, lookups: int) -> Due[Sample]:
        again = sample in self.known
        number = self.known.setdefault(sample, 1 + max(self.known.values(), default=-1))
        alike = replace(sample, start_ms=(0.0,) * sample.num_devices) if isinstance(sample, CommSample) else sample
        return Due(sample, number, lookups, split_of(self.known.get(alike, number)), again)


@dataclass(frozen=True)
class PlanRecords:
    """The kernel calls and exchanges of plans that a run measures; by themselves, kept nowhere."""

    calls: Numbers[ComputeSample] = field(default_factory=Numbers)
    exchanges: Numbers[CommSample] = field(default_factory=Numbers)

    @classmethod
    def of_run(cls, run: Path, hardware: Hardware) -> "PlanRecords":
        """Begin them in a run's directory, or go on with what is there.

        Raises:
            UserError: what is there was measured on other hardware, or is damaged.
        """
        directory, here = DataDirectory(run / MEASURED), hardware.fingerprint
        there = dict[str, Table]()
        if Manifest.exists(directory.path):
            directory.manifest().check_hardware(here, directory.path)
            there = directory.tables()
        directory.begin(Manifest.of_plans(here, asdict(hardware)), tuple(there.values()))
        calls, exchanges = directory.compute(), directory.comm()
        named = partial(_named_calls, directory)
        return cls(Numbers(calls, _known(calls), named), Numbers(exchanges, _known(exchanges)))


def _known(parts: Parts[Sample]) -> dict[Sample, int]:
    return {as_drawn(m.sample): m.sample_id for m in parts.read()}


def _named_calls(directory: DataDirectory, calls: Sequence[ComputeSample]) -> list[ComputeSample]:
    """Kernel calls whose tables have been written down first, under names that no other table has.

    A plan's copies look up their own device's samples only, so they aren't the table that tasks know by that name.
    """
    tables = directory.tables()
    named = [replace(call, tables=tuple(_named(table, tables) for table in call.tables)) for call in calls]
    directory.write_tables(tuple(tables.values()))
    return named


def _named(table: Table, there: dict[str, Table]) -> Table:
    """The table by the first name that no other table has among those that are there, which it joins."""
    names = (table.name if number == 1 else f"{table.name} ({number})" for number in count(1))
    found = (replace(table, name=name) for name in names)
    return next(one for one in found if _whole(there.setdefault(one.name, one)) == _whole(one))


def _whole(table: Table) -> Table:
    """As parts refer to it, whatever their own widths, features and outputs."""
    return replace(table, dim=DIM_MULTIPLE, features=1, pooled=True)
