"""Plans of sequence tables: which ones there may be, and what they ask of devices."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard.layouts import in_columns, in_copies, in_rows
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE, linear_models
from neuroshard.words.collective import Collective
from neuroshard.words.form import Form

BATCH = 64
TABLE = Table("s", 100, 16, 2.5, ONCE, features=2, pooled=False)
TASK = Task((TABLE, replace(TABLE, name="p", pooled=True)), Topology(4, 1 << 20, devices_per_host=2), BATCH)
POOLED = in_columns(TASK, [(1, 16, 2)])
ROOFLINE = Simulator(CostModels.load("roofline:h100"))


def _broken(*placements, task=TASK):
    return Plan(task, (*placements, *POOLED)).violations


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        (in_columns(TASK, [(0, 16, 1)]), None),
        (in_columns(TASK, [(0, 8, 1), (0, 8, 3)]), None),
        (in_rows(TASK, 0, range(4)), None),
        (in_columns(TASK, [(0, 4, 1), (0, 12, 3)]), "'s' is a sequence table in shards of 4 and 12 columns"),
        (in_columns(TASK, [(0, 4, device) for device in range(4)]), "'s' is on 4 devices, not on 1 to 2"),
        (in_copies(TASK, 0), "'s' must not lie in copies, only in columns or rows"),
        (in_rows(TASK, 0, [2, 3]), "'s' is a sequence table in rows on 2 devices; put it on all 4"),
    ],
)
def test_they_are_whole_halved_or_in_rows(placements, message):
    found = _broken(*placements)
    assert (not found) if message is None else any(message in line for line in found)


@pytest.mark.parametrize(("dim", "most", "narrowest"), [(16, 2, 8), (24, 2, 12), (12, 1, 12), (4, 1, 4)])
def test_limits_leave_equal_halves(dim, most, narrowest):
    limits = Constraints().limits(TABLE.with_dim(dim), 4)
    assert (limits.max_shards, limits.min_dim) == (most, narrowest)
    assert limits.forms == {Form.COLUMNS, Form.ROWS}
    with pytest.raises(UserError, match=f"needs 3 shards, but can have {most}"):
        Constraints((TableRule("s", min_shards=3),)).limits(TABLE.with_dim(dim), 4)


@given(st.floats(0.1, 50), st.integers(1, 5), st.integers(4, 5000))
def test_what_is_given_out_is_a_row_for_every_lookup(pooling, features, batch_size):
    """In columns and in rows alike: all of it goes to the devices of its samples, nothing is added up."""
    table = replace(TABLE, pooling_factor=pooling, features=features)
    task = Task((table,), TASK.topology, batch_size)
    lookups = batch_size * pooling
    for placements in (in_columns(task, [(0, 8, 1), (0, 8, 3)]), in_rows(task, 0, range(4))):
        plan = Plan(task, tuple(placements))
        np.testing.assert_allclose(plan.traffic.given(Collective.ALL_TO_ALL).sum(), lookups * 16 * 4)
        assert not plan.traffic.given(Collective.REDUCE_SCATTER).any()
        blocks = len(placements) if plan.forms[0] is Form.ROWS else 1
        loads = plan.device_loads.loads
        np.testing.assert_allclose(loads.outputs.sum() * blocks, lookups * len(placements))
        lengths = 8 * batch_size * features * len(placements)
        indices = 8 * np.ceil(loads.lookups).sum()
        np.testing.assert_allclose(plan.traffic.given(Collective.INPUT).sum(), indices + lengths)


def test_buffers_hold_a_row_for_every_lookup():
    task = replace(TASK, memory=MemoryUse("sgd", 1))
    half = 100 * 8 * 4 + 8 * BATCH * (2.5 + 2) + 2 * 4 * BATCH * 2.5 * 8
    plan = Plan(task, (*in_columns(task, [(0, 8, 1), (0, 8, 3)]), *POOLED))
    assert plan.device_bytes[1] == plan.device_bytes[3] == half
    received = 2 * 4 * BATCH // 4 * (2.5 + 2) * 16
    assert task.shard_memory == ((1 << 20) - received,) * 4
    assert task.output_columns == (2.5 + 2) * 16
    assert plan.device_dims == (0, 20, 32, 20)


def test_calls_add_up():
    """A device with both kinds calls two kernels, each with a launch of its own."""
    both = Plan(TASK, (*in_columns(TASK, [(0, 16, 2)]), *POOLED))
    apart = Plan(TASK, (*in_columns(TASK, [(0, 16, 1)]), *POOLED))
    together, alone = (ROOFLINE.cost(TASK, plan).compute for plan in (both, apart))
    assert together[2] == pytest.approx(alone.sum(), rel=1e-6)
    assert alone[1] > alone[2]  # more outputs, of the same lookups


def test_models_that_do_not_know_them_say_so():
    task = replace(TASK, batch_size=256)
    with pytest.raises(UserError, match=r"don't know costs of sequence tables such as 's'; collect compute.pooled"):
        Simulator(linear_models()).cost(task, Plan(task, (*in_columns(task, [(0, 16, 2)]), *POOLED)))


def test_plans_of_them_say_so():
    assert "s (2 features, sequence)" in str(Plan(TASK, (*in_columns(TASK, [(0, 16, 2)]), *POOLED)))
