"""Measurements of made-up devices, and short training settings for tests that need no accurate models."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neuroshard.measure import Meter
from neuroshard.measure.hardware import Warn
from neuroshard.measure.store import DataDirectory, Manifest
from neuroshard.measure.store.samples import CommSample, ComputeSample, LocalSample, Measurement, Repeats
from neuroshard.measure.store.splits import split_tables
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.fit_additive import Additive
from neuroshard.stages.pretrain.fit_set_comm import SetCommunication
from neuroshard.stages.pretrain.training import TrainingSettings
from neuroshard.tables import Table
from neuroshard.words.fingerprint import Fingerprint
from tests.kit.devices import MADE_UP, MadeUpDevice, measured_comm, measured_compute
from tests.kit.devices.made_up import MadeUpHardware, SlowerBy

MACHINE = Fingerprint("cpu", "none", 2, 1 << 30)
BRIEF = TrainingSettings(2, 64, 3e-3, "cosine", "absolute_relative", 2)
BRIEF_SETS = {
    "compute_model": Additive((8,), training=BRIEF, corrections=2),
    "comm_model": SetCommunication((8,), BRIEF, parts=2),
}


@dataclass(frozen=True)
class OnTwoHosts(MadeUpHardware):
    """Made-up hardware with half of the devices on each of two hosts."""

    def devices_per_host(self, num_devices: int) -> int:
        """Return half of the devices."""
        return num_devices // 2


def begun(
    path: Path, tables: Sequence[Table], machine: Fingerprint = MACHINE, versions: dict[str, str] | None = None
) -> DataDirectory:
    """Begin a data directory of a machine, without measurements."""
    directory = DataDirectory(path)
    directory.begin(Manifest(asdict(machine), versions or {}, {}, 0), tables)
    return directory


def collected(
    path: Path,
    tables: Sequence[Table],
    calls: tuple[int, ComputeAugmentation],
    exchanges: tuple[int, CommAugmentation],
    batch_size: int = 4096,
    devices_per_host: int | None = None,
    device: MadeUpDevice = MADE_UP["cpu"],
) -> DataDirectory:
    """Make a data directory with measurements of random kernel calls and exchanges among 4 devices, with 3% noise.

    `calls` and `exchanges` are each the number of samples and the augmentation that draws them.
    """
    rng, split, directory = np.random.default_rng(0), split_tables(tables, 0), begun(path, tables)
    compute = [calls[1].draw(split, batch_size, rng) for _ in range(calls[0])]
    comm = [exchanges[1].draw(4, batch_size, rng, devices_per_host) for _ in range(exchanges[0])]
    directory.compute().write(0, measured_compute(device, compute, 0.03, rng))
    directory.comm().write(0, measured_comm(device, comm, 0.03, rng))
    return directory


def measured(
    sample: ComputeSample | CommSample | LocalSample, number: int, times_ms: Any, split: str = "train", repeats: int = 1
) -> Measurement[Any]:
    """Make the measurement of a sample that took the same time in every repeat."""
    return Measurement(sample, number, split, 0, Repeats(np.stack([np.asarray(times_ms)] * repeats), np.zeros(repeats)))


def drifting(factors: Iterable[float], **settings: Any) -> MadeUpHardware:
    """Make hardware of changing speed: the times of each batch of kernel calls are multiplied by the next factor.

    If `factors` is an iterator, each meter continues where the last meter stopped; if a list, each starts at the first.
    """

    class Drifting(MadeUpHardware):
        def compute_meter(self, warn: Warn) -> Meter[ComputeSample]:
            return SlowerBy(super().compute_meter(warn), iter(factors))

    return Drifting(**settings)
