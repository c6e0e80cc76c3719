"""The interfaces of cost models, as the simulator and the searchers use them. Times are in ms."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import ClassVar, NamedTuple

import numpy as np

from neuroshard.cost.cost import KernelTimes, When
from neuroshard.cost.loads import Loads, LoadSets, Traffic
from neuroshard.layouts import LAYOUTS
from neuroshard.plumbing.arrays import Float32Array, FloatArray, sums_of
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Collective
from neuroshard.words.form import COLUMN_WISE_CALL, Call, Forms
from neuroshard.words.topology import Topology

NUM_WAITS = 5
_WIDER = 65536.0  # in units of the costs: more than narrow tables save on any device


class Coverage(IntEnum):
    """The way in which a predicted cost follows from published measurements. For example, a cost can be interpolated
    between measurements or extrapolated from measurements. A larger value means that the measurements say less about
    the cost. `str` converts a value to a text for people, such as "extrapolated from published measurements".

    Attributes:
        COVERED: the cost is between published measurements of the same type of device and of call.
        EXTRAPOLATED: the cost is outside the range of the published measurements, or they are of a similar case:
            another GPU, or another data type of weights.
        SCALED: published measurements are scaled to links of another speed.
        TYPICAL: the cost is of a typical server, from which servers with this GPU differ widely.
    """

    COVERED = 0
    EXTRAPOLATED = 1
    SCALED = 2
    TYPICAL = 3

    def __str__(self) -> str:
        return _COVERAGES[self]


_COVERAGES = {
    Coverage.COVERED: "interpolated between published measurements",
    Coverage.EXTRAPOLATED: "extrapolated from published measurements",
    Coverage.SCALED: "scaled from published measurements of links of another speed",
    Coverage.TYPICAL: "those of a typical PCIe server (published servers reach 2 to 46 GB/s; set host_busbw_gb_per_s)",
}


class ComputeModel(ABC):
    """Model that predicts the time of kernel calls in ms. The input for a call is the loads (the work) of the shards in
    which the call looks up embeddings. A call without shards takes no time.

    Searches may call a model from several threads at once.
    """

    @property
    def calls(self) -> frozenset[Call]:
        """The types of kernel calls whose times the model can predict: by default only calls of pooled column-wise
        tables.
        """
        return frozenset({COLUMN_WISE_CALL})

    @property
    def forms(self) -> Forms:
        """The families of sharding types (`Form`) of pooled tables whose kernel times the model can predict."""
        return frozenset(call.form for call in self.calls if call.pooled)

    @property
    def arithmetic(self) -> frozenset[Call]:
        """The types of kernel calls whose times are computed from a datasheet, and not fitted to measurements: by
        default none.
        """
        return frozenset()

    def coverage(self, loads: Loads) -> Coverage | None:
        """Return the way in which the predicted costs of the shards in `loads` follow from published measurements, such
        as by interpolation (`Coverage`). Only models whose times are computed from a datasheet return a value; other
        models return None.
        """
        return None

    @abstractmethod
    def predict(self, sets: LoadSets) -> FloatArray:
        """Predict the time of each of B kernel calls, (B,) ms; each of the `sets` has the shards of one call."""

    def spread_ms(self, sets: LoadSets) -> FloatArray:
        """Return the standard deviation of an ensemble's predictions for each of B kernel calls, (B,) ms; zeros if the
        model is not an ensemble.
        """
        return np.zeros(len(sets))

    def device_ms(self, devices: LoadSets) -> FloatArray:
        """Predict the total kernel time of each of B devices, (B,) ms. `devices` has the loads of the shards on each
        device. A device may run several kernel calls, one after the other.
        """
        calls, of_kernels = devices.by_kernel()
        cost: FloatArray = self.predict(calls).reshape(len(devices), len(of_kernels)).sum(axis=1)
        return cost


@dataclass(frozen=True)
class ReluHead:
    """Head that predicts the time of a kernel call from v, the sum of the vectors of the shards in the call. The time
    is max(sum(relu(v + bias) * weight) + offset, 0) * scale_ms.

    `bias` and `weight` are (H,). The head is simple enough to be compiled into the inner loop of the search.
    """

    bias: Float32Array
    weight: Float32Array
    offset: float
    scale_ms: float

    @classmethod
    def of_cost(cls, offset: float = 0.0) -> "ReluHead":
        """Return a head for shards whose vector has only one element: the cost of the shard in ms. For a kernel call
        whose shards cost c ms in total, the head returns max(c + `offset`, 0) ms.
        """
        return cls(np.zeros(1, np.float32), np.ones(1, np.float32), offset, 1.0)

    def with_added_ms(self, offset_ms: float = 0.0) -> "ReluHead":
        """Return a head for vectors that have one more element at the end: a time in ms. The returned head adds this
        time to the time that this head computes from the other elements.

        `offset_ms` is added to all times. Only a negative total counts as 0.
        """
        bias, weight = np.append(self.bias, np.float32(0)), np.append(self.weight, np.float32(1 / self.scale_ms))
        return ReluHead(bias, weight, self.offset + offset_ms / self.scale_ms, self.scale_ms)

    def __call__(self, sums: Float32Array) -> FloatArray:
        """Return the times of kernel calls in ms, (...,). For each call, `sums` (..., H) has a vector of H numbers: the
        sum of the vectors of the shards in the call. The result is not meaningful for calls without shards.
        """
        return self.finish(np.maximum(sums + self.bias, 0) @ self.weight)

    def finish(self, score: FloatArray | Float32Array) -> FloatArray:
        """Return the times of kernel calls in ms, (...,): (score + offset) * scale_ms, or 0 if this product is
        negative. `score` (...,) has sum(relu(v + bias) * weight) for each call, where v is the sum of the vectors of
        the shards.
        """
        return np.maximum(score.astype(np.float64) + self.offset, 0) * self.scale_ms


@dataclass(frozen=True, eq=False)
class NarrowCalls:
    """Model of the time that a kernel call saves if all tables in the call are narrow. The model has W limits of the
    table width, such as 32, 64 and 128 columns. For each limit that no table in the call exceeds, every table in the
    call saves a share of the table's cost.

    FBGEMM's CUDA kernels give every row as many threads as the call's widest table needs (8 up to 32 columns, 16 up to
    64, else 32) and as many registers: a narrow table costs less if all tables of the call are narrow. So each table
    has a number d_w for each width w: the part of its cost that is saved if no table is wider than w; if the table
    itself is wider, a negative number larger than any sum of savings. Then the set saves relu(sum of d_w) by w. A
    share of a cost is below 1, so that one more table never makes a set cheaper.

    Attributes:
        widths: (W,) rising limits.
        shares: (W,) share that each width saves of the cost that is left at the next larger width.
    """

    widths: tuple[int, ...]
    shares: Float32Array

    def saved_of(self, cost: Float32Array, dim: FloatArray) -> Float32Array:
        """Return the savings of n tables for each of W width limits, (n, W). The saving of a table for a limit is the
        part of the table's cost that is saved if no table in the kernel call is wider than the limit. `cost` (n,) has
        the costs of the tables in a call with wide tables, and `dim` (n,) has the widths of the tables in columns.

        The savings of several limits add up. If the table itself is wider than a limit, the saving (d_w) is a large
        negative number, so that the call saves nothing for this limit.
        """
        saved = np.full((len(cost), len(self.widths)), -_WIDER, dtype=np.float32)
        left = cost.copy()
        for number in reversed(range(len(self.widths))):
            narrow = dim <= self.widths[number]
            saved[narrow, number] = left[narrow] * self.shares[number]
            left[narrow] -= saved[narrow, number]
        return saved

    def left_of(self, dim: FloatArray) -> FloatArray:
        """Return the cost of a table in each of n kernel calls, as a share of the table's cost in a call with wide
        tables, (n,). The widest table in a call has `dim` (n,) columns. For example, 0.6 means that the table costs 60%
        of the cost in a call with wide tables. The share is 1 if `dim` is above all limits. Each limit that `dim` does
        not exceed makes the share smaller.
        """
        left: FloatArray = np.where(
            dim[:, None] <= np.array(self.widths), 1 - self.shares.astype(np.float64), 1.0
        ).prod(axis=1)
        return left

    def smoothly_left_of(self, dim: FloatArray) -> FloatArray:
        """Return the cost of a table in each of n kernel calls, as a share of the table's cost in a call with wide
        tables, (n,). The widest table in a call has `dim` (n,) columns. Unlike the share from `left_of`, this share has
        no jumps at the width limits.

        At a width limit, the share is equal to the share from `left_of`. Between two limits, the share is interpolated.
        Above the largest limit, the share rises to 1 at twice this limit.
        """
        widths = np.array(self.widths, dtype=np.float64)
        left: FloatArray = np.interp(dim, [*widths, 2 * widths[-1]], [*self.left_of(widths), 1.0])
        return left

    def less_saved(self, head: ReluHead) -> ReluHead:
        """Return a copy of `head` that subtracts the savings of narrow tables from the time of a kernel call. The copy
        takes vectors with W more elements at the end: the savings of a table for each of W width limits (`saved_of`).
        For each limit, the savings are summed over the tables in the call; if the sum is negative, nothing is
        subtracted.
        """
        bias = np.concatenate([head.bias, np.zeros(len(self.widths), np.float32)])
        weight = np.concatenate([head.weight, np.full(len(self.widths), -1, np.float32)])
        return replace(head, bias=bias, weight=weight)


class SumModel(ComputeModel):
    """Compute model with the structure of the NeuroShard paper's model: each shard has a vector, the vectors of the
    shards in a kernel call are added up, and a head turns the sum into a time.

    The search is fast with such models: adding a load to a device is one addition, a time is one small dot product.
    """

    @property
    @abstractmethod
    def head(self) -> ReluHead:
        """The head that turns the summed vectors of the shards in a kernel call, (H,), into ms."""

    @abstractmethod
    def embed(self, loads: Loads) -> Float32Array:
        """Return a vector of H numbers for each of n shards (`loads`), (n, H).
        The vectors of all shards in a kernel call are added up, and `head` turns the sum into the time of the call.
        """

    def predict(self, sets: LoadSets) -> FloatArray:
        """Predict the time of each of B kernel calls, (B,) ms; each of the `sets` has the shards of one call."""
        cost, filled = np.zeros(len(sets)), sets.counts > 0
        if filled.any():
            cost[filled] = self.head(sums_of(self.embed(sets.loads), sets.counts[filled]))
        return cost


class CommModel(ABC):
    """Model of the exchanges in one direction, forward or backward: each device waits until the straggler starts, and
    then transfers data.

    Searches may call a model from several threads at once.

    Attributes:
        arithmetic: True if all times are computed from a datasheet, and not fitted to measurements.
    """

    arithmetic: ClassVar[bool] = False

    @property
    def collectives(self) -> frozenset[Collective]:
        """The collectives whose times the model can predict: by default only all-to-alls."""
        return frozenset({Collective.ALL_TO_ALL})

    @property
    def forms(self) -> Forms:
        """The families of sharding types (`Form`) whose exchanges the model can predict.
        The model may ignore exchanges of other families.
        """
        return frozenset(form for form, layout in LAYOUTS.items() if self.collectives.issuperset(layout.exchanges))

    def coverage(self, traffic: Traffic) -> Coverage | None:
        """Return the way in which the predicted cost of this traffic follows from published measurements, such as by
        interpolation (`Coverage`). Only models whose times are computed from a datasheet return a value; other models
        return None.
        """
        return None

    @property
    @abstractmethod
    def num_devices(self) -> int | None:
        """The number of devices D that the model was fitted for; None if the model serves any number of devices."""

    def predict(self, traffic: Traffic, start_ms: FloatArray) -> FloatArray:
        """Predict the time of the exchanges on each device, (B, D) ms: from the moment at which the device starts to
        the moment at which its last exchange ends. `traffic` has the bytes that the devices send, and `start_ms` (B, D)
        has the delays with which the devices start.
        """
        return self.chain(traffic, start_ms).total_ms

    def alone_ms(self, alone: Traffic, start_ms: FloatArray) -> FloatArray:
        """Predict the ms that a single collective takes on each device, (B, D). `alone` is the traffic of this
        collective (`Traffic.alone`), and `start_ms` (B, D) has the delays with which the devices start. An exchange
        without bytes takes 0 ms, and devices do not wait for it.
        """
        taken: FloatArray = self.predict(alone, start_ms) * (alone.size_bytes.sum(axis=(1, 2)) > 0)[:, None]
        return taken

    def chain(self, traffic: Traffic, start_ms: FloatArray) -> "Chain":
        """Predict the time of each exchange in the direction of this model, and the time of all these exchanges
        together (`Chain`). The exchanges run one after the other. By default there is only one exchange, an all-to-all.
        """
        wait_ms = waits(start_ms)
        total_ms = wait_ms + self.transfer_ms(traffic, wait_ms)
        return Chain(total_ms, {Collective.ALL_TO_ALL: total_ms})

    def even_ms(self, given: FloatArray, batch_size: int, topology: Topology) -> FloatArray:
        """Predict the ms of the exchanges in each of B cases, (B,), if all devices start at the same time and send
        equal bytes. `given` (B, C) has the bytes that each device sends in each of C collectives, such as an
        all-to-all.

        If a model predicts different times for such devices, the longest time counts.
        """
        size_bytes = np.repeat(given[:, None], topology.num_devices, axis=1)
        traffic = Traffic(size_bytes, np.full(len(given), batch_size), topology.fast_links)
        even_ms: FloatArray = self.predict(traffic, np.zeros(size_bytes.shape[:2])).max(axis=1)
        return even_ms

    @abstractmethod
    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Predict the transfer time of each device, (B, D) ms: from the moment at which the straggler starts to the end
        of the exchange on the device. The straggler is the last device to start. `wait_ms` (B, D) is the time that each
        device has waited for the straggler.
        """

    def outline(self, traffic: Traffic) -> "Outline":
        """Return a formula (`Outline`) that gives the transfer time of each device for any waits. A wait is the time
        that a device waits for the straggler (the last device to start).

        By default, waits do not change the transfer time: the formula has one segment, the transfer time if no device
        waits. In subclasses, waits may shorten the segments.

        From the segments, the times at many start delays are computed quickly.
        """
        together = np.zeros(traffic.size_bytes.shape[:2])
        return Outline(self.transfer_ms(traffic, together)[..., None], np.ones(1), np.zeros((1, NUM_WAITS)))


