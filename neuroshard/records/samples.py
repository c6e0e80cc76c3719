"""What is measured and what came of it: the records of stage 1."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from neuroshard.arrays import FloatArray
from neuroshard.errors import UserError
from neuroshard.tables import Table

FORWARD, BACKWARD = 0, 1  # directions of an exchange, as repeats hold them


@dataclass(frozen=True)
class ComputeSample:
    """Tables (n,) on one device, looked up by one fused kernel call for `batch_size` samples."""

    tables: tuple[Table, ...]
    batch_size: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(table.size_bytes for table in self.tables)


@dataclass(frozen=True)
class CommSample:
    """An exchange between D devices: `dims` (D,) columns of each, `start_ms` (D,) delay of each.

    `batch_size` is global: device i sends batch_size / D samples of dims[i] columns to every other.
    """

    dims: tuple[int, ...]
    start_ms: tuple[float, ...]
    batch_size: int

    def __post_init__(self) -> None:
        if not self.dims or len(self.dims) != len(self.start_ms):
            raise UserError(f"exchange: {len(self.dims)} dims but {len(self.start_ms)} start delays")


Sample = TypeVar("Sample", ComputeSample, CommSample)


@dataclass(frozen=True)
class Repeats:
    """Every timed repeat of one sample.

    Attributes:
        times_ms: (R,) for a compute sample; (R, 2, D) for an exchange: forward and backward, per device.
        at_s: (R,) when each repeat began, seconds since the epoch.
    """

    times_ms: FloatArray
    at_s: FloatArray


@dataclass(frozen=True)
class Measurement(Generic[Sample]):
    """What became of one sample: its repeats, or the error that stopped it.

    Attributes:
        sample_id: its place in the run; the same id gives the same sample for the same seed.
        split: "train", "valid" or "test": which part of the tables it was drawn from.
        second_pass: measured again at the end of the run, to learn how repeatable the first pass was.
        seed: the run's seed; with `sample_id` it fixes the indices drawn.
    """

    sample: Sample
    sample_id: int
    split: str
    seed: int
    repeats: Repeats | None
    error: str | None = None
    second_pass: bool = False

    def __post_init__(self) -> None:
        if (self.repeats is None) == (self.error is None):
            raise ValueError("a measurement has either repeats or an error")
