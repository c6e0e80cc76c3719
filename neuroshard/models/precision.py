"""Exchanges of embeddings and gradients in fewer bits than fp32 (TorchRec's `QCommsConfig`), and the time of the
conversions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neuroshard.cost.cost import KernelTimes, When
from neuroshard.cost.loads import Loads, Traffic
from neuroshard.layouts import sent_bytes_of
from neuroshard.models.interface import ComputeModel, EqualWork, PartModel
from neuroshard.models.parts import CONVERTED, COUNTS, Framework
from neuroshard.models.roofline import datasheet_of
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.tasks.task import Task
from neuroshard.words.collective import ADDED_UP, ELEMENT_BYTES, IN_FULL_PRECISION, Collective, Precision

_MB = 1e6
_GIVEN = [
    COUNTS.index(f"MB of {name} outputs") for name in ("column-wise", "column-wise sequence", "row-wise sequence")
]


def precisions_named(name: str) -> tuple[Precision, Precision]:
    """Return the data types in which embeddings and gradients are exchanged, from a name: "fp16" stands for fp16 in
    both directions, "fp16/bf16" for fp16 embeddings and bf16 gradients.

    Raises:
        UserError: the name is not a known precision.
    """
    forward, slash, backward = name.partition("/")
    return Precision(forward), Precision(backward if slash else forward)


def conversions(compute: ComputeModel, framework: Framework | None, *each: Precision) -> "tuple[Conversion, ...]":
    """Return a model of the time that devices take to convert embeddings and gradients for exchanges in fewer bits than
    fp32. `each` has two data types: first of the forward exchange, then of the backward exchange. The result is a tuple
    with one `Conversion`. The tuple is empty if all exchanges are in fp32, or if the time of the conversions is
    unknown.

    Devices convert fp32 to the data type of an exchange before the exchange, and back to fp32 after the exchange. If
    `compute` comes from a datasheet, the conversion is a pass over memory before and after each exchange. Otherwise,
    the conversion takes the time that was measured for `framework`.
    """
    ms_per_mb = sum(_ms_per_mb(compute, framework, one) for one in each if one is not Precision.FP32)
    return (Conversion(ms_per_mb),) if ms_per_mb else ()


def _ms_per_mb(compute: ComputeModel, framework: Framework | None, to: Precision) -> float:
    """Return the ms to convert 1 MB of fp32 to the data type `to`, or back; 0 if this time was not measured."""
    if (sheet := datasheet_of(compute)) is not None:
        return (1 + to.element_bytes / ELEMENT_BYTES) / sheet.memory_gb_per_s
    return 0.0 if framework is None else framework.outputs.get(CONVERTED, 0.0)


def converted_mb(traffic: Traffic) -> FloatArray:
    """Return the MB of fp32 that each of D devices converts for the exchanges in one direction, (B, D), for B plans. A
    device converts data to fewer bits before it sends the data, and converts received data back to fp32. The result is
    the sum of both amounts.
    """
    got = np.zeros((len(traffic), 1))
    for which in (one for one in traffic.collectives if one not in (*IN_FULL_PRECISION, *ADDED_UP)):
        got += traffic.sent_bytes(which).mean(axis=1, keepdims=True) / _MB
    return got + _sent_mb(traffic.size_bytes, traffic.num_devices, traffic.host_size)


def _sent_mb(size_bytes: FloatArray, devices: int, host_size: int | None) -> FloatArray:
    """Return the MB of fp32 that a device converts to fewer bits before exchanges, (...,), summed over C collectives.
    `size_bytes` (..., C) has the bytes in fp32 that the device sends into each collective. `devices` is the number of
    all devices, and `host_size` is the number of devices that fast links connect (None: all devices).

    For reduce-scatters, the MB include the sums that the device receives and converts back. Collectives that are never
    in fewer bits, such as the all-reduce, add nothing.
    """
    times = np.ones(len(Collective))
    times[list(IN_FULL_PRECISION)] = 0
    times[list(ADDED_UP)] += 1 / np.array([devices, host_size or devices])
    return size_bytes @ times[: size_bytes.shape[-1]] / _MB


@dataclass(frozen=True)
class Conversion(PartModel):
    """Model of the conversion of embeddings and gradients from fp32 to fewer bits before an exchange,
    and back after the exchange.

    Attributes:
        ms_per_mb: ms for each MB of fp32 that a device sends or receives, in all directions that have fewer bits.
    """

    name, when, about = "conversion", When.COMPUTE, "embeddings and gradients turned from fp32 and back"
    by_counts = True

    ms_per_mb: float

    def ms(self, times: KernelTimes, traffic: Traffic, ready_ms: FloatArray) -> FloatArray:
        """Predict the time of the conversions per step on each of D devices, (B, D) ms, for B plans. A device converts
        sent data from fp32 to fewer bits, and received data back to fp32. Only `traffic`, which has the bytes in fp32,
        influences the result.
        """
        return converted_mb(traffic) * self.ms_per_mb

    def of_shards(self, task: Task) -> Callable[[Loads], FloatArray] | None:
        """Return a function that predicts, for each of n shards (`Loads`), the time of converting the outputs of the
        shard from fp32 to fewer bits before the exchange, (n,) ms. For pooled row-wise tables, the time includes the
        conversion of received sums back to fp32.

        The ms include the conversions of the gradients, if the backward exchange is in fewer bits.
        """
        devices, host_size = task.topology.num_devices, task.topology.fast_links
        return lambda loads: _sent_mb(sent_bytes_of(loads, devices), devices, host_size) * self.ms_per_mb

    def shared_ms(self, task: Task, work: EqualWork, ready_ms: FloatArray) -> FloatArray:
        """Predict the time that a device takes to convert received outputs back to fp32, (B,) ms, for B plans. All
        devices of a plan are assumed to have equal work, `work`. Pooled outputs of row-wise tables are left out,
        because `of_shards` counts these outputs. `task` and `ready_ms` do not influence the result.
        """
        ms: FloatArray = work.counts[:, _GIVEN].sum(axis=1) * self.ms_per_mb
        return ms
