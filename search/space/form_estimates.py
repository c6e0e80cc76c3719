"""What plans cost by which form each table lies in, about: without placing anything.

Rows and copies cost every device the same. What lies in columns is taken as spread evenly, once it is cut finely
enough; but no device costs less than the dearest shard, and the finer the cut the more there is in all. So several
cuts are looked at, and the cheapest counts.
"""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import BoolArray, Float32Array, FloatArray, IntArray
from neuroshard.loads import Loads, LoadSets
from neuroshard.models import SumModel
from neuroshard.models.interface import ReluHead
from neuroshard.models.model_set import ModelSet
from neuroshard.plans.form import FORMS, Form
from neuroshard.simulator import Simulator
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.feasibility import device_memory
from neuroshard.stages.search.space.form_parts import Cuts, Everywhere, first_blocks, first_copies
from neuroshard.stages.search.space.forms import COLUMNS, COPIES, ROWS
from neuroshard.tasks.task import Task
from neuroshard.traffic import ELEMENT_BYTES, Collective, Traffic

_TOGETHER = 256  # estimates made at once, at most


@dataclass(frozen=True, eq=False)
class FormEstimates:
    """Estimates for one task.

    Attributes:
        task: the task.
        simulator: tells what exchanges cost.
        heads: (F,) from sums of vectors to the cost of a kernel, of each form.
        cuts: of the tables in columns.
        rows, copies: of the others.
    """

    task: Task
    simulator: Simulator
    heads: tuple[ReluHead, ...]
    cuts: Cuts
    rows: Everywhere
    copies: Everywhere

    @classmethod
    def of(cls, task: Task, simulator: Simulator, allowed: BoolArray, catalog: Catalog | None) -> "FormEstimates":
        """Of a task whose tables may lie in forms `allowed` (T, F), with a catalog of those that may lie in columns.

        None stands for the catalog of no table.
        """
        head, rows_head, copies_head = (_head(simulator.models, form) for form in FORMS)
        if catalog is not None and isinstance(catalog.model, SumModel):
            head = catalog.model.head
        heads = head, rows_head, copies_head
        columns, rows, copies = (np.flatnonzero(may) for may in allowed.T)
        blocks, copied = first_blocks(task, rows), first_copies(task, copies)
        return cls(
            task,
            simulator,
            heads,
            Cuts.none(len(allowed), len(head.bias)) if catalog is None else Cuts.of(catalog, columns, len(allowed)),
            Everywhere.of(task, rows, blocks, _vectors(simulator.models, Form.ROWS, blocks, rows_head)),
            Everywhere.of(task, copies, copied, _vectors(simulator.models, Form.COPIES, copied, copies_head)),
        )

    def costs(self, forms: IntArray) -> tuple[FloatArray, FloatArray]:
        """Of B choices of a form for each table, (B, T): (B,) ms, and (B,) ms if no shard held a device up.

        Infinite where memory can't do.
        """
        parts = [self._costs(forms[first : first + _TOGETHER]) for first in range(0, len(forms), _TOGETHER)]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _costs(self, forms: IntArray) -> tuple[FloatArray, FloatArray]:
        devices, cuts = self.task.topology.num_devices, self.cuts
        columns, rows, copies = ((forms == form).astype(np.float64) for form in (COLUMNS, ROWS, COPIES))
        base_ms = self._kernel(rows @ self.rows.vectors, rows, ROWS)
        base_ms += self._kernel(copies @ self.copies.vectors, copies, COPIES)
        given, base_bytes = (
            rows @ getattr(self.rows, name) + copies @ getattr(self.copies, name) for name in ("given", "size_bytes")
        )
        spread_ms = self._kernel(np.tensordot(columns, cuts.vectors, 1) / devices, columns, COLUMNS)  # (B, Q)
        mean_columns = (columns @ cuts.given / devices)[:, None]
        dearest, widest, largest = (
            _largest(forms == COLUMNS, of) for of in (cuts.cost_ms, cuts.columns, cuts.size_bytes)
        )
        fits = self._fits(base_bytes, columns @ cuts.total_bytes, largest)
        held_up = self._total(base_ms, np.maximum(spread_ms, dearest), given, np.maximum(mean_columns, widest))
        evenly = self._total(base_ms, spread_ms.min(axis=1, keepdims=True), given, mean_columns)
        lowest = np.where(fits, held_up, np.inf).min(axis=1)
        return lowest, np.where(np.isfinite(lowest), evenly[:, 0], np.inf)

    def _kernel(self, sums: FloatArray, called: FloatArray, form: int) -> FloatArray:
        """(B, ...) ms of sums of vectors (B, ..., H), of the tables that are `called` (B, T); 0 without any."""
        cost = self.heads[form](sums.astype(np.float32))
        any_called = called.any(axis=1).reshape(-1, *[1] * (cost.ndim - 1))
        return np.where(any_called, cost, 0.0)

    def _fits(self, base: FloatArray, total: FloatArray, largest: FloatArray) -> BoolArray:
        """(B, Q) whether memory may do: base (B,) bytes on each device, a total (B,), largest shards (B, Q)."""
        free = device_memory(self.task)[None, :] - base[:, None]  # (B, D)
        fits: BoolArray = ((free.min(axis=1) >= 0) & (total <= free.sum(axis=1)))[:, None] & (
            largest <= free.max(axis=1)[:, None]
        )
        return fits

    def _total(self, base_ms: FloatArray, cost_ms: FloatArray, given: FloatArray, columns: FloatArray) -> FloatArray:
        """(B, Q) ms of a device where all are alike: base_ms (B,), cost_ms (B, Q), given (B, C), columns (B, Q)."""
        (count, cuts), devices = cost_ms.shape, self.task.topology.num_devices
        sent = np.repeat(given[:, None], cuts, axis=1)
        sent[..., Collective.ALL_TO_ALL] = columns * (ELEMENT_BYTES * self.task.batch_size)
        shape = (count * cuts, devices)
        traffic = Traffic(
            np.broadcast_to(sent.reshape(count * cuts, 1, -1), (*shape, sent.shape[-1])),
            np.full(count * cuts, self.task.batch_size),
            self.task.topology.host_size,
        )
        compute = np.broadcast_to((base_ms[:, None] + cost_ms).reshape(-1, 1), shape)
        forward, backward = self.simulator.communication(traffic, compute)
        total: FloatArray = (compute + forward + backward).max(axis=1).reshape(count, cuts)
        return total


def _largest(chosen: BoolArray, of: FloatArray) -> FloatArray:
    """(B, Q) the largest of (T, Q) among those that are chosen, (B, T); 0 where none is."""
    largest = np.zeros((len(chosen), of.shape[1]))
    for cut, values in enumerate(of.T):
        order = np.argsort(-values, kind="stable")
        ranked = chosen[:, order]
        largest[:, cut] = np.where(ranked.any(axis=1), values[order][ranked.argmax(axis=1)], 0.0)
    return largest


def _head(models: ModelSet, form: Form) -> ReluHead:
    """The head of the kernel calls of a form; of a model that isn't a sum, one that adds up costs of loads alone."""
    model = models.compute
    return model.of_form(form).head if isinstance(model, SumModel) and form in models.forms else ReluHead.of_cost()


def _vectors(models: ModelSet, form: Form, loads: Loads, head: ReluHead) -> Float32Array:
    """(n, H) for `_head`, of n loads of a form."""
    model = models.compute
    if not len(loads):
        return np.zeros((0, len(head.bias)), dtype=np.float32)  # of a form that the models may not know
    if isinstance(model, SumModel):
        return model.of_form(form).embed(loads)
    return model.predict(LoadSets.alone(loads))[:, None].astype(np.float32)
