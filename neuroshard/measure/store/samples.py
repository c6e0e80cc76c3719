"""The samples that `collect` and other commands measure, and the measurements of samples.
A sample is a kernel call, an exchange, or the local work of a rank in a training step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, final

from neuroshard.layouts import LAYOUTS
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import shown
from neuroshard.plumbing.timing import typical_ms
from neuroshard.tables import Table
from neuroshard.words.collective import BETWEEN_HOSTS, ELEMENT_BYTES, Collective, Precision, name_of
from neuroshard.words.form import CALLS, COLUMN_WISE_CALL, CUT_FORMS, Call, Form
from neuroshard.words.placement import ON_DEVICE, TierAssignment

FORWARD, BACKWARD = 0, 1  # directions of an exchange, as indices into repeats
LOCAL_PHASES = (  # phases of a step without its exchanges
    "input",
    "lookups",
    "outputs",
    "dense",
    "gradients",
    "backward",
    "reducing data-parallel gradients",
    "data-parallel optimizer",
)
HOST = "host"  # the time to launch a step, if device and host work in parallel


@dataclass(frozen=True)
class RowBlock:
    """A block of a table's rows on a device: `rows` rows, starting at row number `row`."""

    row: int
    rows: int

    @property
    def row_end(self) -> int:
        """The number of the first row after the block."""
        return self.row + self.rows


@dataclass(frozen=True)
class BlockLookups:
    """The lookups of a batch in one block of a table's rows: the number of lookups (`count`), and a reuse histogram
    (`reuse`). The histogram has 17 bins of lookups per row: 1, 2, 3 to 4, 5 to 8 and so on. The value of a bin is the
    share of the looked-up rows that are in the bin. For example, 70% of the looked-up rows are looked up once if the
    first value is 0.7.

    A block without lookups has the histogram of rows that are touched once.
    """

    count: int
    reuse: tuple[float, ...]


@final
@dataclass(frozen=True)
class ComputeSample:
    """One kernel call on one device, which is a sample to measure.
    The call looks up n tables, (n,), for `batch_size` examples of training data.

    Attributes:
        tables: whole tables, with the width that the device has; they define the popularity of rows. All tables are
            pooled, or all are sequence tables of one width, because FBGEMM has no other kernels.
        batch_size: number of samples whose lookups the call serves: the global batch, or the device's own share of the
            batch if the tables are data-parallel.
        form: family of the sharding type of all tables. Column-wise and row-wise tables use the fused kernel;
            data-parallel tables use the dense kernel with an update of every row.
        blocks: (n,) rows that the device has of each table if the tables are row-wise; otherwise empty.
        hot_first: share of the rows with more than one lookup that have the table's lowest numbers, hottest first, as
            if rows were numbered by frequency; all other rows are anywhere.
        lookups: (n,) lookups in each block, after the sample was measured; otherwise empty.
        tier_assignment: the memory tier of all tables. Cached tables share one cache, which has room for the assigned
            share of all their rows.
    """

    tables: tuple[Table, ...]
    batch_size: int
    form: Form = COLUMN_WISE_CALL.form
    blocks: tuple[RowBlock, ...] = ()
    hot_first: float = 0.0
    lookups: tuple[BlockLookups, ...] = ()
    tier_assignment: TierAssignment = ON_DEVICE

    def __post_init__(self) -> None:
        if len(self.blocks) != (len(self.tables) if LAYOUTS[self.form].blocks else 0):
            raise UserError(
                "sample-block-count",
                f"blocks has {number_of(len(self.blocks), 'row block')} "
                f"for {number_of(len(self.tables), f'{self.form} table')}",
                limit="each row_wise table must have one row block, and other tables must have none",
                remedy="Give one row block for each row_wise table, and none for other tables",
            )
        self._check_kernel()
        if len(self.lookups) not in (0, len(self.blocks)):
            raise UserError(
                "sample-lookups-count",
                f"lookups has {number_of(len(self.lookups), 'entry', 'entries')} "
                f"for {number_of(len(self.blocks), 'row block')}",
                remedy="Give the lookups of every row block, or of none",
            )
        for table, block in zip(self.tables, self.blocks, strict=False):
            if block.row < 0 or block.rows < 1 or block.row_end > table.rows:
                raise UserError(
                    "sample-rows-outside",
                    f"a block of table {table.name!r} has rows {block.row} to {block.row_end - 1}",
                    limit=f"a block must have at least one row, and the table has rows 0 to {table.rows - 1}",
                    remedy="Give a block of rows that the table has",
                )

    def _check_kernel(self) -> None:
        """Raise UserError if no FBGEMM kernel looks up all tables of this sample in one call."""
        if len({table.pooled for table in self.tables}) > 1:
            raise UserError(
                "kernel-pooling-mixed",
                "one kernel call has both pooled tables and sequence tables",
                limit="FBGEMM has no kernel for both types of tables together",
                remedy="Make two samples: one of the pooled tables, and one of the sequence tables",
            )
        if (call := self.call) not in CALLS:
            what = (
                "sequence tables"
                if self.tier_assignment == ON_DEVICE
                else f"tables in tier {self.tier_assignment.tier}"
            )
            raise UserError(
                "kernel-missing",
                f"there is no kernel call for {what} with {self.form} sharding",
                remedy=f"Use {' or '.join(CUT_FORMS)} sharding for these tables",
            )
        if not call.pooled and len(widths := {table.dim for table in self.tables}) > 1:
            raise UserError(
                "kernel-widths-mixed",
                f"one kernel call has sequence tables of {' and '.join(map(str, sorted(widths)))} columns",
                limit="all sequence tables of a kernel call must have the same number of columns",
                remedy="Make one sample for each number of columns",
            )

    @property
    def call(self) -> Call:
        """The type of the kernel call. The type consists of the family of sharding types (such as column-wise or
        data-parallel), the pooling, and the memory tier.
        """
        return Call(self.form, not self.tables or self.tables[0].pooled, self.tier_assignment.tier)

    @property
    def held(self) -> tuple[Table, ...]:
        """The n tables that the call looks up, each with only the rows that are on the device. For row-wise tables,
        these are the rows of the device's row blocks. All other tables have all rows.
        """
        if not self.blocks:
            return self.tables
        return tuple(replace(table, rows=block.rows) for table, block in zip(self.tables, self.blocks, strict=True))

    @property
    def size_bytes(self) -> int:
        """The bytes of the weights that the device stores for all tables of this kernel call."""
        return sum(table.size_bytes for table in self.held)


