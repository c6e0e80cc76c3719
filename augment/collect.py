"""The collect run: draw samples, measure them, write parts; go on where an earlier run stopped."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic

import numpy as np
from msgspec import Meta
from rich.progress import Progress

from neuroshard.checked import checked
from neuroshard.errors import UserError
from neuroshard.hardware import Hardware, Meter, Outcome
from neuroshard.hardware.fingerprint import versions
from neuroshard.hardware.hardware import Warn, is_follower
from neuroshard.plans.shard import Tier
from neuroshard.progress import printer, progress_bar
from neuroshard.records import DataDirectory, Manifest, Parts
from neuroshard.records.samples import CommSample, ComputeSample, Measurement, Sample
from neuroshard.records.splits import TableSplit, split_tables
from neuroshard.run_directory import RunDirectory
from neuroshard.schema import BatchSize, Count, Seed
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.augment.summary import KindSummary, Summary
from neuroshard.tables import Table, check_unique_names

_COMPUTE, _COMM = 0, 1  # streams of random numbers
_DRAW, _LOOKUPS = 0, 1


@dataclass(frozen=True)
@checked
class Collect:
    """Everything `neuroshard collect` needs.

    Attributes:
        tables: what is augmented.
        hardware: what is measured on.
        compute, comm: how samples are drawn.
        num_compute_samples, num_comm_samples: how many.
        num_second_pass: how many of the first samples of each kind are measured again at the end.
        batch_sizes: global; every sample has one of them.
        seed: fixes every sample and its lookups.
        out: the data directory.
    """

    tables: tuple[Table, ...]
    hardware: Hardware
    compute: ComputeAugmentation
    comm: CommAugmentation
    num_compute_samples: Count
    num_comm_samples: Count
    num_second_pass: Count
    batch_sizes: Annotated[tuple[BatchSize, ...], Meta(min_length=1)]
    seed: Seed
    out: str

    def __post_init__(self) -> None:
        check_unique_names(self.tables)
        if min(self.batch_sizes) < max(self.comm.num_devices):
            raise UserError(
                f"batch size {min(self.batch_sizes)} must be at least the largest of "
                f"comm.num_devices={list(self.comm.num_devices)}"
            )
        self.compute.check(split_tables(self.tables, self.seed))
        self.hardware.check_tiers(Tier(tier) for tier in self.compute.tiers)
        for count in self.comm.num_devices:
            self.comm.check(self.hardware.devices_per_host(count))

    def run(self) -> Summary | None:
        """Measure what is still missing in `out`; None in the processes that only take part in exchanges."""
        self.hardware.check()
        if is_follower():
            self.hardware.follow()
            return None
        with RunDirectory(Path(self.out)).held(["manifest.json"]):
            return self._collect(DataDirectory(Path(self.out)))

    def _collect(self, directory: DataDirectory) -> Summary:
        here = self.hardware.fingerprint
        if Manifest.exists(directory.path):
            directory.manifest().check_hardware(here, directory.path)
        split = split_tables(self.tables, self.seed)
        directory.begin(Manifest(here.to_json(), versions(), self._settings(), self.seed), self.tables)
        with progress_bar() as progress:
            compute = _Kind(
                "compute", directory.compute(), self.hardware.compute_timing.live, self.num_compute_samples,
                self.num_second_pass, _COMPUTE, self.seed, (self._compute_variant(split, printer(progress)),),
            ).collect(progress)  # fmt: skip
            comm = _Kind(
                "exchanges", directory.comm(), self.hardware.comm_timing.live, self.num_comm_samples,
                self.num_second_pass, _COMM, self.seed,
                tuple(self._comm_variant(count, printer(progress)) for count in self.comm.num_devices),
            ).collect(progress)  # fmt: skip
        return Summary(directory.path, compute, comm)

    def _compute_variant(self, split: TableSplit, warn: Warn) -> "_Variant[ComputeSample]":
        return _Variant(
            lambda rng: self.compute.draw(split, self._batch_size(rng), rng),
            lambda: self.hardware.compute_meter(warn),
        )

    def _comm_variant(self, num_devices: int, warn: Warn) -> "_Variant[CommSample]":
        per_host = self.hardware.devices_per_host(num_devices)
        return _Variant(
            lambda rng: self.comm.draw(num_devices, self._batch_size(rng), rng, per_host),
            lambda: self.hardware.comm_meter(num_devices, warn),
        )

    def _batch_size(self, rng: np.random.Generator) -> int:
        return int(rng.choice(self.batch_sizes))

    def _settings(self) -> dict[str, Any]:
        settings = asdict(self) | {"compute": self.compute.settings, "comm": self.comm.settings}
        return {key: value for key, value in settings.items() if key not in ("tables", "seed", "out")}


@dataclass(frozen=True)
class _Variant(Generic[Sample]):
    """Samples that one meter measures: such as exchanges between the same number of processes."""

    draw: Callable[[np.random.Generator], tuple[Sample, str]]
    open_meter: Callable[[], AbstractContextManager[Meter[Sample]]]


@dataclass(frozen=True)
class _Kind(Generic[Sample]):
    """One kind of sample in a run, split into parts of `part_size`; the last parts are the second pass.

    Parts take turns among the variants, so that no variant has a spell of the machine to itself.
    """

    name: str
    parts: Parts[Sample]
    part_size: int
    num_samples: int
    num_second_pass: int
    stream: int
    seed: int
    variants: tuple[_Variant[Sample], ...]

    def collect(self, progress: Progress) -> KindSummary:
        """Measure and write every part that is missing."""
        batches = self._batches()
        missing = [number for number in range(len(batches)) if not self.parts.has(number)]
        bar = progress.add_task(self.name, total=sum(map(len, batches)))
        progress.advance(bar, sum(len(ids) for n, ids in enumerate(batches) if n not in missing))
        busy_s, start = 0.0, time.perf_counter()
        with ExitStack() as meters:
            opened: dict[int, Meter[Sample]] = {}
            for number in missing:
                variant = self._variant(batches[number])
                if variant not in opened:
                    opened[variant] = meters.enter_context(self.variants[variant].open_meter())
                busy_s += self._measure_part(opened[variant], number, batches[number])
                progress.advance(bar, len(batches[number]))
        return KindSummary.of(self.name, self.parts.read(), time.perf_counter() - start, busy_s)

    def _batches(self) -> list[range]:
        """Sample ids of every part."""
        return [*self._cut(self.num_samples), *self._cut(min(self.num_second_pass, self.num_samples))]

    def _cut(self, count: int) -> list[range]:
        """The first `count` sample ids, by part."""
        return [range(start, min(start + self.part_size, count)) for start in range(0, count, self.part_size)]

    def _variant(self, ids: range) -> int:
        """Index of the variant that the samples of a part belong to; the same in both passes."""
        return ids.start // self.part_size % len(self.variants)

    def _measure_part(self, meter: Meter[Sample], number: int, ids: range) -> float:
        second_pass = number >= len(self._cut(self.num_samples))
        draw = self.variants[self._variant(ids)].draw
        drawn = [draw(self._rng(sample_id)) for sample_id in ids]
        outcomes = meter.measure([sample for sample, _ in drawn], [self._lookup_seed(i) for i in ids])
        self.parts.write(
            number,
            [
                Measurement(_as_seen(sample, outcome), i, split, self.seed, outcome.repeats, outcome.error, second_pass)
                for i, (sample, split), outcome in zip(ids, drawn, outcomes, strict=True)
            ],
        )
        return sum(outcome.busy_s for outcome in outcomes)

    def _rng(self, sample_id: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.stream, _DRAW, sample_id])

    def _lookup_seed(self, sample_id: int) -> int:
        return int(np.random.SeedSequence([self.seed, self.stream, _LOOKUPS, sample_id]).generate_state(1)[0])


def _as_seen(sample: Sample, outcome: Outcome) -> Sample:
    """The sample, with what was looked up in its blocks of rows, if it has any."""
    return replace(sample, lookups=outcome.seen) if isinstance(sample, ComputeSample) else sample
