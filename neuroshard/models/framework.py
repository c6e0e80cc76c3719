"""What TorchRec adds to kernels and exchanges: local work of a step that hangs on counts, fitted to mirrored steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.cost.parts import Called, When
from neuroshard.cost.traffic import Traffic
from neuroshard.layouts import LAYOUTS, are
from neuroshard.models.interface import PartModel
from neuroshard.models.stored import Stored
from neuroshard.plumbing.arrays import BoolArray, FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import unknown_name
from neuroshard.plumbing.schema import NonNegative
from neuroshard.tasks.task import Task
from neuroshard.words.form import CALLS

FRAMEWORK = "framework"
COUNTS = (  # of a load
    "shards",
    "copies",
    "lookups",
    "lookups of copies",
    "lookups in rows",
    "bags in rows",
    "MB out of columns",
    "MB out of rows",
    "MB of sequences out of columns",
    "MB of sequences out of rows",
    "MB out of copies",
    "million weights of copies",
)
_IN_USE = "calls", "calls but of copies", "calls but of copies x devices"
_OF_ALL = (
    "lookups",
    "lookups in rows",
    "MB out of columns",
    "MB of sequences out of columns",
)  # sent or got by a device whoever looks up
# What work is a sum of: of the plan, of a device, and of the mean device.
TERMS = ("step", *_IN_USE, *(f"own {name}" for name in COUNTS), *(f"mean {name}" for name in _OF_ALL))
_ABOUT = {  # the parts of a step that it adds, in its order
    "input": "lookups put in order for the devices that look them up",
    "kernels": "what kernels take longer in a step",
    "outputs": "outputs and gradients put in order",
}
_OWN = slice(1 + len(_IN_USE), 1 + len(_IN_USE) + len(COUNTS))
_MEANS = [COUNTS.index(name) for name in _OF_ALL]
_MILLION = 1e6
_POOLED = np.array([call.pooled for call in CALLS])
_OF_COPIES = np.array([LAYOUTS[call.form].own_samples for call in CALLS])

Slopes = dict[str, NonNegative]  # ms for one of each of `TERMS`; those that aren't there cost nothing


def counts_of(loads: Loads) -> FloatArray:
    """(n, C) of `COUNTS` for each of n loads."""
    copied, in_rows = (are(loads, has) for has in (lambda its: its.own_samples, lambda its: its.blocks))
    one, out, columns = np.ones(len(loads)), loads.output_bytes / _MILLION, ~(copied | in_rows)
    pooled = _POOLED[loads.call]  # outputs of sequences in rows are put in order one by one
    weights = loads.rows * loads.dim / _MILLION
    return np.column_stack(
        [
            one * ~copied, one * copied, loads.lookups * ~copied, loads.lookups * copied, loads.lookups * in_rows,
            loads.bags * in_rows, out * (columns & pooled), out * (in_rows & pooled), out * (columns & ~pooled),
            out * (in_rows & ~pooled), out * copied, weights * copied,
        ]
    )  # fmt: skip


def counts_of_sets(sets: LoadSets) -> FloatArray:
    """(B, C) of all loads of each set together."""
    return np.stack([sets.totals(its) for its in counts_of(sets.loads).T], axis=-1)


def terms_of(called: Called, part: str) -> FloatArray:
    """(B, D, F) of `TERMS` for each device of B plans, as they count for a part of a step."""
    devices, used = called.counts.shape[1], np.any(called.shards > 0, axis=1)
    of_plan = _terms_of_plan(used, devices)[:, None]
    own = np.where(_counts_own(part, used)[:, None, None], called.counts, 0.0)
    mean = own.mean(axis=1, keepdims=True)[..., _MEANS]
    return np.concatenate([of_plan.repeat(devices, axis=1), own, mean.repeat(devices, axis=1)], axis=-1)


def _counts_own(part: str, used: BoolArray) -> BoolArray:
    """(B,) whether a part hangs on what devices of plans do that make such kernel calls (B, K).

    What is exchanged is put in order, and what is in copies with it; where all tables are copied, nothing is.
    """
    counts: BoolArray = (used & ~_OF_COPIES).any(axis=1) | (part == f"{FRAMEWORK}.kernels")
    return counts


def _terms_of_plan(used: BoolArray, num_devices: int) -> FloatArray:
    """(B, ...) terms of whole plans, by the kernel calls (B, K) that they make."""
    cut = used[:, ~_OF_COPIES].sum(axis=1)
    return np.stack([np.ones(len(used)), used.sum(axis=1), cut, cut * num_devices], axis=-1)


@dataclass(frozen=True, eq=False)
class FrameworkPart(PartModel):
    """One part of TorchRec's own work on each device: a sum of non-negative terms.

    Attributes:
        name: of the part.
        slopes: (F,) ms for one of each of `TERMS`.
        about: what it is, for people.
    """

    when, by_counts = When.COMPUTE, True

    name: str
    slopes: FloatArray
    about: str = ""

    def ms(self, called: Called, traffic: Traffic, ready_ms: FloatArray) -> FloatArray:
        """(B, D) ms; what comes after an exchange waits for no other device, so that its place doesn't matter."""
        ms: FloatArray = terms_of(called, self.name) @ self.slopes
        return ms

    def of_shards(self, task: Task) -> Callable[[Loads], FloatArray] | None:
        """What each load adds to its own device."""
        own = self.slopes[_OWN]
        return (lambda loads: counts_of(loads) @ own) if own.any() else None

    def shared_ms(self, task: Task, used: BoolArray, counts: FloatArray, input_bytes: FloatArray) -> FloatArray:
        """What a step takes, each kernel call in use, and what all devices do in the mean; less what doesn't count."""
        plan_ms = _terms_of_plan(used, task.topology.num_devices) @ self.slopes[: _OWN.start]
        mean_ms, own_ms = counts[:, _MEANS] @ self.slopes[_OWN.stop :], counts @ self.slopes[_OWN]
        ms: FloatArray = plan_ms + np.where(_counts_own(self.name, used), mean_ms, -own_ms)  # `of_shards` counts those
        return ms