@final
@dataclass(frozen=True)
class CommSample:
    """One exchange, as a sample to measure: a collective between D devices, at a global batch size.

    Attributes:
        size_bytes: (D,) bytes that each device sends for all samples of a batch, including bytes to itself, as in
            `Traffic`; for the input dist, bytes that each device receives.
        start_ms: (D,) delay of each device.
        batch_size: number of samples over all devices.
        collective: the collective; the backward exchange of a reduce-scatter is an all-gather.
        devices_per_host: number of devices on each host, in order of rank, if slower links join several hosts; None if
            one host has all devices.
    """

    size_bytes: tuple[int, ...]
    start_ms: tuple[float, ...]
    batch_size: int
    collective: Collective = Collective.ALL_TO_ALL
    devices_per_host: int | None = None

    @classmethod
    def of_columns(cls, dims: Sequence[int], start_ms: Sequence[float], batch_size: int) -> "CommSample":
        """Return an all-to-all exchange that sends the pooled embeddings of a batch.
        `dims` (D,) are the numbers of embedding columns that each of D devices sends for each sample of the batch, and
        `start_ms` (D,) are the start delays of the devices.
        """
        sizes = tuple(ELEMENT_BYTES * batch_size * dim for dim in dims)
        return cls(sizes, tuple(start_ms), batch_size)

    def __post_init__(self) -> None:
        if not self.size_bytes or len(self.size_bytes) != len(self.start_ms):
            raise UserError(
                "exchange-start-count",
                f"size_bytes has {number_of(len(self.size_bytes), 'size')}, "
                f"but start_ms has {number_of(len(self.start_ms), 'delay')}",
                where="exchange",
                limit="each device has one size and one start delay, so both must have the same length, at least 1",
                remedy="Give one size and one start delay for each device",
            )
        if len(self.size_bytes) % self.host_size:
            raise UserError(
                "exchange-hosts-uneven",
                f"devices_per_host is {self.host_size} in an exchange of {number_of(len(self.size_bytes), 'device')}",
                where="exchange",
                limit="devices_per_host must divide the number of devices",
                remedy=f"Set devices_per_host to a divisor of {len(self.size_bytes)}",
            )
        if self.devices_per_host is None and self.collective in BETWEEN_HOSTS:
            raise UserError(
                "exchange-hosts-missing",
                "devices_per_host is not set",
                where="exchange",
                limit=f"the collective {name_of(self.collective)} needs the number of devices on each host",
                remedy="Set devices_per_host to the number of devices on each host",
            )
        for host in self._equal_sizes:
            if len(set(host)) > 1:
                devices = "all devices of a host" if self.collective in BETWEEN_HOSTS else "all devices"
                raise UserError(
                    "exchange-sizes-unequal",
                    f"the sizes in bytes of {name_of(self.collective)} are {shown(host)}",
                    where="exchange",
                    limit=f"in this collective, {devices} must have the same size",
                    remedy=f"Set size_bytes to the same size for {devices}",
                )

    @property
    def num_devices(self) -> int:
        """The number of devices in the exchange, D."""
        return len(self.size_bytes)

    @property
    def host_size(self) -> int:
        """The number of devices on each host; all devices if there is only one host."""
        return self.devices_per_host or len(self.size_bytes)

    @property
    def dims(self) -> tuple[int, ...]:
        """The number of columns of pooled embeddings that each of D devices sends, (D,)."""
        return tuple(size // (ELEMENT_BYTES * self.batch_size) for size in self.size_bytes)

    @property
    def _equal_sizes(self) -> list[tuple[int, ...]]:
        """The groups of devices that must all send the same number of bytes: a list with one tuple for each group. A
        tuple has the bytes that each device of the group sends.

        A reduce-scatter or an all-reduce has one group with all devices. A collective for tables whose rows are on one
        host, such as table_row_wise tables, has one group for each host. For other collectives, such as an all-to-all,
        devices may send unequal bytes, and the list is empty.
        """
        if self.collective in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE):
            return [self.size_bytes]
        if self.collective in BETWEEN_HOSTS:
            return [self.size_bytes[i : i + self.host_size] for i in range(0, len(self.size_bytes), self.host_size)]
        return []