class EqualWork(NamedTuple):
    """The amount of work of each device in B plans. All devices of a plan are assumed to have the same amount of work,
    so that there is only one amount for each plan.

    Attributes:
        kernels: (B, K) number of kernels of each of `CALLS`, as in `KernelTimes`.
        counts: (B, C) counts of the work of a device, as in `KernelTimes`.
        input_bytes: (B,) bytes of indices and lengths that come to a device.
    """

    kernels: FloatArray
    counts: FloatArray
    input_bytes: FloatArray


class PartModel(ABC):
    """Base class of models that predict the time of one part of a step other than kernels and exchanges, such as the
    framework overhead.

    Of the three methods only `ms` must be written: it gives the costs of whole plans. Searches place shards by
    `of_shards`, and choose sharding types by `shared_ms` too; without them the part does not influence their choices.

    Attributes:
        name: name that no other part has.
        when: place of the part in the step.
        hidden: True if a pipeline hides the part: it is shown, and counts only with `count_input`.
        by_counts: True if the part depends on the counts of the work of devices (`KernelTimes.counts`).
        about: description of the part, for people.
        hides: share of the errors of earlier parts that this part hides if it takes any time.
    """

    name: str
    when: ClassVar[When]
    hidden: ClassVar[bool] = False
    by_counts: ClassVar[bool] = False
    hides: ClassVar[float] = 0.0
    about: str = ""

    @abstractmethod
    def ms(self, times: KernelTimes, traffic: Traffic, ready_ms: FloatArray) -> FloatArray:
        """Predict the ms that this part of a step takes on each device, (B, D), for B plans on D devices.
        The ms include the time that the device waits in this part.

        Args:
            times: kernel times, and counts of the work of the devices.
            traffic: bytes that the devices exchange.
            ready_ms: (B, D) ms of the step until each device is ready for the part.
        """

    def of_shards(self, task: Task) -> Callable[[Loads], FloatArray] | None:
        """Return a function that estimates by how many ms each of n shards lengthens this part of a step, (n,). The
        argument of the function is the loads of the n shards (`Loads`). The ms of a shard count on the device that has
        the shard. Return None if shards do not lengthen this part, or if the ms are unknown.

        By default None: the part does not depend on shards, or nobody knows how.
        """
        return None

    def shared_ms(self, task: Task, work: EqualWork, ready_ms: FloatArray) -> FloatArray:
        """Predict the ms of this part of a step that no single shard causes, in each of B plans, (B,). The time of the
        part on a device is this result, plus the ms that `of_shards` estimates for each shard on the device. All
        devices of a plan are assumed to have equal work.

        By default 0.

        Args:
            task: the task, with its number of devices.
            work: work of each device of B plans.
            ready_ms: (B,) ms of the step until the devices are ready for a part in `When.HOST`; 0 for other parts.
        """
        return np.zeros(len(work.kernels))


