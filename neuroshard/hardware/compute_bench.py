"""Timing compute samples on one device."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from neuroshard.hardware.dense import dense_run
from neuroshard.hardware.device import Device
from neuroshard.hardware.embedding import Arenas, fused_run
from neuroshard.hardware.inputs import Prepared
from neuroshard.hardware.runs import Outcome, Report, Run, Timed, run_batch
from neuroshard.hardware.specs import EmbeddingSettings
from neuroshard.layouts import LAYOUTS
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.records.samples import BlockLookups, ComputeSample


class ComputeBench:
    """Measures batches of compute samples on a prepared device; keeps the weights' memory between batches."""

    def __init__(self, device: Device, settings: EmbeddingSettings, protocol: TimingProtocol) -> None:
        self._device = device
        self._settings = settings
        self._protocol = protocol
        self._arenas = Arenas()

    def measure(self, samples: Sequence[ComputeSample], seeds: Sequence[int], report: Report) -> list[Outcome]:
        """An outcome for each sample; its repeats are (R,) ms."""
        self._reserve(samples)
        seen: dict[int, tuple[BlockLookups, ...]] = {}

        def build(index: int) -> Run:
            prepared = self._prepare(samples[index], np.random.default_rng(seeds[index]))
            seen[index] = prepared.seen
            return partial(self._time, prepared)

        builds = [partial(build, index) for index in range(len(samples))]
        outcomes = run_batch(builds, self._protocol, np.random.default_rng(seeds), report)
        return [replace(outcome, seen=seen.get(index, ())) for index, outcome in enumerate(outcomes)]

    def _prepare(self, sample: ComputeSample, rng: np.random.Generator) -> Prepared:
        if LAYOUTS[sample.form].dense:
            return dense_run(sample, self._settings, self._device.torch_device, rng)
        return fused_run(sample, self._settings, self._device.torch_device, self._arenas, rng)

    def _time(self, prepared: Prepared) -> Timed:
        ms = self._device.time_ms(prepared.next_run())
        return Timed(np.array(ms), ms / 1e3)

    def _reserve(self, samples: Sequence[ComputeSample]) -> None:
        """Room for the largest sample first, so that memory is touched before anything is timed."""
        if self._device.torch_device.type != "cpu":
            return
        fused = [sample for sample in samples if not LAYOUTS[sample.form].dense]
        for sample in sorted(fused, key=lambda sample: -sample.size_bytes):
            bytes_per_element = sample.tables[0].bytes_per_element
            try:
                self._arenas[bytes_per_element].reserve(sample.size_bytes // bytes_per_element)
            except MemoryError:
                continue  # its build says so again, and that is recorded as the sample's error
