"""The parts of a training step: their names, the quantities that decide their costs, and models of the input dist and
of the framework overhead.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from neuroshard.cost.cost import COMPUTE, FRAMEWORK, INPUT, KernelTimes, When
from neuroshard.cost.loads import Loads, LoadSets, Traffic
from neuroshard.layouts import LAYOUTS, are, sent_bytes_of
from neuroshard.models.interface import CommModel, EqualWork, PartModel
from neuroshard.models.stored import Stored
from neuroshard.models.trust import Margin
from neuroshard.plumbing.arrays import BoolArray, FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import check_name
from neuroshard.plumbing.schema import NonNegative
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Collective
from neuroshard.words.form import CALLS, COLUMN_WISE_CALL, FORMS, Call

COUNTS = (  # the amounts of work of a load
    "shards",
    "data-parallel tables",
    "lookups",
    "data-parallel lookups",
    "row-wise lookups",
    "row-wise bags",
    "MB of column-wise outputs",
    "MB of row-wise outputs",
    "MB of column-wise sequence outputs",
    "MB of row-wise sequence outputs",
    "MB of data-parallel outputs",
    "million data-parallel weights",
    "shards of cut tables",
)
_IN_USE = "calls", "calls except data-parallel", "calls except data-parallel x devices"
# For pooled tables: TorchRec joins outputs of several sharding types, and orders all column-wise outputs if a table is
# split by columns.
_COPIED = "MB of outputs of several sharding types", "MB of column-wise outputs if some are cut"
_OF_ALL = (
    "lookups",
    "row-wise lookups",
    "MB of column-wise outputs",
    "MB of column-wise sequence outputs",
)  # of a device, whichever device looks up
# The terms of a part: counts of the plan, counts of a device, and counts of the mean device.
_OF_PLAN = "step", *_IN_USE, *_COPIED
TERMS = (*_OF_PLAN, *(f"own {name}" for name in COUNTS), *(f"mean {name}" for name in _OF_ALL))
CONVERTED = "MB converted"  # from fp32 into fewer bits or back, by a device: a term only if exchanges have fewer bits
_ABOUT = {  # descriptions of the parts of the framework overhead, in the order of a step
    "input": "lookups put in order for the devices that look them up",
    "kernels": "what kernels take longer in a step",
    "outputs": "outputs and gradients put in order",
}
_OWN = slice(len(_OF_PLAN), len(_OF_PLAN) + len(COUNTS))
_MEANS = [COUNTS.index(name) for name in _OF_ALL]
_MILLION = 1e6
_HOST = "host"
_OF_LAUNCHES = f"{FRAMEWORK}.kernels", f"{FRAMEWORK}.{_HOST}"  # parts that depend on all kernel calls of a device
UNKNOWN_DENSE_MS = 7.5  # the middle of 0 to 15 ms; dense networks on an H100 took 4 to 14 ms
_FOLLOWS = 0.9  # ms of additional waiting per ms less of work; measured with sparse-dist: 0.85 to 0.9
_POOLED = np.array([call.pooled for call in CALLS])
_CUT = COUNTS.index("shards of cut tables")
_OUTPUTS = [COUNTS.index(f"MB of {name} outputs") for name in ("column-wise", "row-wise", "data-parallel")]
_OF_COPIES = np.array([LAYOUTS[call.form].own_samples for call in CALLS])
_POOLED_IN = np.array([[float(call.pooled and call.form is form) for form in FORMS] for call in CALLS])  # (K, F)
Slopes = dict[str, NonNegative]  # ms for one of each of `TERMS`; terms that are not named cost nothing


def imbalance(columns: FloatArray) -> tuple[str, FloatArray]:
    """Return a pair: the name of the quantity "imbalance", and the imbalance of each of B all-to-alls, (B,). The
    imbalance is the most columns that any of D devices sends, divided by the mean over the devices. `columns` (B, D)
    are the columns that each device sends.

    The imbalance is the maximum over the mean, 1 if all devices send the same. Random exchanges are more unbalanced
    the more devices there are, so the name contains the number of devices.
    """
    name = f"columns of the widest of {columns.shape[1]} devices over their mean"
    return name, np.maximum(1.0, columns.max(axis=1) / np.maximum(columns.mean(axis=1), 1.0))


def compute_part(call: Call) -> str:
    """Return the name of the part of a step for a type of kernel call: "compute" for pooled column-wise tables in
    device memory, else a name such as "compute.row_wise".
    """
    return COMPUTE if call == COLUMN_WISE_CALL else f"{COMPUTE}.{call.name}"


def exchange_part(direction: str, collective: Collective) -> str:
    """Return the name of the part of a step for a collective, such as "forward.reduce_scatter"; `direction` is
    "forward" or "backward".

    An all-to-all's name is the direction alone; the input's, which comes once in a step, is "input".
    """
    if collective is Collective.INPUT:
        return INPUT
    return direction if collective is Collective.ALL_TO_ALL else f"{direction}.{collective.name.lower()}"


def of_calls(calls: LoadSets) -> dict[str, FloatArray]:
    """Return the quantities that decide the time of kernel calls, as a dict of arrays by name. Most arrays, such as
    "rows", have one value for each shard. The array "tables in a call" has one value for each kernel call; calls
    without shards are left out.
    """
    loads = calls.loads
    return {
        "rows": loads.rows,
        "dim": loads.dim,
        "lookups of a sample": loads.pooling_factor,
        "outputs of a sample": loads.outputs / loads.samples,
        "bytes per element": loads.bytes_per_element,
        "samples": loads.samples,
        "tables in a call": calls.counts[calls.counts > 0].astype(np.float64),
    }


def of_exchanges(alone: Traffic) -> dict[str, FloatArray]:
    """Return the quantities that decide the time of one collective, as a dict of two arrays. "devices" has the number
    of devices in each exchange, and "bytes from a device" has the bytes that each device sends in each exchange.

    `alone` is the traffic of this collective alone (`Traffic.alone`). Exchanges without bytes are left out.
    """
    given = alone.size_bytes[..., 0]
    held = given[given.sum(axis=1) > 0]
    return {"devices": np.full(len(held), float(alone.num_devices)), "bytes from a device": held.ravel()}


@dataclass(frozen=True)
class InputExchange(PartModel):
    """Model of the input dist: the exchange of indices and lengths between the devices. All devices start this exchange
    together.

    Attributes:
        model: model of this exchange alone (`Traffic.alone`).
    """

    name, when, hidden, about = INPUT, When.INPUT, True, "the exchange of indices before a step"

    model: CommModel

    def ms(self, times: KernelTimes, traffic: Traffic, ready_ms: FloatArray) -> FloatArray:
        """Predict the ms of the input dist of each device, (B, D); 0 if all tables are data-parallel."""
        return self.model.alone_ms(traffic.alone(Collective.INPUT), np.zeros_like(ready_ms))

    def of_shards(self, task: Task) -> Callable[[Loads], FloatArray] | None:
        """Return a function that predicts the ms that each of n shards adds to the input dist, (n,). The argument of
        the function is the loads of the shards (`Loads`). A shard adds time because its indices and lengths are
        exchanged. Return None if shards add no time.
        """
        ms_per_byte, devices = self._ms_per_byte(task), task.topology.num_devices
        return (lambda loads: _input_bytes(loads, devices) * ms_per_byte) if ms_per_byte else None

    def shared_ms(self, task: Task, work: EqualWork, ready_ms: FloatArray) -> FloatArray:
        """Predict the ms of the input dist that no single shard causes, (B,), for B plans. The time of the input dist
        on a device is this result, plus the ms that `of_shards` predicts for each shard on the device. All devices of a
        plan are assumed to receive equal bytes.
        """
        size_bytes = work.input_bytes
        even_ms = self.model.even_ms(size_bytes[:, None], task.batch_size, task.topology) * (size_bytes > 0)
        return even_ms - size_bytes * self._ms_per_byte(task)

    def _ms_per_byte(self, task: Task) -> float:
        """Return the additional ms that the input dist takes for each additional byte that one device receives.
        Return 0 if devices do not exchange any bytes.

        The ms are predicted for a device that receives twice the mean bytes.
        """
        devices = task.topology.num_devices
        mean = _input_bytes(task.loads, devices).sum() / devices
        if devices == 1 or not mean:
            return 0.0
        size_bytes = np.full((2, devices, 1), mean)
        size_bytes[1, 0] *= 2
        exchange = Traffic(size_bytes, np.full(2, task.batch_size), task.topology.fast_links)
        even_ms, uneven_ms = self.model.predict(exchange, np.zeros((2, devices))).max(axis=1)
        return float(max(uneven_ms - even_ms, 0.0) / mean)


def _input_bytes(loads: Loads, devices: int) -> FloatArray:
    """Return the bytes of indices and lengths that devices exchange for each of n shards (`loads`), (n,)."""
    return sent_bytes_of(loads, devices)[:, Collective.INPUT]


def counts_of(loads: Loads) -> FloatArray:
    """Return the amounts of work of each of n shards (`loads`), such as lookups and MB of outputs, (n, C).
    `COUNTS` has the names of the C amounts.
    """
    copied, in_rows = (are(loads, has) for has in (lambda layout: layout.own_samples, lambda layout: layout.blocks))
    one, out, columns = np.ones(len(loads)), loads.output_bytes / _MILLION, ~(copied | in_rows)
    pooled = _POOLED[loads.call]  # outputs of row-wise sequence tables are put in order one by one
    weights = loads.rows * loads.dim / _MILLION
    cut = columns & pooled & (loads.dim < loads.table_dim)
    return np.column_stack(
        [
            one * ~copied, one * copied, loads.lookups * ~copied, loads.lookups * copied, loads.lookups * in_rows,
            loads.bags * in_rows, out * (columns & pooled), out * (in_rows & pooled), out * (columns & ~pooled),
            out * (in_rows & ~pooled), out * copied, weights * copied, one * cut,
        ]
    )  # fmt: skip


def counts_of_sets(sets: LoadSets) -> FloatArray:
    """Return the total amounts of work of each of B sets of shards, (B, C). For example, a set has all shards on one
    device. `COUNTS` has the names of the C amounts, such as "lookups".
    """
    return np.stack([sets.totals(amount) for amount in counts_of(sets.loads).T], axis=-1)


def terms_of(times: KernelTimes, part: str) -> FloatArray:
    """Return the quantities from which a part of the framework overhead is predicted, such as the number of kernel
    calls or the MB of outputs. The result, (B, D, F), has F quantities for each of D devices in B plans. `TERMS` has
    the names of the quantities. `part` is the name of the part, such as "framework.outputs".
    """
    devices = times.counts.shape[1]
    of_plan = _terms_of_plan(part, times.kernels, times.counts.mean(axis=1), devices)[:, None]
    own = np.where(_counts_own(part, times.kernels)[:, None, None], times.counts, 0.0)
    mean = own.mean(axis=1, keepdims=True)[..., _MEANS]
    return np.concatenate([of_plan.repeat(devices, axis=1), own, mean.repeat(devices, axis=1)], axis=-1)


def _counts_own(part: str, kernels: FloatArray) -> BoolArray:
    """Return a mask (B,) with an entry for each of B plans. The entry is True if the time of a part of the framework
    overhead on a device depends on the work of this device. The entry is False if the part takes the same time on all
    devices of the plan. `part` is the name of the part, such as "framework.outputs".

    TorchRec puts exchanged outputs in order, together with the outputs of data-parallel tables. If all tables are
    data-parallel, TorchRec does not put outputs in order. `kernels` (B, K) are the numbers of kernels of each call.
    """
    counts: BoolArray = np.any(kernels[:, ~_OF_COPIES] > 0, axis=1) | np.bool_(part in _OF_LAUNCHES)
    return counts


def _terms_of_plan(part: str, kernels: FloatArray, counts: FloatArray, num_devices: int) -> FloatArray:
    """Return F quantities for each of B plans, (B, F), such as the number of kernel calls or of exchanges. The ms of a
    part of the framework overhead depend on these quantities, which are the same for all devices of a plan.
    `part` is the name of the part. `kernels` (B, K) has the number of kernels of each of K types. `counts` (B, C) has
    the mean over the devices for each of C amounts of work.

    The terms are 1, kernel calls, exchanges, exchanges times devices, outputs of several sharding types that are
    joined, and outputs of split tables that are put in order. One exchange carries the pooled tables of all data types;
    sequence tables of each width have an exchange of their own. The outputs of row-wise tables are summed up in the
    exchange, so each device keeps the outputs of only its own samples.
    """
    exchanged = np.where(_POOLED, np.minimum(kernels, 1), kernels)
    calls, sent = kernels if part in _OF_LAUNCHES else exchanged, exchanged[:, ~_OF_COPIES].sum(axis=1)
    forms = (exchanged @ _POOLED_IN).sum(axis=1)
    outputs = counts[:, _OUTPUTS] * [1, 1 / num_devices, 1]
    joined, ordered = (forms > 1) * outputs.sum(axis=1), (counts[:, _CUT] > 0) * outputs[:, 0]
    return np.stack([np.ones(len(calls)), calls.sum(axis=1), sent, sent * num_devices, joined, ordered], axis=-1)


def _equal_work_ms(
    part: "FrameworkPart | HostWait", task: Task, work: EqualWork
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return three arrays of ms, (B,) each for B plans, which are summands of the time of `part`. `part` is a part of
    the framework overhead; if `part` is `HostWait`, the time is the time that the host takes to launch a step. The
    first array is the time for quantities of the whole plan, such as the number of kernel calls. The second array is
    the time for the mean work over all devices. The third array is the time for the work of one device.

    All devices of a plan are assumed to have equal work. The mean work then equals the work of each device, but the
    model has a slope (ms per unit) for the mean work, and another slope for the device's own work. The three summands
    add up to the time of the part if the part depends on the work of each device (`_counts_own`).
    """
    slopes, of_plan = part.slopes, _terms_of_plan(part.name, work.kernels, work.counts, task.topology.num_devices)
    return of_plan @ slopes[: _OWN.start], work.counts[:, _MEANS] @ slopes[_OWN.stop :], work.counts @ slopes[_OWN]


