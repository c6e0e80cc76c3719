"""Published measurements of GPUs, on which datasheet models are based: times of collectives and of kernels."""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from neuroshard.cost.loads import Loads
from neuroshard.models.host_tiers import in_sectors, moved_row_bytes, passes
from neuroshard.models.stored import Tensors, checked_tensor, within
from neuroshard.plumbing.arrays import BoolArray, FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import Dim, Name, Positive, Rows, TableCount
from neuroshard.tables import Table
from neuroshard.tables.reuse import MEAN_COUNTS
from neuroshard.words.collective import ELEMENT_BYTES
from neuroshard.words.placement import Tier, TierAssignment

_POINTS = Path(__file__).resolve().parent / "points"
_MS, _NS = 1e-3, 1e-6  # ms in a microsecond, and in a nanosecond
_LEAST_MS, _MOST_MS = 1e-9, 1e9  # limits of the times in a curve, so that interpolated times stay finite
_COUNT = re.compile("[2-9]|[1-9][0-9]{1,3}")  # numbers of devices: 2 or more, because one device exchanges nothing
AtLeastOne = Annotated[float, Meta(ge=1, le=1e15)]
Optimizer = Annotated[str, Meta(pattern="^(sgd|rowwise_adagrad|adam)$")]
_COLLECTIVES = ("alltoall", "all_reduce", "reduce_scatter", "all_gather")  # by NCCL's names
_SWEPT, _SWEPT_BYTES_PER_MS = (
    "h100_meta",
    2.4e9,
)  # the GPU with forward points of many widths, and the speed of its memory


@dataclass(frozen=True)
@checked
class KernelPoint:
    """A published time of a whole kernel call, in ms, with the tables and lookups of the call."""

    sheet: Name
    backward: bool
    tier_assignment: TierAssignment
    optimizer: Optimizer
    tables: TableCount
    rows: Rows
    dim: Dim
    lookups: AtLeastOne
    unique: Positive
    pooled: bool
    outputs: AtLeastOne
    ms: Positive
    source: Name

    @property
    def row_bytes(self) -> float:
        """The bytes that memory moves to read one row of the call's tables."""
        return float(moved_row_bytes(self.loads)[0])

    @property
    def loads(self) -> Loads:
        """The tables of the call as `Loads`, (n,), with equal lookups per table and the published number of unique
        rows.
        """
        pooling = self.lookups / self.outputs if self.pooled else 1.0
        table = Table("t", self.rows, self.dim, pooling, _reuse(self.lookups / self.unique), pooled=self.pooled)
        return Loads.of([table] * self.tables, round(self.outputs / self.tables)).at(
            [self.tier_assignment] * self.tables
        )


def _reuse(mean: float) -> tuple[float, ...]:
    """Return a reuse histogram for a table whose looked-up rows have `mean` lookups per batch on average. A reuse
    histogram has the share of the looked-up rows that are looked up once, twice, 3 to 4 times, 5 to 8 times, and so on.
    """
    above = min(max(int(np.searchsorted(MEAN_COUNTS, mean)), 1), len(MEAN_COUNTS) - 1)
    below = above - 1
    share = float(np.clip((mean - MEAN_COUNTS[below]) / (MEAN_COUNTS[above] - MEAN_COUNTS[below]), 0, 1))
    bins = np.zeros(len(MEAN_COUNTS))
    bins[below], bins[above] = 1 - share, share
    return tuple(bins.tolist())


@cache
def kernel_points() -> tuple[KernelPoint, ...]:
    """Return all published times of kernel calls, one point for each call.

    If a publication does not state the number of unique rows, a third of the lookups is assumed.
    """
    return tuple(
        KernelPoint(
            row["sheet"],
            row["pass"] == "backward",
            TierAssignment(Tier(row["tier"]), 1.0 if row["tier"] == "uvm_caching" else None),
            row["optimizer"] or "sgd",
            int(row["tables"]),
            int(row["rows"]),
            int(row["dim"]),
            float(row["lookups"]),
            float(row["unique"] or float(row["lookups"]) / 3),
            row["pooled"] == "true",
            float(row["outputs"]),
            float(row["ms"]),
            row["source"],
        )
        for row in point_rows("kernels.csv")
    )