@final
@dataclass(frozen=True)
class LocalSample:
    """The local work of one rank in a training step of a plan in TorchRec, without exchanges. The work is measured in a
    mirrored step, in which one process runs one rank of a larger job.

    Attributes:
        plan: the plan.
        rank: the rank.
        precision: data type of embeddings and gradients in exchanges.
    """

    plan: Plan
    rank: int
    precision: Precision = Precision.FP32

    def __post_init__(self) -> None:
        if not 0 <= self.rank < (devices := self.plan.task.topology.num_devices):
            raise UserError(
                "sample-rank-outside",
                f"rank is {self.rank}",
                limit=f"the plan is for {number_of(devices, 'device')}, with ranks 0 to {devices - 1}",
                remedy=f"Set rank to a number from 0 to {devices - 1}",
            )

    @property
    def batch_size(self) -> int:
        """The global batch size of the step: the number of training examples on all devices together."""
        return self.plan.task.batch_size


Sample = TypeVar("Sample", ComputeSample, CommSample, LocalSample)


def as_drawn(sample: Sample) -> Sample:
    """Return a sample as it was drawn, before it was measured. A measurement of row-wise tables adds the lookups of
    each row block to the sample; this function returns a copy with an empty field `lookups`. Samples of exchanges and
    of local work are returned unchanged.
    """
    return replace(sample, lookups=()) if isinstance(sample, ComputeSample) else sample


@dataclass(frozen=True)
class Repeats:
    """All timed runs of one sample: the measured times, and the time at which each run began.

    Attributes:
        times_ms: (R,) for a kernel call; (R, 2, D) for an exchange: forward and backward, per device; (R, P) for local
            work: by phase (`LOCAL_PHASES`), and last the time of the `HOST` if device and host work in parallel.
        at_s: (R,) start time of each repeat, in seconds since the epoch.
    """

    times_ms: FloatArray
    at_s: FloatArray

    def times(self, factor: float) -> "Repeats":
        """Return the repeats with all times multiplied by the factor."""
        return replace(self, times_ms=self.times_ms * factor)


@dataclass(frozen=True)
class Measurement(Generic[Sample]):
    """The measurement of one sample: the timed repeats, or the error that stopped the measurement.

    Attributes:
        sample: the sample.
        sample_id: number of the sample in the run; the same number gives the same sample for the same seed.
        split: "train", "valid" or "test": the split of the sample's tables; or "reference": a sample that was measured
            with every batch, to show the machine's speed.
        seed: the run's seed; with `sample_id` it fixes the drawn indices.
        repeats: the timed repeats; None after an error.
        error: the error; None if there was none.
        second_pass: True if the sample was measured again later in the run, to learn how repeatable the first pass was.
        slowness: the machine's slowness at that time: measured time relative to the time at the typical speed; 1 if
            unknown.
    """

    sample: Sample
    sample_id: int
    split: str
    seed: int
    repeats: Repeats | None
    error: str | None = None
    second_pass: bool = False
    slowness: float = 1.0

    def __post_init__(self) -> None:
        if (self.repeats is None) == (self.error is None):
            raise ValueError("a measurement has either repeats or an error")

    @property
    def typical_ms(self) -> FloatArray:
        """The typical time of the sample in ms: the mean of the fastest half of the R repeats.
        The result has the shape of `repeats.times_ms` without the first axis, R. The measurement must have repeats.
        """
        assert self.repeats is not None
        return typical_ms(self.repeats.times_ms)

    @property
    def level(self) -> "Measurement[Sample]":
        """A copy of the measurement with the times that the machine would need at its typical speed. Each time of the
        copy is the measured time divided by `slowness`, and the slowness of the copy is 1.
        """
        repeats = None if self.repeats is None else self.repeats.times(1 / self.slowness)
        return replace(self, repeats=repeats, slowness=1.0)
