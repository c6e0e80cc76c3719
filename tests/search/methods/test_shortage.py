"""Errors of too little memory say the total first, and the memory that they name does."""

import re
from dataclasses import replace

import pytest

import neuroshard as ns
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.schema import readable_bytes_up, to_bytes
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE

SIMULATOR = Simulator(ns.CostModels.load("roofline:h100"))
KIB = 1 << 10
QUICKLY = NeuroShard(max_splits=2, improvement=Improvement(shakes=1), form_tries=1)
NAMED = re.compile(r"give each at least ([\d.]+ \wiB)|([\d.]+ \wiB) on each would do")


def _task(sizes_kib, memory_bytes, use, reserved_bytes=0):
    tables = tuple(Table(f"t{i}", size * KIB // 64, 16, 2.0, ONCE) for i, size in enumerate(sizes_kib))
    return Task(tables, Topology(4, memory_bytes, reserved_bytes=reserved_bytes), 64, use)


@pytest.mark.parametrize("use", [MemoryUse(), MemoryUse("adam", 1)], ids=["weights", "training"])
@pytest.mark.parametrize("sizes", [[3000], [3500, 3500, 3500], [200] * 50, [200, 200, 200, 3, 7]])
def test_the_memory_that_is_named_does(sizes, use):
    """Of one table, whose narrowest shards fit no device, as of many."""
    task = _task(sizes, 160 * KIB, use, reserved_bytes=40 * KIB)
    for searcher in (QUICKLY, BeamSearch(max_splits=2)):
        with pytest.raises(
            InfeasibleError, match=r"^the tables take [\d.]+ .iB, 4 devices of [\d.]+ KiB hold "
        ) as caught:
            searcher.find(task, SIMULATOR)
        assert "rows and copies" not in str(caught.value)
        named = NAMED.search(str(caught.value))
        enough = to_bytes(named[1] or named[2], "named")
        given = replace(task, topology=replace(task.topology, memory_bytes=enough))
        assert searcher.find(given, SIMULATOR).plan.violations == ()
        assert enough < 1.2 * max(task.total_bytes / 4 + 160 * KIB, 1)


def test_unequal_devices_need_so_many_times_as_much():
    memory = (100 * KIB, 150 * KIB, 150 * KIB, 200 * KIB)
    task = _task([300] * 5, memory, MemoryUse(), reserved_bytes=10 * KIB)
    with pytest.raises(InfeasibleError, match="times as much") as caught:
        QUICKLY.find(task, SIMULATOR)
    times = float(re.search(r"([\d.]+) times as much", str(caught.value))[1])
    more = tuple(int(size * times) + 1 for size in memory)
    given = replace(task, topology=replace(task.topology, memory_bytes=more))
    assert QUICKLY.find(given, SIMULATOR).plan.violations == ()


@pytest.mark.parametrize(
    "size", [1, 1023, 1025, 999.5 * KIB, 1.2345 * (1 << 30), 123.45 * (1 << 30), 12345 * (1 << 30)]
)
def test_sizes_are_rounded_up(size):
    text = readable_bytes_up(size)
    assert size <= to_bytes(text.replace(" bytes", ""), "size") <= size * 1.011 + 1


def test_tables_that_may_lie_in_rows_only_say_what_they_take():
    rules = Constraints((TableRule("*", forms=("rows",)),))
    task = replace(_task([1000, 600], 160 * KIB, MemoryUse()), constraints=rules)
    said = r"the tables in rows and copies take 1.56 MiB, of that 4\d\d KiB on device 0, which has 160 KiB; give each"
    with pytest.raises(InfeasibleError, match=said):
        QUICKLY.find(task, SIMULATOR)
