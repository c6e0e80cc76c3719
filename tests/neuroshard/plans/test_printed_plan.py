"""The printed text of plans: the parts that cost and memory count, the number of shards, and warnings."""

import re
from dataclasses import replace

import pytest

from neuroshard import CostModels, Simulator, Tier, TierAssignment
from neuroshard.plans.plan import Plan
from neuroshard.stages.search.options.tier_changes import reassign_tiers
from neuroshard.tasks.memory import MemoryUse
from neuroshard.testing import toy_task
from neuroshard.words.model_choice import ModelChoice
from tests.kit.messages import check
from tests.kit.plans import DATA_PARALLEL, laid_out, whole

TASK = toy_task(6, num_devices=4, seed=4)
DIM = TASK.tables[1].dim
MIXED = laid_out(TASK, 0, {0: DIM - 4, 3: 4}, range(4), DATA_PARALLEL, DATA_PARALLEL, 2)
IN_STEPS = {"framework": "torchrec"}
CHOICES = (
    ModelChoice("roofline:h100"),
    ModelChoice("roofline:h100", **IN_STEPS),
    ModelChoice("h100", dense_ms=8, **IN_STEPS),
    ModelChoice("cpu"),
    ModelChoice("cpu", **IN_STEPS),
)


def _told(choice, count_input=False):
    simulator = Simulator(CostModels.of(choice), count_input)
    return str(simulator.predicted(whole(TASK)).prediction), str(simulator.cost(TASK, whole(TASK)))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_every_printed_cost_names_the_parts_it_counts(choice):
    in_steps = choice.framework == "torchrec"
    for text in _told(choice):
        assert "kernels and exchanges" in text
        assert ("framework overhead" in text) is in_steps
        assert ("host time" in text) is (in_steps and "h100" in choice.name)
        assert ("8 ms of dense compute" in text) is (choice.dense_ms is not None)
        assert "input dist" not in text.rpartition("total_ms")[2]


def test_printed_cost_names_assumed_dense_time_and_counted_input_dist():
    assert all("an assumed 7.5 ms of dense compute" in text for text in _told(ModelChoice("h100", **IN_STEPS)))
    assert all("input dist" in text for text in _told(ModelChoice("cpu"), count_input=True))


def test_plan_files_keep_the_parts_a_cost_counts(tmp_path):
    plan = Simulator(CostModels.load("h100", **IN_STEPS)).predicted(MIXED)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").prediction.scope == plan.prediction.scope


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        (MemoryUse(), "memory of weights"),
        (MemoryUse("adam"), "memory of weights and optimizer state (adam)"),
        (MemoryUse(batches_in_flight=1), "memory of weights and buffers"),
        (MemoryUse("rowwise_adagrad", 1), "memory of weights, optimizer state (rowwise_adagrad) and buffers"),
        (MemoryUse(pipeline="sparse_dist"), "memory of weights and buffers"),
    ],
)
def test_printed_plan_names_the_memory_its_bytes_count(memory, told):
    first = str(whole(replace(TASK, memory=memory))).splitlines()[0]
    assert first.endswith(told)


def test_described_shards_counts_a_data_parallel_table_once():
    assert MIXED.described_shards == "6 tables: 2 table-wise, 1 column-wise in 2 shards, 1 row-wise, 2 data-parallel"
    assert laid_out(TASK, *[DATA_PARALLEL] * 6).described_shards == "6 tables: 6 data-parallel"
    assert whole(toy_task(1, num_devices=1)).described_shards == "1 table: 1 table-wise"


def test_printed_plan_warns_of_tables_that_exceed_device_memory():
    """Not those that rules put there."""
    warning = _warning_of_host_memory(too_little=True)
    check(warning, "plan-tables-in-host-memory", where="host memory", names=["'toy0'"])
    assert "more device memory" in warning.remedy
    simulator, task = Simulator(CostModels.load("roofline:h100")), toy_task(3, num_devices=2)
    assert not any(one.where == "host memory" for one in simulator.warnings(whole(task)))


def test_printed_plan_does_not_advise_more_memory_for_tables_that_would_fit():
    warning = _warning_of_host_memory(too_little=False)
    names = ["'toy0'", "would fit", "tiers=[device]", "compute_kernels=['fused']"]
    check(warning, "plan-tables-host-memory-chosen", where="host memory", names=names)
    assert "more device memory" not in warning.remedy


def _warning_of_host_memory(too_little):
    """The warning of a plan with 2 of 3 tables in host memory, which would fit in device memory or not."""
    task = toy_task(3, num_devices=2)
    homes = (TierAssignment(Tier.UVM_CACHING, 0.5), TierAssignment(), TierAssignment(Tier.UVM))
    memory = max(whole(task).device_bytes) - too_little
    host = replace(task.topology, memory_bytes=memory, host_memory_bytes=1 << 30)
    fallen = reassign_tiers(whole(replace(task, topology=host)), replace(task, topology=host), homes)
    simulator = Simulator(CostModels.load("roofline:h100"))
    (warning,) = (one for one in simulator.warnings(fallen) if one.where == "host memory")
    assert re.findall(r"\b\d+\b", warning.what) == ["2", "3", "1", "1"]  # 2 of 3 tables: 1 in each of the tiers
    return warning


@pytest.mark.parametrize("pooling_factor", [1e-9, 1 / TASK.batch_size])
def test_warnings_ignore_tables_that_are_looked_up_once_or_never(pooling_factor):
    """A pooling factor of 0 in a file counts as one lookup per batch."""
    simulator = Simulator(CostModels.load("cpu"))
    odd = replace(TASK.tables[0], rows=10**9, pooling_factor=pooling_factor)
    unread = whole(replace(TASK, tables=(odd, *TASK.tables[1:])))
    read = whole(replace(TASK, tables=(replace(odd, pooling_factor=1.0), *TASK.tables[1:])))
    assert not any("rows" in one.where or "pooling" in one.where for one in simulator.warnings(unread))
    (outside,) = (one for one in simulator.warnings(read) if one.where == "rows")
    check(outside, "values-outside-training-range")