@dataclass(frozen=True)
@checked
class Framework(Stored):
    """What TorchRec adds to a step on each device: sums of counts, and kernels that take another time than alone.

    In a step caches hold other things than in a benchmark of the kernel alone, and outputs are allocated: so kernels
    take a factor of what they take by themselves, and more by counts.

    Attributes:
        factor: of kernels' costs.
        input: ms of splits and indices that are permuted and bucketized, for one of each of `TERMS`.
        kernels: of what kernels take besides their own cost, the optimizer of copies with them.
        outputs: of outputs and their gradients that are put in order.
    """

    kind: ClassVar[str] = "framework"

    factor: NonNegative
    input: Slopes
    kernels: Slopes
    outputs: Slopes

    def __post_init__(self) -> None:
        for name in (*self.input, *self.kernels, *self.outputs):
            if name not in TERMS:
                raise unknown_name("term of TorchRec's work", name, TERMS)

    @property
    def parts(self) -> tuple[FrameworkPart, ...]:
        """The parts of a step, in its order."""
        return tuple(
            FrameworkPart(f"{FRAMEWORK}.{name}", np.array([slopes.get(term, 0.0) for term in TERMS]), _ABOUT[name])
            for name, slopes in self._slopes.items()
        )

    def scaled(self, factor: float) -> "Framework":
        """Where everything takes so many times as long; kernels' costs are others'."""
        longer = {name: {term: ms * factor for term, ms in its.items()} for name, its in self._slopes.items()}
        return Framework(self.factor, **longer)

    @property
    def _slopes(self) -> dict[str, Slopes]:
        return {name: getattr(self, name) for name in _ABOUT}