@dataclass(frozen=True, eq=False)
class FrameworkPart(PartModel):
    """Model of one part of the framework overhead of TorchRec on each device: a weighted sum of amounts of work, such
    as lookups or MB of outputs. The weight of an amount is the ms for one unit, and is never negative.

    Attributes:
        name: name of the part.
        slopes: (F,) ms for one of each of `TERMS`.
        about: description of the part, for people.
    """

    when, by_counts = When.COMPUTE, True

    name: str
    slopes: FloatArray
    about: str = ""

    def ms(self, times: KernelTimes, traffic: Traffic, ready_ms: FloatArray) -> FloatArray:
        """Predict the ms of this part of the framework overhead on each device of B plans, (B, D).

        No device waits after an exchange, so the order of the parts does not matter.
        """
        return terms_of(times, self.name) @ self.slopes

    def of_shards(self, task: Task) -> Callable[[Loads], FloatArray] | None:
        """Return a function that takes n shards (`Loads`) and predicts the ms, (n,), that each shard adds to this part
        of the framework overhead on the shard's device. Return None if shards add nothing.
        """
        own = self.slopes[_OWN]
        return (lambda loads: counts_of(loads) @ own) if own.any() else None

    def shared_ms(self, task: Task, work: EqualWork, ready_ms: FloatArray) -> FloatArray:
        """Predict the ms of this part of the framework overhead that no single shard causes, (B,), for B plans. The
        time of the part on a device is this result, plus the ms that `of_shards` predicts for each shard on the device.
        All devices of a plan are assumed to have equal work.

        The part is a sum of three summands (`_equal_work_ms`): plan + mean + own. Searches add `own` shard by shard,
        by `of_shards`, so it is left out here:

            shared = plan + mean     if the part depends on the counts of each device (`_counts_own`)
            shared = plan - own      otherwise

        In the second case a step has neither `mean` nor `own`. `of_shards` cannot know this from a shard alone, and has
        added `own`: subtracting it here makes the sum of both right.
        """
        plan_ms, mean_ms, own_ms = _equal_work_ms(self, task, work)
        own = _counts_own(self.name, work.kernels)
        return plan_ms + np.where(own, mean_ms, -own_ms)