@dataclass(frozen=True)
class Widths:
    """Factors for the time of lookups, as a function of the bytes in a row. A factor is the time of lookups, divided by
    the time that memory takes to move the looked-up bytes at the full speed. A factor can be less than 1, because
    caches serve some lookups.

    Narrow rows keep few threads of a kernel busy; wide rows are in caches less often. Between points, the logarithm of
    the factor is interpolated over the logarithm of the bytes; outside of the points, the nearest point counts.

    Attributes:
        row_bytes: (W,) rising bytes that memory moves for a row; empty if all factors are 1.
        factor: (W,) factor for each of them.
    """

    row_bytes: tuple[float, ...]
    factor: tuple[float, ...]

    def __call__(self, row_bytes: FloatArray) -> FloatArray:
        """Return the factor for the time of lookups in each of n tables, (n,). With a factor of 2, lookups take twice
        the time that memory takes to move the looked-up bytes at the full speed. `row_bytes` (n,) has the bytes that
        memory moves to read one row of each table.
        """
        if not self.row_bytes:
            return np.ones_like(row_bytes)
        factor: FloatArray = np.exp(np.interp(np.log(row_bytes), np.log(self.row_bytes), np.log(self.factor)))
        return factor

    def holds(self, dim: FloatArray) -> BoolArray:
        """Return an array, (n,), that is True for each table with a width inside the range of the published widths.
        `dim` (n,) are the numbers of columns of the tables.
        """
        least, most = (self.row_bytes[0], self.row_bytes[-1]) if self.row_bytes else (0, np.inf)
        row_bytes = in_sectors(dim * ELEMENT_BYTES)
        return (row_bytes >= least) & (row_bytes <= most)

    @classmethod
    def of(cls, points: Iterable[KernelPoint], call_ms: float, bag_ns: float) -> "Widths":
        """Return `Widths` with factors that are computed from published times of forward calls in a Meta benchmark.
        First, two fixed times are subtracted from each published time: `call_ms` for the call, and `bag_ns` for each
        bag.

        Points with rows of equal bytes become one point, with the geometric mean of their factors.
        """
        factors: dict[float, list[float]] = {}
        for point in points:
            if point.sheet == _SWEPT:
                looked_up, outputs = (float(its_bytes.sum()) for its_bytes in passes(point.loads)[:2])
                seen = (point.ms - call_ms - point.outputs * bag_ns * _NS) * _SWEPT_BYTES_PER_MS - outputs
                factors.setdefault(point.row_bytes, []).append(seen / looked_up)
        row_bytes = sorted(factors)
        return cls(tuple(row_bytes), tuple(float(np.exp(np.mean(np.log(factors[one])))) for one in row_bytes))


EVEN = Widths((), ())


