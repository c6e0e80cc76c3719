"""What each table costs in each form, before anything is placed: the parts that estimates add up."""

from dataclasses import dataclass

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.layouts import LAYOUTS, Layout, given_bytes, placed_loads
from neuroshard.models import SumModel
from neuroshard.models.interface import ReluHead
from neuroshard.models.model_set import ModelSet
from neuroshard.plumbing.arrays import BoolArray, Float32Array, FloatArray, IntArray
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.column_cuts import even_layout
from neuroshard.stages.search.space.forms import known_calls
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Collective
from neuroshard.words.form import FORMS, Call

_SHARES = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, np.inf)  # of a device, that a shard may take


@dataclass(frozen=True, eq=False)
class Cuts:
    """The tables in columns, cut in Q ways.

    Attributes:
        vectors: (T, Q, H) of the compute model, summed over a table's shards.
        cost_ms: (T, Q) compute cost of the dearest shard of a table.
        columns: (T, Q) that a sample gets of the widest one.
        size_bytes: (T, Q) of the largest one.
        given: (T,) columns that it gets of all.
        total_bytes: (T,) of all, uncut.
    """

    vectors: FloatArray
    cost_ms: FloatArray
    columns: FloatArray
    size_bytes: FloatArray
    given: FloatArray
    total_bytes: FloatArray

    @classmethod
    def none(cls, num_tables: int, numbers: int) -> "Cuts":
        """Return the cuts of no table, with vectors of so many numbers."""
        shape = (num_tables, len(_SHARES))
        return cls(np.zeros((*shape, numbers)), *np.zeros((3, *shape)), *np.zeros((2, num_tables)))

    @classmethod
    def of(cls, catalog: Catalog) -> "Cuts":
        """Cut the tables of a catalog; zeros for all others of the task.

        What is kept together counts as the first table of it.
        """
        entry_vectors = catalog.vectors if catalog.vectors.shape[1] else catalog.cost_ms[:, None]
        table = np.array([item.parts[0][0] for item in catalog.items.items])  # (I,)
        num_tables = len(catalog.items.task.tables)
        shape = (num_tables, len(_SHARES))
        vectors, (cost_ms, columns, size_bytes) = np.zeros((*shape, entry_vectors.shape[1])), np.zeros((3, *shape))
        given, total_bytes = np.zeros((2, num_tables))
        for cut, share in enumerate(_SHARES):
            shards = even_layout(catalog, share)
            its = table[catalog.item[shards]]
            np.add.at(vectors[:, cut], its, entry_vectors[shards])
            np.maximum.at(cost_ms[:, cut], its, catalog.cost_ms[shards])
            np.maximum.at(columns[:, cut], its, catalog.given[shards] * DIM_MULTIPLE)
            np.maximum.at(size_bytes[:, cut], its, catalog.size_bytes[shards])
        np.add.at(given, table, catalog.given[catalog.whole] * DIM_MULTIPLE)
        np.add.at(total_bytes, table, catalog.size_bytes[catalog.whole])
        return cls(vectors, cost_ms, columns, size_bytes, given, total_bytes)


@dataclass(frozen=True, eq=False)
class Everywhere:
    """What each table of a kernel call costs every device, in a form that lies on all: one stands for the others.

    Attributes:
        form: by its place in `FORMS`.
        called: (T,) whether the call is that of the table, wherever it lies in the form.
        head: from sums of vectors to the cost of the call.
        vectors: (T, H) of the compute model.
        given: (T, C) bytes that a device puts into every collective.
        size_bytes: (T,) on a device.
        loads: (t,) on a device, of the `tables` (t,) that may lie so.
    """

    form: int
    called: BoolArray
    head: ReluHead
    vectors: FloatArray
    given: FloatArray
    size_bytes: FloatArray
    tables: IntArray
    loads: Loads

    @classmethod
    def of(cls, task: Task, models: ModelSet, call: Call, allowed: BoolArray) -> "Everywhere":
        """Gather what tables cost everywhere that may lie so, by forms `allowed` (T, F); zeros for others."""
        form, head = FORMS.index(call.form), head_of(models, call)
        each = zip(task.tables, task.homes, strict=True)
        called = np.array([(table.pooled, home.tier) == (call.pooled, call.tier) for table, home in each])
        tables = np.flatnonzero(called & allowed[:, form])
        loads = dearest(task, tables, LAYOUTS[call.form])
        count, numbers = len(called), len(head.bias)
        vectors, given, size_bytes = (np.zeros((count, *each)) for each in ((numbers,), (len(Collective),), ()))
        found = cls(form, called, head, vectors, given, size_bytes, tables, loads)
        found.vectors[tables] = _vectors(models, call, loads, head)
        found.given[tables] = given_bytes(loads, task.topology.num_devices)
        found.size_bytes[tables] = task.memory.device_bytes(loads)
        return found


def head_of(models: ModelSet, call: Call) -> ReluHead:
    """The head of a kernel call; of a model that isn't a sum, one that adds up costs of loads alone."""
    model, known = models.compute, call in known_calls(models)
    return model.of_call(call).head if known and isinstance(model, SumModel) else ReluHead.of_cost()


def _vectors(models: ModelSet, call: Call, loads: Loads, head: ReluHead) -> Float32Array:
    """(n, H) for `head_of`, of n loads of a call."""
    model = models.compute
    if not len(loads):
        return np.zeros((0, len(head.bias)), dtype=np.float32)  # of a call that the models may not know
    if isinstance(model, SumModel):
        return model.of_call(call).embed(loads)
    return model.predict(LoadSets.alone(loads))[:, None].astype(np.float32)


def dearest(task: Task, tables: IntArray, layout: Layout) -> Loads:
    """(t,) of some `tables` (t,) over all devices what the one has that has most to look up.

    Of blocks of rows that is the first one where lookups are spread evenly: it is no smaller than the others.
    """
    devices, kept = task.topology.num_devices, [task.tables[table] for table in tables]
    first = layout.share(task.loads.take(tables), devices)
    uneven = np.flatnonzero([layout.blocks and bool(table.row_lookups) for table in kept])
    if not len(uneven):
        return first
    placed = [block for table in tables[uneven].tolist() for block in layout.over(task, table, range(devices))]
    blocks = placed_loads(task.tables, placed, task.batch_size, devices)
    dearest = blocks.lookups.reshape(-1, devices).argmax(axis=1) + devices * np.arange(len(uneven))
    source = np.arange(len(kept))
    source[uneven] = len(kept) + dearest
    return LoadSets.joined([LoadSets.alone(first), LoadSets.alone(blocks)]).loads.take(source)