@dataclass(frozen=True, eq=False)
class HostWait(PartModel):
    """Model of the time that a device waits for its host, which launches all work of the device, including the dense
    network.

    A host launches a step call by call, and goes on to the next step; only the devices wait for the host. So a step
    takes about as long as the slower of host and device. A device with 1 ms less work waits about 0.9 ms longer:

        wait = 0.9 * max(host - dense - ready, 0)

    with the ms of the host, of the dense network, and of the device's other work.

    Attributes:
        slopes: (F,) ms that the host takes to launch one of each of `TERMS`.
        dense_ms: ms of the dense network on a device; None if unknown, which counts as `UNKNOWN_DENSE_MS`.
    """

    name, when = f"{FRAMEWORK}.{_HOST}", When.HOST
    by_counts, hides = True, _FOLLOWS

    slopes: FloatArray
    dense_ms: float | None = None

    @property
    def about(self) -> str:  # type: ignore[override]  # other parts are about the same in all models
        """Text for people that describes this part of a step, with the known or assumed ms of the dense network, such
        as "host time with 8 ms of dense compute".
        """
        dense = f"{self.dense_ms:g} ms" if self.dense_ms is not None else f"an assumed {UNKNOWN_DENSE_MS:g} ms"
        return f"host time with {dense} of dense compute"

    def ms(self, times: KernelTimes, traffic: Traffic, ready_ms: FloatArray) -> FloatArray:
        """Predict how long each of D devices in B plans waits for its host, (B, D) ms. `ready_ms` (B, D) is the time in
        the step at which a device has done all other work, if the time of the dense network is left out.
        """
        return self._waited_ms(self._host_ms(times), ready_ms)

    def shared_ms(self, task: Task, work: EqualWork, ready_ms: FloatArray) -> FloatArray:
        """Predict how long a device waits for its host in each of B plans, (B,) ms. All devices of a plan are assumed
        to have equal work, so each device waits equally long. `ready_ms` (B,) is the time in the step at which a device
        has done all other work, if the time of the dense network is left out.
        """
        return self._waited_ms(np.sum(_equal_work_ms(self, task, work), axis=0), ready_ms)

    def margin_ms(self, margin: Margin, times: KernelTimes, ready_ms: FloatArray) -> FloatArray:
        """Return how much longer than predicted each device waits if the host time exceeds the prediction by its error
        margin, (B, D) ms for D devices in B plans. The host time is the time that the host takes to launch a step.
        `margin` is a function that returns the error margin of the host time. For example, if the error margin is 2 ms,
        the result is the additional wait if the host takes 2 ms longer than predicted.
        """
        host_ms = self._host_ms(times)
        longer_ms = host_ms + margin(host_ms, np.zeros_like(host_ms))
        return self._waited_ms(longer_ms, ready_ms) - self._waited_ms(host_ms, ready_ms)

    def _host_ms(self, times: KernelTimes) -> FloatArray:
        return terms_of(times, self.name) @ self.slopes

    def _waited_ms(self, host_ms: FloatArray, ready_ms: FloatArray) -> FloatArray:
        dense_ms = UNKNOWN_DENSE_MS if self.dense_ms is None else self.dense_ms
        return _FOLLOWS * np.maximum(host_ms - dense_ms - ready_ms, 0.0)


