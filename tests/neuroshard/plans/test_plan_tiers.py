"""Plans with tables in host memory: text, counted bytes, and refusals."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from neuroshard import (
    Constraints,
    MemoryUse,
    Plan,
    Simulator,
    TableRule,
    Task,
    Tier,
    TierAssignment,
    Topology,
)
from neuroshard.cost.loads import Loads
from neuroshard.layouts import place_data_parallel
from neuroshard.stages.search.options.tier_changes import assign_tiers, reassign_tiers
from neuroshard.stages.search.space.memory_checks import has_tier_choice
from neuroshard.testing import linear_models
from neuroshard.words.form import CALLS, Call, Form
from neuroshard.words.placement import ON_DEVICE
from tests.kit.messages import refused
from tests.kit.plans import laid_out, placed, table

TABLES = (table("a", 1000, 8, 2.0), table("b", 500, 16, 1.0), table("c", 100, 8, 1.0, pooled=False))
HOMES = (TierAssignment(Tier.UVM_CACHING, 0.25), TierAssignment(Tier.UVM), ON_DEVICE)
TOPOLOGY = Topology(4, 1 << 20, devices_per_host=2, host_memory_bytes=1 << 20)
OPEN = Task(TABLES, TOPOLOGY, 64, MemoryUse("rowwise_adagrad"))
TASK = assign_tiers(OPEN, HOMES)


def _plan(task=TASK):
    return laid_out(task, {0: 4, 2: 4}, range(4), 3)


def test_kernel_calls_of_a_plan_have_the_tiers_of_the_task():
    plan = _plan()
    assert plan.tier_assignments == HOMES
    assert {call.name for call in map(CALLS.__getitem__, plan.device_loads.loads.call)} == {
        "uvm_caching_column_wise", "uvm_row_wise", "sequence_column_wise",
    }  # fmt: skip


def test_kernel_calls_have_distinct_names_and_fixed_numbers():
    assert len({call.name for call in CALLS}) == len(set(CALLS)) == len(CALLS)
    assert CALLS.index(Call(Form.DATA_PARALLEL)) == 2  # the numbers of those that bundles have always held
    kinds = [(form, pooled, tier) for form in Form for pooled in (True, False) for tier in Tier]
    assert [kind for kind in kinds if Call(*kind) not in CALLS] == [
        kind for kind in kinds if kind[0] is Form.DATA_PARALLEL and kind != (Form.DATA_PARALLEL, True, Tier.DEVICE)
    ]


def test_device_and_host_bytes_equal_those_computed_by_hand():
    """A cache has whole rows, and lists of 16 bytes for each of them, 4 for each of the table; the state of a row is on
    the device, weights on the host.
    """
    plan = _plan()
    cached, block = 250 * (4 * 4 + 16) + 4 * 1000 + 4 * 1000, 4 * 125
    assert plan.device_bytes == (cached + block, block, cached + block, block + 100 * 8 * 4 + 4 * 100)
    assert plan.host_bytes == (1000 * 4 * 4 + 2 * 125 * 16 * 4,) * 2


def test_optimizer_state_per_element_of_a_uvm_table_is_in_host_memory():
    loads = Loads.of(TABLES[:1], 64).at([TierAssignment(Tier.UVM)])
    assert MemoryUse("adam").host_bytes(loads).tolist() == [1000 * 8 * 12]
    assert MemoryUse("adam").device_bytes(loads).tolist() == [0]


@given(st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_larger_caches_take_no_less_device_memory(one, other):
    small, large = sorted([one, other])
    loads = Loads.of([TABLES[0]] * 2, 64).at(
        [TierAssignment(Tier.UVM_CACHING, small), TierAssignment(Tier.UVM_CACHING, large)]
    )
    size = MemoryUse().device_bytes(loads)
    assert size[0] <= size[1] <= 1000 * (8 * 4 + 16 + 4)


def test_saved_plan_with_tiers_is_loaded_back_unchanged(tmp_path):
    _plan().save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == _plan()
    assert Plan.load(tmp_path / "plan.json").tier_assignments == HOMES


def test_printed_plan_names_the_tiers_of_tables():
    text = str(_plan())
    assert "1 row-wise, 1 behind a cache, 1 in host memory" in text
    assert "a[0:4] (uvm_caching 0.25)" in text
    assert "(uvm)" in text


def test_all_shards_of_a_table_must_have_one_tier_assignment():
    placements = list(_plan().placements)
    placements[0] = replace(placements[0], tier_assignment=ON_DEVICE)
    with refused("plan-table-tiers-differ", names=["'a'", "device", "uvm_caching 0.25"]):
        Plan(TASK, tuple(placements))


def test_data_parallel_tables_must_be_in_device_memory():
    data_parallel = [replace(one, tier_assignment=TierAssignment(Tier.UVM)) for one in place_data_parallel(OPEN, 1)]
    with refused("plan-copies-tier", names=["'b'", "data_parallel", "uvm", "device"]):
        Plan(OPEN, (*placed(OPEN, 0, 0), *data_parallel, *placed(OPEN, 2, 3)))


def test_plan_violations_name_hosts_with_too_many_bytes():
    small = replace(TASK, topology=replace(TOPOLOGY, host_memory_bytes="20KiB"))
    assert [re.findall(r"host \d|[\d.]+ KiB", line) for line in _plan(small).violations] == [
        ["host 0", "31.2 KiB", "20 KiB"],
        ["host 1", "31.2 KiB", "20 KiB"],
    ]
    assert not _plan(small).fits
    assert _plan().fits


def test_rules_limit_the_tiers_of_tables():
    rules = Constraints(
        (TableRule("a", tiers=("device", "uvm")), TableRule("b", tiers=("uvm_caching",), cache_load_factor=0.5))
    )
    task = replace(OPEN, constraints=rules)
    assert task.tier_assignments == (ON_DEVICE, TierAssignment(Tier.UVM_CACHING, 0.5), ON_DEVICE)
    tiers = re.compile(r"'[ab]'|\buvm_caching\b|\buvm\b|\bdevice\b")
    assert [tiers.findall(line) for line in replace(_plan(), task=task).violations] == [
        ["'a'", "uvm_caching", "device", "uvm"],
        ["'b'", "uvm", "uvm_caching"],
    ]
    other = reassign_tiers(_plan(), task, (TierAssignment(Tier.UVM), TierAssignment(Tier.UVM_CACHING, 0.1), ON_DEVICE))
    (line,) = other.violations
    assert re.findall(r"'b'|cache_load_factor|\d\.\d", line) == ["'b'", "cache_load_factor", "0.1", "0.5"]


def test_assign_tiers_replaces_rules_on_tiers_and_keeps_the_others():
    rules = (
        TableRule("*", max_shards=3),
        TableRule("a", tiers=("device",)),
        TableRule("b", tiers=("uvm_caching",), cache_load_factor=1),
    )
    task = assign_tiers(replace(OPEN, constraints=Constraints(rules)), HOMES)
    assert task.tier_assignments == HOMES
    assert [its.max_shards for its in task.limits] == [2, 3, 2]
    assert not has_tier_choice(task)
    assert has_tier_choice(OPEN)


def test_models_without_host_tiers_refuse_tasks_with_host_tiers():
    pooled = assign_tiers(Task(TABLES[:2], TOPOLOGY, 64), HOMES[:2])
    with refused("models-lack-tier", names=["uvm_caching", "model=roofline:h100"]):
        Simulator(linear_models()).models.check(pooled)
