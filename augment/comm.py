"""Random exchanges at many levels of imbalance (NeuroShard, section 3.1)."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from neuroshard.checked import checked
from neuroshard.errors import UserError
from neuroshard.records.samples import CommSample
from neuroshard.records.splits import TEST, TRAIN, VALID
from neuroshard.schema import Devices, Dim, NonNegative, TableCount
from neuroshard.tables import halvings

_SPLITS = (TRAIN,) * 8 + (VALID, TEST)


@dataclass(frozen=True)
@checked
class CommAugmentation:
    """Which exchanges are drawn.

    Tables are handed out widest first to the device with the fewest columns, but a share of them, drawn anew for
    every sample, goes to random devices instead: so exchanges range from balanced to lopsided. Each device starts
    after a random delay, up to a limit that is itself drawn anew.

    Attributes:
        num_devices: processes that exchange: every count here gets an equal share of the samples.
        max_dim: tables have widths max_dim, max_dim / 2, ..., 4.
        min_tables, max_tables: over all devices.
        max_start_ms: the longest start delay.
    """

    num_devices: Annotated[tuple[Devices, ...], Meta(min_length=1)] = (4,)
    max_dim: Dim = 128
    min_tables: TableCount = 10
    max_tables: TableCount = 59
    max_start_ms: NonNegative = 20.0

    def __post_init__(self) -> None:
        halvings(self.max_dim)
        if self.min_tables > self.max_tables:
            raise UserError(f"exchanges: min_tables={self.min_tables} must lie in 1..max_tables={self.max_tables}")

    def draw(
        self, num_devices: int, batch_size: int, rng: np.random.Generator, devices_per_host: int | None = None
    ) -> tuple[CommSample, str]:
        """One exchange between `num_devices` processes with the name of the split it belongs to."""
        tables = int(rng.integers(self.min_tables, self.max_tables + 1))
        dims = np.sort(rng.choice(halvings(self.max_dim), size=tables))[::-1]
        random_share = rng.random()
        columns = np.zeros(num_devices, dtype=np.int64)
        for dim in dims:
            at_random = rng.random() < random_share
            device = rng.integers(num_devices) if at_random else columns.argmin()
            columns[device] += dim
        starts = rng.random(num_devices) * self.max_start_ms * rng.random()
        sample = CommSample.of_columns(columns.tolist(), starts.tolist(), batch_size, devices_per_host=devices_per_host)
        return sample, str(rng.choice(_SPLITS))
