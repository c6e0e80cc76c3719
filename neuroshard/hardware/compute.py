"""Timing compute samples on one device."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from neuroshard.hardware.device import Device
from neuroshard.hardware.embedding import Arenas, build_run
from neuroshard.hardware.runs import Outcome, Report, Run, Timed, run_batch
from neuroshard.hardware.settings import EmbeddingSettings
from neuroshard.records.samples import ComputeSample
from neuroshard.timing import TimingProtocol


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
        builds = [partial(self._build, s, np.random.default_rng(seed)) for s, seed in zip(samples, seeds, strict=True)]
        return run_batch(builds, self._protocol, np.random.default_rng(seeds), report)

    def _build(self, sample: ComputeSample, rng: np.random.Generator) -> Run:
        run = build_run(sample, self._settings, self._device.torch_device, self._arenas, rng)
        return partial(self._time, run)

    def _time(self, run: Callable[[], None]) -> Timed:
        ms = self._device.time_ms(run)
        return Timed(np.array(ms), ms / 1e3)

    def _reserve(self, samples: Sequence[ComputeSample]) -> None:
        """Room for the largest sample first, so that memory is touched before anything is timed."""
        if self._device.torch_device.type != "cpu":
            return
        for sample in sorted(samples, key=lambda sample: -sample.size_bytes):
            bytes_per_element = sample.tables[0].bytes_per_element
            try:
                self._arenas[bytes_per_element].reserve(sample.size_bytes // bytes_per_element)
            except MemoryError:
                continue  # its build says so again, and that is recorded as the sample's error