@dataclass(frozen=True, eq=False)
class Chain:
    """Predicted times of exchanges that run one after the other, on D devices in B plans. `total_ms` (B, D) is the time
    of all exchanges together. `each_ms` maps each collective, such as all-to-all, to the time of the collective's
    exchange, (B, D): the time since the end of the previous exchange.
    """

    total_ms: FloatArray
    each_ms: dict[Collective, FloatArray]


@dataclass(frozen=True, eq=False)
class Outline:
    """Formula for the transfer time of each device in B exchanges, as a function of waits. A wait is the time that a
    device waits for the straggler (the last device to start). The transfer time is a weighted sum of P segments, each
    with a time in ms. Waits can shorten segments, because a part of the transfer is done during the wait.

    A transfer is the sum over segments of share * max(segment - lead . waits, 0).

    Attributes:
        segments_ms: (B, D, P).
        share: (P,).
        lead: (P, W) of `device_waits`.
    """

    segments_ms: FloatArray
    share: FloatArray
    lead: FloatArray


def device_waits(wait_ms: FloatArray) -> FloatArray:
    """Return the statistics of waits on which the transfer time of a device depends: W = 5 numbers for each of D >= 2
    devices in each of B exchanges, (B, D, W). `wait_ms` (B, D) is the time that each device waits for the straggler,
    which is the last device to start.

    The statistics are the wait of the device itself, the wait of the last device to start but one, the mean wait, the
    longest wait, and the wait of the last other device to start.
    """
    next_to_last = np.partition(wait_ms, 1, axis=1)[:, 1:2]
    others = np.where(wait_ms > 0, 0, next_to_last)
    stacked, mean = np.empty((*wait_ms.shape, NUM_WAITS)), wait_ms.sum(axis=1, keepdims=True) / wait_ms.shape[1]
    columns = (wait_ms, next_to_last, mean, wait_ms.max(axis=1, keepdims=True), others)
    for w, wait in enumerate(columns):
        stacked[..., w] = wait
    return stacked


def waits(start_ms: FloatArray) -> FloatArray:
    """Return the ms that each device waits for the straggler, (B, D), from the start delays of the devices, (B, D)."""
    wait_ms: FloatArray = start_ms.max(axis=1, keepdims=True) - start_ms
    return wait_ms
