"""The collect run: it draws samples, measures the samples and writes the measurements in chunks,
and can resume an earlier run.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Generic

import numpy as np
from msgspec import Meta
from rich.progress import Progress

from neuroshard.measure import Hardware
from neuroshard.measure.hardware import is_follower
from neuroshard.measure.recorder import Due, Recorder, in_batches, meters_of, mixed
from neuroshard.measure.store import Chunks, DataDirectory, Manifest
from neuroshard.measure.store.noise import disturbed, fastest, pass_noise
from neuroshard.measure.store.run_directory import RunDirectory
from neuroshard.measure.store.samples import CommSample, ComputeSample, Sample
from neuroshard.measure.store.speed import with_slowness
from neuroshard.measure.store.splits import REFERENCE, Split, split_tables
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.progress import printer, progress_bar
from neuroshard.plumbing.schema import BatchSize, Count, Positive, Seed, Share
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.augment.local import PlanAugmentation
from neuroshard.stages.augment.summary import MAX_NOISE, SeriesSummary, Summary
from neuroshard.tables import Table, check_unique_names
from neuroshard.words.fingerprint import versions
from neuroshard.words.placement import Tier

_COMPUTE, _COMM, _LOCAL = 0, 1, 2  # one stream of random numbers for each kind of sample
_DRAW, _LOOKUPS = 0, 1
_NOT_MEASURED = (
    "tables",
    "seed",
    "out",
    "max_noise",
    "max_remeasure_passes",
)  # these settings do not change the samples
_LIVE_STEPS = 8  # training steps in a chunk


@dataclass(frozen=True)
@checked
class Collect:
    """The settings of `neuroshard collect`: the tables, the hardware, and the samples to draw and measure.

    Attributes:
        tables: tables that samples are drawn from.
        hardware: hardware to measure on.
        compute, comm, local: how samples of kernel calls, exchanges and mirrored training steps are drawn.
        num_compute_samples: number of kernel calls to measure; each call looks up a random combination of tables;
            larger values take longer and give better models.
        num_comm_samples: number of exchanges between devices to measure; larger values take longer and give better
            models; 0 measures none.
        num_local_samples: number of mirrored training steps (one process runs one rank of a larger job) to measure,
            from which `neuroshard pretrain` learns TorchRec's framework overhead; needs TorchRec, and 0 measures none.
        num_second_pass: number of samples of each kind (kernel calls, exchanges, training steps) that are measured a
            second time at the end, to estimate the noise.
        batch_sizes: list of global batch sizes (samples per step over all devices), such as [1024,4096], at which
            kernel calls and exchanges are measured.
        seed: seed of the random kernel calls, exchanges and training steps, and of their lookups.
        out: directory that the measurements are written to; after an interruption, the same command continues there.
        max_noise: maximum relative difference between two measurements of a sample (0.5 is 50%); the run fails if more
            than 1 in 10 of the repeated samples differ by more; None sets no limit. If a sample differs by more, its
            slower pass was disturbed: the sample is measured again, together with the samples that were measured in the
            same batch.
        max_remeasure_passes: maximum number of times that noisy samples (which differ by more than max_noise) are
            measured again, with the other samples of their batch, while more than 1 in 10 samples are noisy.
        references: fraction of the kernel calls of each batch (calls measured together), from 0 to 1, that are the same
            in all batches, to show changes of the machine's speed; 0 repeats no calls. `pretrain` corrects measured
            times by them.
    """

    tables: tuple[Table, ...]
    hardware: Hardware
    compute: ComputeAugmentation
    comm: CommAugmentation
    batch_sizes: Annotated[tuple[BatchSize, ...], Meta(min_length=1)]
    out: str
    seed: Seed = 0
    num_compute_samples: Count = 2400
    num_comm_samples: Count = 1200
    num_second_pass: Count = 48
    max_noise: Positive | None = MAX_NOISE
    max_remeasure_passes: Count = 3
    local: PlanAugmentation = field(default_factory=PlanAugmentation)
    num_local_samples: Count = 0
    references: Share = 0.06

    def __post_init__(self) -> None:
        check_unique_names(self.tables)
        if not (self.num_compute_samples or self.num_comm_samples or self.num_local_samples):
            raise UserError(
                "collect-no-samples",
                "num_compute_samples, num_comm_samples and num_local_samples are all 0",
                limit="there is nothing to measure",
                remedy="Set one of these settings to more than 0",
            )
        if (least := min(self.batch_sizes)) < max(self.comm.num_devices):
            fewer = any(2 <= count <= least for count in self.comm.num_devices)
            raise UserError(
                "collect-batch-size-too-small",
                f"batch_sizes contains {least}, and comm.num_devices={list(self.comm.num_devices)} "
                f"includes exchanges of {max(self.comm.num_devices)} devices",
                limit="each device needs at least one sample of a batch",
                remedy=f"Set every batch size to {max(self.comm.num_devices)} or more"
                + (f", or remove the numbers above {least} from comm.num_devices" if fewer else ""),
            )
        split = split_tables(self.tables, self.seed)
        self.compute.check(split)
        if self.num_local_samples:
            self._check_steps(split)
        self.hardware.check_tiers(Tier(tier) for tier in self.compute.tiers)
        if self.num_comm_samples and min(self.comm.num_devices) < 2:
            raise UserError(
                "collect-one-device",
                "comm.num_devices has 1",
                limit="one device has nothing to exchange",
                remedy="Remove 1 from comm.num_devices, or set num_comm_samples=0",
            )
        for count in self.comm.num_devices:
            self.comm.check(self.hardware.devices_per_host(count))

    def _check_steps(self, split: Split) -> None:
        """Raise UserError if TorchRec, which runs the measured training steps, is not installed, or if training steps
        cannot be drawn from the tables.
        """
        if find_spec("torchrec") is None:
            raise UserError(
                "collect-torchrec-missing",
                f"num_local_samples is {self.num_local_samples}, but TorchRec is not installed",
                limit="these samples are training steps of TorchRec",
                remedy="Leave out num_local_samples, or install TorchRec as docs/how-to/torchrec.md describes",
            )
        self.local.check(split)

    def run(self) -> Summary | None:
        """Measure the samples that are still missing in the run's data directory, and return a summary.
        Under torchrun, only rank 0 returns a summary. The other processes take part in the exchanges, and return None.

        Raises:
            UserError: the hardware cannot measure here; `out` has data of another run; or the measurements are noisier
                than `max_noise` after `max_remeasure_passes`. The measurements are kept, and the same command continues
                with them.
        """
        self.hardware.check()
        if is_follower():
            self.hardware.follow()
            return None
        with RunDirectory(Path(self.out)).held(["manifest.json"]):
            return self._collect(DataDirectory(Path(self.out)))

    def _collect(self, directory: DataDirectory) -> Summary:
        split, here = split_tables(self.tables, self.seed), asdict(self.hardware.fingerprint)
        directory.begin(Manifest(here, versions(), self._settings(), self.seed), self.tables)
        with progress_bar() as progress:
            summaries = tuple(series.collect(progress) for series in self._series(directory, split))
        summary = Summary(directory.path, summaries)
        if self.max_noise is not None:
            summary.check(self.max_noise)
        return summary

    def _series(self, directory: DataDirectory, split: Split) -> Iterator["_Series[Any]"]:
        """Yield the series of samples (kernel calls, exchanges and training steps) in the order in which the series are
        measured.
        """
        calls, count, live = (partial(self._call, split),), self.num_compute_samples, self.hardware.compute_timing.live
        again = min(ceil(self.references * live), live - 1)  # a chunk has `live` samples with its references
        yield _Series(self, "compute", directory.compute(), live - again, count, _COMPUTE, calls, again)
        exchanges, count = tuple(partial(self._exchange, n) for n in self.comm.num_devices), self.num_comm_samples
        yield _Series(self, "exchanges", directory.comm(), self.hardware.comm_timing.live, count, _COMM, exchanges)
        if self.num_local_samples:
            steps = (partial(self.local.draw, split),)
            yield _Series(self, "local work", directory.local(), _LIVE_STEPS, self.num_local_samples, _LOCAL, steps)

    def _call(self, split: Split, rng: np.random.Generator) -> tuple[ComputeSample, str]:
        return self.compute.draw(split, self._batch_size(rng), rng)

    def _exchange(self, num_devices: int, rng: np.random.Generator) -> tuple[CommSample, str]:
        per_host = self.hardware.devices_per_host(num_devices)
        return self.comm.draw(num_devices, self._batch_size(rng), rng, per_host)

    def _batch_size(self, rng: np.random.Generator) -> int:
        return int(rng.choice(self.batch_sizes))

    def _settings(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key not in _NOT_MEASURED}


@dataclass(frozen=True)
class _Batch:
    """The ids of the samples in one chunk: samples that are measured and stored together.
    A run may have several functions that draw random samples. All samples of a chunk are drawn by the same function.
    """

    ids: tuple[int, ...]
    second_pass: bool


@dataclass(frozen=True)
class _Series(Generic[Sample]):
    """All samples of one type in a run (kernel calls, exchanges or training steps), divided into chunks of
    `chunk_size`. The last chunks measure some of the samples a second time.

    Each chunk also measures the same reference samples; their ids follow the ids of all other samples.

    A variant draws samples that one meter measures, for example exchanges between the same number of processes. Chunks
    alternate between the variants, so that a slow period of the machine does not affect one variant alone.
    """

    run: Collect
    name: str
    chunks: Chunks[Sample]
    chunk_size: int
    num_samples: int
    stream: int
    variants: tuple[Callable[[np.random.Generator], tuple[Sample, str]], ...]
    num_references: int = 0

    def collect(self, progress: Progress) -> SeriesSummary:
        """Measure and write every missing chunk, and measure chunks again if their noise is too high; return a summary
        of the series.
        """
        batches = list(enumerate(self._batches))
        start, busy_s = time.perf_counter(), 0.0
        with meters_of(self.run.hardware, printer(progress)) as meters:
            recorder = Recorder(meters.of, self.chunk_size, self.run.seed, self.chunks)
            there = sum(self._size(batch) for number, batch in batches if self.chunks.has(number))
            bar = progress.add_task(self.name, total=sum(self._size(batch) for _, batch in batches), completed=there)
            for outcomes in recorder.complete((number, partial(self._due, batch)) for number, batch in batches):
                busy_s += sum(outcome.busy_s for outcome in outcomes)
                progress.advance(bar, len(outcomes))
            for number_of_pass in range(self.run.max_remeasure_passes):
                if not (again := self._disturbed()):
                    break
                count = sum(self._size(batch) for batch in again)
                noise = f"the noise is above max_noise={self.run.max_noise}"
                printer(progress)(f"{self.name}: {noise}; measuring {number_of(count, 'sample')} again")
                bar = progress.add_task(f"{self.name}, again ({number_of_pass + 1})", total=count)
                for batch in again:
                    outcomes = recorder.record(self._due(batch))
                    busy_s += sum(outcome.busy_s for outcome in outcomes)
                    progress.advance(bar, len(outcomes))
        measured = fastest(with_slowness(self.chunks.each(), {REFERENCE}))
        return SeriesSummary.of(self.name, measured, time.perf_counter() - start, busy_s)

    @property
    def _batches(self) -> list[_Batch]:
        """The chunks of the series, in the order in which the chunks are measured.
        The first chunks have each sample once. The last chunks are a second pass: they measure some of the samples
        again. The samples of the second pass are spread evenly over the run.

        Because of the even spread, the second pass covers every period of the run.
        """
        again = min(self.run.num_second_pass, self.num_samples)
        spread: list[int] = [number * self.num_samples // again for number in range(again)]
        return [*self._chunked(range(self.num_samples), second_pass=False), *self._chunked(spread, second_pass=True)]

    def _disturbed(self) -> list[_Batch]:
        """Return the chunks that must be measured again, because something slowed the machine down.
        The list is empty if the run has no noise limit, or if the noise is within the limit.

        A chunk is measured again as a whole if one of its samples took longer here than in its other pass: the other
        samples were measured at the same time.
        """
        measured = fastest(self.chunks.each())
        if self.run.max_noise is None or pass_noise(measured) <= self.run.max_noise:
            return []
        slower = disturbed(measured, self.run.max_noise)
        return [batch for batch in self._batches if any(slower.get(i) is batch.second_pass for i in batch.ids)]

    def _chunked(self, ids: Sequence[int], second_pass: bool) -> list[_Batch]:
        """Divide the samples with these ids into chunks, and return the chunks in the order of the chunks' first ids.
        All samples of a chunk are drawn by the same function. `second_pass` is True if the chunks measure the samples a
        second time.
        """
        of_variant = grouped(ids, self.variant).values()
        chunks = [tuple(chunk) for variant_ids in of_variant for chunk in in_batches(variant_ids, self.chunk_size)]
        return [_Batch(ids_of_chunk, second_pass) for ids_of_chunk in sorted(chunks)]

    def variant(self, sample_id: int) -> int:
        """Return the index of the function that draws the sample with this id.
        A series may have several functions that draw samples, for example one function for each number of processes.
        """
        return sample_id // self.chunk_size % len(self.variants)

    def _size(self, batch: _Batch) -> int:
        return len(batch.ids) + self.num_references

    def _due(self, batch: _Batch) -> list[Due[Sample]]:
        """Draw the samples of a chunk, and the reference samples, which show the machine's speed in every chunk.
        Return all these samples in one list, in which the reference samples are spread evenly.
        """
        draw = self.variants[self.variant(batch.ids[0])]
        references = range(self.num_samples, self.num_samples + self.num_references)
        return mixed(
            [self._drawn(i, *draw(self._rng(i)), batch.second_pass) for i in batch.ids],
            [self._drawn(i, draw(self._rng(i))[0], REFERENCE) for i in references],
        )

    def _drawn(self, sample_id: int, sample: Sample, split: str, second_pass: bool = False) -> Due[Sample]:
        lookups = np.random.SeedSequence([self.run.seed, self.stream, _LOOKUPS, sample_id])
        return Due(sample, sample_id, int(lookups.generate_state(1)[0]), split, second_pass)

    def _rng(self, sample_id: int) -> np.random.Generator:
        return np.random.default_rng([self.run.seed, self.stream, _DRAW, sample_id])