@dataclass(frozen=True, eq=False)
class Curves:
    """Times of collectives on one host with one type of GPU, as curves over the buffer size. Sizes and times have the
    same meaning as in the output of nccl-tests.

    Between two sizes, the logarithm of the time is interpolated over the logarithm of the size; above the largest size,
    times are proportional to the bytes. Between two numbers of devices, the time per byte that leaves a device is
    interpolated. More bytes never take less time.

    Attributes:
        sizes: (S,) bytes of a device's whole buffer, rising.
        points: (S,) ms as published, by collective (of NCCL's names) and number of devices.
    """

    sizes: FloatArray
    points: Mapping[str, Mapping[int, FloatArray]]

    @cached_property
    def _log_ms(self) -> dict[str, dict[int, FloatArray]]:
        """The logarithms of the published times, in ms, in a dict by collective and then by number of devices. Each
        value has the logarithms for S buffer sizes, (S,).

        Before the logarithm, each time is smoothed by `rising`, and divided by the share of the buffer that a device
        sends to other devices, such as 7/8 with 8 devices. These times can be interpolated between two numbers of
        devices.
        """
        return {
            collective: {count: np.log(rising(ms) / _leaving_share(count)) for count, ms in by_count.items()}
            for collective, by_count in self.points.items()
        }

    def __call__(self, collective: str, devices: int, size_bytes: FloatArray) -> FloatArray:
        """Return the ms, (...,), that a collective takes between `devices` devices with buffers of `size_bytes` (...,);
        0 for one device.
        """
        if devices == 1:
            return np.zeros_like(size_bytes)
        log_bytes = np.log(np.maximum(size_bytes, 1.0))
        log_ms = np.interp(log_bytes, self._log_sizes, self._between(collective, devices))
        ms: FloatArray = np.exp(log_ms + np.maximum(log_bytes - self._log_sizes[-1], 0))
        return ms

    def _between(self, collective: str, devices: int) -> FloatArray:
        """Return the times of a collective between `devices` devices, as logarithms of ms, (S,). There is one time for
        each of the S buffer sizes. If no times were published for this number of devices, the result is interpolated
        between other numbers of devices. Above the largest and below the smallest published number, the time per byte
        that leaves a device stays the same. Results are cached.
        """
        if (key := (collective, devices)) not in self._known:
            curves = self._log_ms[collective]
            counts = sorted(curves)
            share = np.interp(
                np.log(devices), np.log(counts), np.arange(len(counts))
            )  # a position between two numbers of devices
            weights = np.maximum(1 - np.abs(share - np.arange(len(counts))), 0)
            self._known[key] = weights @ [curves[count] for count in counts] + np.log(_leaving_share(devices))
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[str, int], FloatArray]:
        """Cache of the curves that have been interpolated so far, by collective and number of devices."""
        return {}

    @cached_property
    def _log_sizes(self) -> FloatArray:
        return np.log(self.sizes)

    def tensors(self, name: str) -> dict[str, FloatArray]:
        """Return the sizes and the times of the curves as tensors, whose names begin with `name`."""
        each = (
            (f"{collective}.{count}", ms)
            for collective, by_count in self.points.items()
            for count, ms in by_count.items()
        )
        return {f"{name}.{own}": values for own, values in (("sizes", self.sizes), *each)}

    @classmethod
    def restored(cls, name: str, tensors: Tensors) -> "Curves":
        """Return the curves that are stored in `tensors`. This method reverses the method `tensors(name)`.

        Raises:
            ValueError: the tensors are not curves of positive times over rising sizes.
        """
        own = within(tensors, name)
        held = {key: checked_tensor(own, key, np.float64, 1) for key in own}
        sizes = held.pop("sizes", np.zeros(1))
        points: dict[str, dict[int, FloatArray]] = {collective: {} for collective in _COLLECTIVES}
        for key, ms in held.items():
            collective, _, count = key.partition(".")
            possible = ms.shape == sizes.shape and ((ms >= _LEAST_MS) & (ms <= _MOST_MS)).all()
            if collective not in points or _COUNT.fullmatch(count) is None or not possible:
                raise ValueError(f"curve {key!r} does not have a positive time of a collective for each size")
            points[collective][int(count)] = ms
        if not all(points.values()) or sizes[0] < 1 or not (np.diff(sizes) > 0).all():
            raise ValueError("the sizes of the curves do not rise, or the times of a collective are missing")
        return cls(sizes, points)


def _leaving_share(devices: int) -> float:
    """Return the share of a device's buffer that the device sends to other devices, if `devices` devices exchange their
    buffers.
    """
    return (devices - 1) / devices


@cache
def curves_of(gpu: str) -> Curves:
    """Return the curves of a GPU, by the name of the GPU in the file of published points, such as "h100"."""
    rows = [row for row in point_rows("nccl.csv") if row["gpu"] == gpu]
    sizes = [name for name in rows[0] if name.isdigit()]
    ms: dict[str, dict[int, FloatArray]] = {}
    for row in rows:
        times = np.array([float(row[size]) for size in sizes]) * _MS
        ms.setdefault(row["collective"], {})[int(row["num_gpus"])] = times
    return Curves(np.array(sizes, dtype=np.float64), ms)


def rising(times: FloatArray) -> FloatArray:
    """Return a smoothed copy of `times` (S,), which never falls from one entry to the next.
    An entry is unchanged if no earlier time is larger and no later time is smaller.

    Each result is the geometric mean of the largest time up to the entry, and the smallest time from the entry on.
    """
    before, after = np.maximum.accumulate(times), np.minimum.accumulate(times[::-1])[::-1]
    halfway: FloatArray = np.sqrt(before * after)
    return halfway


def point_rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of the file `name` of published points, each as a dict."""
    with (_POINTS / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
