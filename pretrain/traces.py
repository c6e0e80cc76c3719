"""Times of FBGEMM's kernels and of collectives, read from traces that PyTorch's profiler wrote (Chrome's JSON).

FBGEMM's calls are known by their operators' names, with the sizes of their tensors (`record_shapes=True`). On a GPU a
call takes as long as the kernels that were launched within it, elsewhere as long as the operator. Collectives are
NCCL's kernels, which carry what they exchange.
"""

import gzip
import json
import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from neuroshard.models.published_points import ExchangePoint, KernelPoint
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import regular_file
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.tasks.memory import STATE_FLOATS
from neuroshard.words.collective import ELEMENT_BYTES
from neuroshard.words.placement import Home, Tier

_MS = 1e-3  # of a microsecond
_FORWARD = re.compile(r"fbgemm::split_embedding_(?P<nobag>nobag_)?codegen_forward_(?:un)?weighted_pt2_wrapper")
_BACKWARD = re.compile(
    r"fbgemm::split_embedding_(?P<nobag>nobag_)?backward_codegen_(?P<optimizer>\w+?)_(?:un)?weighted_pt2_wrapper"
)
_COLLECTIVES = ("alltoall", "reduce_scatter", "all_gather", "all_reduce")  # traces have them with and without "_"
_BYTES = {"Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Byte": 1, "Char": 1, "Double": 8}
_NO_TRACE = (ArithmeticError, AttributeError, EOFError, LookupError, OSError, TypeError, ValueError, zlib.error)
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_LAST_TO_COME = 0.1  # quantile of a collective's times: those of ranks that waited for no other
_LOOKUPS_OF_A_ROW = 3  # that is looked up at all: as of published calls where nobody said; traces don't
_PER_OCTAVE = 4  # sizes that count as one
# Arguments of a call: four types of memory, then where tables are, the columns, and further back the indices.
_HOST, _DEVICE, _MANAGED, _CACHE, _PLACEMENTS = range(5)
_COLUMNS, _INDICES = 6, (8, 10)  # of sequence tables, and the latter of pooled ones; one further backward

_Thread: TypeAlias = tuple[Any, Any]  # its process and its number


class Points(NamedTuple):
    """Points of calls and collectives that traces hold.

    Attributes:
        kernels, exchanges: the median call of a type, and collectives that nobody waited in.
        skipped: calls of which no point was made, by why.
    """

    kernels: tuple[KernelPoint, ...]
    exchanges: tuple[ExchangePoint, ...]
    skipped: dict[str, int]


@dataclass(frozen=True)
class _Call:
    """An operator's time on the thread that called it, in microseconds, and the sizes of its arguments."""

    thread: _Thread
    start: float
    end: float
    dims: list[Any]
    values: list[Any]

    def size(self, argument: int) -> int:
        """Count the elements of a tensor, by its place among the arguments; 0 where there is none."""
        return int(np.prod(self.dims[argument])) if self.dims[argument] else 0


def read_traces(paths: Sequence[Path]) -> Points:
    """Read every trace, of one rank each, or of several steps.

    Raises:
        UserError: a file is missing or no trace.
    """
    kernels: list[KernelPoint] = []
    exchanges: list[ExchangePoint] = []
    skipped: dict[str, int] = {}
    for path in paths:
        try:
            events = _events(path)
            kernels += _kernels(events, path.name, skipped)
            exchanges += _exchanges(events, path.name)
        except _NO_TRACE as error:
            raise UserError(
                f"{path} is no trace of PyTorch's profiler, or damaged ({type(error).__name__}: {error}); write one "
                "with profiler.export_chrome_trace(...)"
            ) from None
    return Points(_median_calls(kernels), _undisturbed(exchanges), skipped)


def _events(path: Path) -> list[dict[str, Any]]:
    """Read everything in a trace that took time."""
    raw = regular_file(path, "trace").read_bytes()
    content = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    return [event for event in content["traceEvents"] if event.get("ph") == "X"]


def _kernels(events: list[dict[str, Any]], source: str, skipped: dict[str, int]) -> Iterator[KernelPoint]:
    """Yield a point of each of FBGEMM's calls; count those of which none is made in `skipped`, by why."""
    launched = _launched(events)
    widths: dict[str, int] = {}  # columns of a call's tables, which only its forward pass tells
    for event in sorted(events, key=lambda one: float(one.get("ts", 0))):
        name, arguments = str(event.get("name")), event.get("args", {})
        forward, backward = _FORWARD.fullmatch(name), _BACKWARD.fullmatch(name)
        if not (forward or backward) or "Input Dims" not in arguments:
            continue
        start = float(event["ts"])
        call = _Call(
            (event.get("pid"), event.get("tid")),
            start,
            start + float(event["dur"]),
            arguments["Input Dims"][bool(backward) :],  # behind the gradient
            arguments.get("Concrete Inputs", [])[bool(backward) :],
        )
        ms = (_on_gpu_us(call, launched) if launched else float(event["dur"])) * _MS
        point = _point(call, (forward or backward).groupdict(), widths, ms, source)  # type: ignore[union-attr]
        if isinstance(point, KernelPoint):
            yield point
        else:
            skipped[point] = skipped.get(point, 0) + 1


