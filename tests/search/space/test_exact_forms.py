"""That no plan exists is said of all forms together, and where rows or copies would fit they are found."""

from itertools import product

import numpy as np
import pytest

import neuroshard as ns
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.forms import Spread, allowed_forms, known_calls
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE, linear_models
from neuroshard.words.form import Form
from tests.kit.exhaustive import TinyTask

SIMULATOR = Simulator(ns.CostModels.load("roofline:h100"))
QUICKLY = NeuroShard(max_splits=2, improvement=Improvement(shakes=1), form_tries=1)


def _tight(seed):
    """2 or 3 small tables, batches in flight counted, with about as much memory as some form of each needs."""
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(2, 4))
    tables = tuple(
        Table(f"t{i}", int(rng.integers(2, 60)), 4 * int(rng.integers(1, 4)), float(rng.uniform(0.5, 2)), ONCE)
        for i in range(int(rng.integers(2, 4)))
    )
    task = Task(tables, Topology(devices, 1 << 30), 64, MemoryUse("sgd", 1))
    received = (1 << 30) - task.shard_memory[0]
    memory = int(task.total_bytes / devices * rng.uniform(0.5, 1.15)) + received
    return Task(tables, Topology(devices, memory), 64, MemoryUse("sgd", 1))


def _has_plan(task):
    """Whether any choice of forms leaves columns that fit, by trying all."""
    allowed = allowed_forms(task, known_calls(SIMULATOR.models))
    for forms in product(*(np.flatnonzero(row).tolist() for row in allowed)):
        try:
            base = Base.of(task, Spread(task).others(np.array(forms)), SIMULATOR.models.compute)
        except InfeasibleError:
            continue
        if not len(base.in_columns) or TinyTask(_columns_task(base), Constraints()).has_plan():
            return True
    return False


def _columns_task(base):
    """The tables in columns as a task of their own, with the memory that others leave: a byte at least."""
    task, tables = base.task, tuple(base.task.tables[table] for table in base.in_columns)
    columns, devices = sum(table.output_columns for table in tables), task.topology.num_devices
    received = task.memory.received_bytes(columns, task.batch_size, devices)
    memory = tuple((np.maximum(base.free_bytes, 1) + received).tolist())
    return Task(tables, Topology(devices, memory), task.batch_size, task.memory)


def test_what_is_called_impossible_is_so_in_every_form():
    found = otherwise = refused = proven = 0
    for seed in range(16):
        task = _tight(seed)
        try:
            plan = QUICKLY.find(task, SIMULATOR).plan
        except InfeasibleError as error:
            assert not _has_plan(task), (seed, str(error))
            refused += 1
            proven += "no plan exists" in str(error)
        else:
            assert plan.violations == ()
            found += 1
            otherwise += set(plan.forms) != {Form.COLUMNS}
    assert min(found, otherwise, refused) > 1
    assert proven > 0


@pytest.mark.parametrize("together", [(), (("t0", "t1"),)])
def test_copies_that_fit_where_columns_do_not_are_found(together):
    """A copy takes no output buffers of the global batch; tables kept together are copied together."""
    tables = tuple(Table(f"t{i}", 40, 32, 1.0, ONCE) for i in range(2))
    loose = Task(tables, Topology(2, 1 << 30), 256, MemoryUse("sgd", 1))
    copied = (
        NeuroShard(improvement=Improvement(shakes=0))
        .find(
            Task(tables, loose.topology, 256, loose.memory, Constraints((TableRule("*", forms=("copies",)),))),
            SIMULATOR,
        )
        .plan
    )
    memory = max(copied.device_bytes) + (1 << 30) - loose.shard_memory[0]
    task = Task(tables, Topology(2, memory), 256, MemoryUse("sgd", 1), Constraints(together=together))
    assert QUICKLY.find(task, SIMULATOR).plan.violations == ()
    with pytest.raises(InfeasibleError) as caught:
        BeamSearch().find(task, Simulator(linear_models(2)))
    assert "no plan exists" not in str(caught.value)


def test_proofs_of_columns_are_called_so():
    rows = (6, 5, 5, 4, 4, 4, 4)
    tables = tuple(Table(f"t{i}", count, 4, 1.0, ONCE) for i, count in enumerate(rows))
    tight = Topology(2, 16 * 16 + 8)
    for rules, said in (((), "no plan with all tables in columns exists"), (("columns",), "no plan exists")):
        limits = Constraints(tuple(TableRule("*", forms=forms) for forms in (rules,) if forms))
        task = Task((*tables, Table("last", 1, 4, 1.0, ONCE)), tight, 256, constraints=limits)
        with pytest.raises(InfeasibleError, match=said):
            BeamSearch().find(task, Simulator(linear_models(2)))
