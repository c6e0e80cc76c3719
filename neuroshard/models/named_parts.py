"""What a set of cost models is made of, by name, and the amounts that say how far each part reaches."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.cost.parts import COMPUTE, INPUT, Called, When
from neuroshard.cost.traffic import Traffic
from neuroshard.layouts import given_bytes
from neuroshard.models.interface import CommModel, PartModel
from neuroshard.plumbing.arrays import BoolArray, FloatArray
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Collective
from neuroshard.words.form import IN_COLUMNS, Call

EXCHANGES = "exchanges"  # all of them, of whatever collective


def lopsidedness(columns: FloatArray) -> tuple[str, FloatArray]:
    """(B,) How lopsided all-to-alls are whose D devices give out such columns (B, D), 1 if even; and what it is called.

    The more devices, the more lopsided random exchanges are: so it has a name of its own for each number of them.
    """
    name = f"columns of the widest of {columns.shape[1]} devices over their mean"
    return name, np.maximum(1.0, columns.max(axis=1) / np.maximum(columns.mean(axis=1), 1.0))


def compute_part(call: Call) -> str:
    """Kernel calls: "compute" of columns, "compute.rows", "compute.copies", "compute.sequence_columns", and so on."""
    return COMPUTE if call == IN_COLUMNS else f"{COMPUTE}.{call.name}"


def exchange_part(direction: str, collective: Collective) -> str:
    """One collective in one direction, "forward" or "backward": alone for all-to-alls, "forward.reduce_scatter"; the
    input, which comes once in a step, is "input".
    """
    if collective is Collective.INPUT:
        return INPUT
    return direction if collective is Collective.ALL_TO_ALL else f"{direction}.{collective.name.lower()}"


def of_calls(calls: LoadSets) -> dict[str, FloatArray]:
    """What kernel calls of one form hang on, (n,) or (B,) each; calls with nothing to do left out."""
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
    """What exchanges of one collective hang on, from its traffic by itself: (B,) or (B D,); idle groups left out."""
    given = alone.size_bytes[..., 0]
    held = given[given.sum(axis=1) > 0]
    return {"devices": np.full(len(held), float(alone.num_devices)), "bytes from a device": held.ravel()}


@dataclass(frozen=True)
class InputExchange(PartModel):
    """The exchange of indices and lengths, all devices starting together.

    Attributes:
        model: of the exchange by itself (`Traffic.alone`).
    """

    name, when, hidden, about = INPUT, When.INPUT, True, "the exchange of indices before a step"

    model: CommModel

    def ms(self, called: Called, traffic: Traffic, ready_ms: FloatArray) -> FloatArray:
        """(B, D) ms of what comes to each device; nothing where all tables lie in copies."""
        return self.model.alone_ms(traffic.alone(Collective.INPUT), np.zeros_like(ready_ms))

    def of_shards(self, task: Task) -> Callable[[Loads], FloatArray] | None:
        """What a load's indices add, about: bytes times what one more takes."""
        ms_per_byte, devices = self._ms_per_byte(task), task.topology.num_devices
        return (lambda loads: _input_bytes(loads, devices) * ms_per_byte) if ms_per_byte else None

    def shared_ms(self, task: Task, used: BoolArray, counts: FloatArray, input_bytes: FloatArray) -> FloatArray:
        """What an even exchange takes, but for what each load adds."""
        sent = np.repeat(input_bytes[:, None], task.topology.num_devices, axis=1)[..., None]
        traffic = Traffic(sent, np.full(len(sent), task.batch_size), task.topology.fast_links)
        even_ms = self.model.alone_ms(traffic, np.zeros(sent.shape[:2]))[:, 0]
        return even_ms - input_bytes * self._ms_per_byte(task)

    def _ms_per_byte(self, task: Task) -> float:
        """What a device to which twice the mean comes takes longer, for each byte; 0 where nothing is exchanged."""
        devices = task.topology.num_devices
        mean = _input_bytes(task.loads, devices).sum() / devices
        if devices == 1 or not mean:
            return 0.0
        size_bytes = np.full((2, devices, 1), mean)
        size_bytes[1, 0] *= 2
        exchange = Traffic(size_bytes, np.full(2, task.batch_size), task.topology.fast_links)
        even_ms, uneven_ms = self.model.predict(exchange, np.zeros((2, devices))).max(axis=1)
        return float(max(uneven_ms - even_ms, 0.0) / mean)

    def amounts(self, traffic: Traffic) -> dict[str, FloatArray]:
        """Return the amounts of this exchange by itself."""
        return of_exchanges(traffic.alone(Collective.INPUT))


def _input_bytes(loads: Loads, devices: int) -> FloatArray:
    """(n,) of indices and lengths that come to a device for each load."""
    its: FloatArray = given_bytes(loads, devices)[:, Collective.INPUT]
    return its