@dataclass(frozen=True)
@checked
class Framework(Stored):
    """The framework overhead of TorchRec in a step: for each part of the overhead, the ms that one unit of work adds. A
    unit of work is, for example, a lookup. The attribute `factor` is the ratio of two times: the time of a kernel in a
    step, divided by the time of the same kernel in a benchmark of the kernel alone.

    In a step the caches hold other data than in a benchmark of a kernel alone, and outputs are allocated. So kernels
    take a factor of their time alone, and additional time by counts.

    Attributes:
        factor: factor of kernel times.
        input: ms to permute and bucketize splits and indices, for one of each of `TERMS`.
        kernels: additional ms of kernels for one of each of `TERMS`; it includes the optimizer of data-parallel tables.
        outputs: ms to put outputs and their gradients in order, for one of each of `TERMS` and, if measured, of
            `CONVERTED`.
        host: ms that a host takes to launch a step, for one of each of `TERMS`, while devices work; empty on CPUs,
            which are hosts themselves.
    """

    kind: ClassVar[str] = "framework"

    factor: NonNegative
    input: Slopes
    kernels: Slopes
    outputs: Slopes
    host: Slopes = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self.input, *self.kernels, *(self.outputs.keys() - {CONVERTED}), *self.host):
            check_name("term of TorchRec's work", name, TERMS)

    @property
    def parts(self) -> tuple[PartModel, ...]:
        """The parts of the framework overhead, in the order of a step."""
        own = tuple(FrameworkPart(f"{FRAMEWORK}.{name}", self.per_term(name), about) for name, about in _ABOUT.items())
        return (*own, HostWait(self.per_term(_HOST))) if self.host else own

    def per_term(self, name: str) -> FloatArray:
        """Return the ms that one unit of each of F quantities, such as kernel calls or MB of outputs, adds to a part of
        the framework overhead, (F,). `name` is the name of the part, such as "outputs".

        The prices are in the order of `TERMS`; a quantity that costs nothing in this part has the price 0.
        """
        slopes: Slopes = getattr(self, name)
        return np.array([slopes.get(term, 0.0) for term in TERMS])

    def scaled(self, factor: float) -> "Framework":
        """Return a copy of the framework overhead with all times on devices multiplied by `factor`.

        The factor of kernel times stays, because other models predict kernel times; the times of hosts stay, because
        hosts have a speed of their own.
        """
        longer = {name: {term: ms * factor for term, ms in getattr(self, name).items()} for name in _ABOUT}
        return Framework(self.factor, **longer, host=self.host)