def _launched(events: list[dict[str, Any]]) -> dict[_Thread, list[tuple[float, float]]]:
    """Find the kernels that each thread launched on a GPU, in order: when, and how long each ran, in microseconds."""
    took = {
        event["args"]["correlation"]: float(event["dur"])
        for event in events
        if event.get("cat") == "kernel" and "correlation" in event.get("args", {})
    }
    by_thread: dict[_Thread, list[tuple[float, float]]] = {}
    for event in events:
        if event.get("cat") in _LAUNCHES and event.get("args", {}).get("correlation") in took:
            thread = (event.get("pid"), event.get("tid"))
            by_thread.setdefault(thread, []).append((float(event["ts"]), took[event["args"]["correlation"]]))
    return {thread: sorted(launches) for thread, launches in by_thread.items()}


def _on_gpu_us(call: _Call, launched: dict[_Thread, list[tuple[float, float]]]) -> float:
    """Add up how long the kernels ran that the call's thread launched within it."""
    its = launched.get(call.thread, [])
    first, last = bisect_left(its, (call.start,)), bisect_right(its, (call.end, np.inf))
    return sum(us for _, us in its[first:last])


def _point(call: _Call, words: dict[str, Any], widths: dict[str, int], ms: float, source: str) -> KernelPoint | str:
    """Make a call's point, or say why there is none."""
    backward, pooled = "optimizer" in words, not words["nobag"]
    columns, indices = (_COLUMNS + pooled, _INDICES[pooled] + backward)
    tables, lookups = call.size(_PLACEMENTS), call.size(indices)
    key = json.dumps([call.dims[:5], call.dims[indices : indices + 2]])
    if not backward:
        widths[key] = int(call.values[columns])
    optimizer = words.get("optimizer", "sgd")
    if optimizer not in STATE_FLOATS:
        return f"the optimizer {optimizer} is none of {', '.join(STATE_FLOATS)}"
    if key not in widths:
        return "of the backward pass the forward one isn't in the trace"
    if not lookups or not tables or not ms:
        return "nothing is looked up"
    home = _home(call)
    if home is None:
        return "tables in device and host memory in one call"
    dim = max(DIM_MULTIPLE, round(widths[key] / (tables if pooled else 1) / DIM_MULTIPLE) * DIM_MULTIPLE)
    rows = max(1, sum(call.size(place) for place in (_HOST, _DEVICE, _MANAGED)) // (dim * tables))
    outputs = call.size(indices + 1) - 1 if pooled else lookups
    unique = lookups / _LOOKUPS_OF_A_ROW
    return KernelPoint(
        "trace", backward, home, optimizer, tables, rows, dim, lookups, unique, pooled, outputs, ms, source
    )


def _home(call: _Call) -> Home | None:
    """Find where all tables of a call are; None where they are in both memories."""
    on_device, managed, cache = (call.size(place) for place in (_DEVICE, _MANAGED, _CACHE))
    if not managed:
        return Home()
    if on_device:
        return None
    return Home(Tier.CACHED, min(1.0, cache / managed)) if cache else Home(Tier.HOST)


def _exchanges(events: Iterable[dict[str, Any]], source: str) -> Iterator[ExchangePoint]:
    """Yield a point of each of NCCL's collectives."""
    for event in events:
        arguments = event.get("args", {})
        name = str(arguments.get("Collective name", "")).replace("_", "")
        collective = next((ours for ours in _COLLECTIVES if name.startswith(ours.replace("_", ""))), None)
        if event.get("cat") != "kernel" or collective is None:
            continue
        elements = max(arguments.get("In msg nelems", 0), arguments.get("Out msg nelems", 0))
        size = elements * _BYTES.get(str(arguments.get("dtype")), ELEMENT_BYTES)
        devices, ms = int(arguments.get("Group size", 1)), float(event["dur"]) * _MS
        if devices > 1 and size > 0 and ms > 0:
            yield ExchangePoint(collective, devices, float(size), ms, source)


def _median_calls(points: Sequence[KernelPoint]) -> tuple[KernelPoint, ...]:
    """Join calls of the same tables, whose lookups hardly differ, to one with the median time."""
    common = attrgetter("backward", "home", "optimizer", "tables", "rows", "dim", "pooled")
    groups = grouped(points, lambda one: (*common(one), _octave(one.lookups)))
    return tuple(_median_call(its) for its in groups.values())


def _median_call(points: Sequence[KernelPoint]) -> KernelPoint:
    ms = float(np.median([one.ms for one in points]))
    lookups = float(np.mean([one.lookups for one in points]))
    return replace(points[0], ms=ms, lookups=lookups, unique=lookups / _LOOKUPS_OF_A_ROW)


def _undisturbed(points: Sequence[ExchangePoint]) -> tuple[ExchangePoint, ...]:
    """Join collectives of about the same size to one with the time of those who wait for no other rank."""
    groups = grouped(points, lambda one: (one.collective, one.devices, _octave(one.size_bytes)))
    return tuple(
        replace(
            its[0],
            ms=float(np.quantile([one.ms for one in its], _LAST_TO_COME)),
            size_bytes=float(np.mean([one.size_bytes for one in its])),
        )
        for its in groups.values()
    )


def _octave(size: float) -> int:
    return round(float(np.log2(size)) * _PER_OCTAVE)
