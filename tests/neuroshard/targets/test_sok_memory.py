"""Tables in host memory count the memory of SOK's hash tables, in searches for SOK and in checks of plans."""

import pytest

from neuroshard import (
    Constraints,
    InfeasibleError,
    MemoryUse,
    TableRule,
    Task,
    Tier,
    TierAssignment,
    Topology,
)
from neuroshard.cost.loads import Loads
from neuroshard.plumbing.registry import build
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.targets.target import TARGETS, export_plan, target_named
from tests.kit.messages import refused
from tests.kit.plans import laid_out, read_back, table
from tests.kit.searches import H100

GIB, SLOT = 1 << 30, 17
SOK = target_named("sok")
CACHED = Constraints((TableRule("large", tiers=("uvm_caching", "uvm")),))


def _task(rows, devices=2, memory=8 * GIB, dim=16, constraints=CACHED):
    tables = table("large", rows, dim), *(table(f"t{number}", 1000, 16) for number in range(devices))
    return Task(tables, Topology(devices, memory, host_memory_bytes=512 * GIB), 1024, constraints=constraints)


def _gpu_bytes(plan, gpu):
    """Return the bytes of a GPU that SOK takes for an export: static variables, slots and whole GiB of vectors."""
    taken, gpus = 0, plan.task.topology.num_devices
    for variable in export_plan(plan, "sok").content["variables"]:
        share = gpus if variable["mode"] == "distributed" else 1
        if share == 1 and variable["mode"] != f"localized:{gpu}":
            continue
        if variable["variable"] == "static":
            taken += -(-variable["rows"] // share) * variable["dimension"] * 4
        else:
            taken += SLOT * variable["capacity"] + GIB * variable["max_hbm_for_vectors"]
    return taken


@pytest.mark.parametrize(
    ("rows", "slots"),
    [(1, 1024), (512, 1024), (513, 2048), (1 << 20, 1 << 21), ((1 << 20) + 1, 1 << 22), (4 * 10**8, GIB)],
)
def test_sok_memory_counts_a_power_of_two_of_slots_for_host_tables(rows, slots):
    use = MemoryUse(host_tables="hkv")
    for home, vectors in ((TierAssignment(Tier.UVM), 0), (TierAssignment(Tier.UVM_CACHING, 1.0), rows * 16 * 4)):
        loads = Loads.of([table("large", rows, 16)], 1024).at([home])
        assert use.device_bytes(loads).tolist() == [SLOT * slots + vectors]
        assert use.host_bytes(loads).tolist() == [slots * 16 * 4]
    assert use.device_bytes(loads.on_device()).tolist() == MemoryUse().device_bytes(loads.on_device()).tolist()


def test_host_tables_setting_is_checked_by_name():
    with refused("unknown-name", names=["'hkw'", "'hkv'"]):
        MemoryUse(host_tables="hkw")


@pytest.mark.parametrize("name", ["neuroshard", "neuroshard_published", "dim_greedy", "random"])
@pytest.mark.parametrize("rows", [10**8, 4 * 10**8])
def test_searches_for_sok_keep_within_gpus_with_keys_and_scores(name, rows):
    found = 0
    for devices in (1, 2, 4):
        task = SOK.constrained(_task(rows, devices))
        try:
            plan = build("searcher", name).find(task, H100).plan
        except InfeasibleError:
            continue
        found += 1
        assert plan.violations == ()
        assert read_back(plan) == plan
        if (
            plan.tier_assignments[0].cache_load_factor is None
            or rows * plan.tier_assignments[0].cache_load_factor * 64 > GIB * devices
        ):  # SOK's least
            assert max(_gpu_bytes(plan, gpu) for gpu in range(devices)) <= 8 * GIB
    assert found or rows > 10**8


def test_sok_table_whose_keys_exceed_a_gpu_is_refused_or_spread_over_gpus():
    """The table has 17 GiB of keys and scores: a quarter fits on each of four GPUs of 8 GiB, all do not fit on one."""
    with refused("device-memory-too-small", names=["17 GiB", "8 GiB"], kind=InfeasibleError):
        NeuroShard().find(SOK.constrained(_task(4 * 10**8, 1)), H100)
    plan = NeuroShard().find(SOK.constrained(_task(4 * 10**8, 4)), H100).plan
    assert len(plan.by_table[0]) == 4
    assert NeuroShard().find(_task(4 * 10**8, 1), H100).plan.violations == ()  # other systems


def test_sok_export_refuses_a_plan_for_other_targets_whose_keys_exceed_a_gpu():
    task = _task(4 * 10**8)
    plan = laid_out(task, 0, 1, 0)
    assert plan.violations == ()
    with refused("export-host-memory", where="plan", names=["device 0", "21.8 GiB", "8 GiB", "target=sok"]):
        export_plan(plan, "sok")
    for name in set(TARGETS) - {"sok"}:
        target = target_named(name)
        if task.limits[0].tier_assignment.tier in target.tiers:
            target.check(plan)
    small = _task(10**6, constraints=Constraints((TableRule("large", tiers=("uvm",)),)))
    assert export_plan(laid_out(small, 0, 1, 0), "sok").content["variables"][0]["capacity"] == 1 << 21


def test_sok_target_leaves_memory_of_tasks_without_host_memory_unchanged():
    task = Task((table("t"),), Topology(1, GIB), 256)
    assert SOK.constrained(task).memory == task.memory
