"""Variants of a task spread its tables in host memory evenly over hosts, if a host could be overfilled."""

from collections import Counter
from dataclasses import replace

import pytest

import neuroshard as ns
from neuroshard.stages.search.options.host_variants import host_variants

GIB = 1 << 30
TABLES = tuple(
    ns.Table(name, (size << 30) // 256, 64, 10.0, ns.zipf_reuse(1 << 28, 10240, 1.05))
    for name, size in (("a", 60), ("b", 20))
)
IN_HOSTS = ns.TableRule("*", tiers=("uvm",))


def _task(*rules, host_gib=50, **constraints):
    topology = ns.Topology(8, 80 * GIB, devices_per_host=4, host_memory_bytes=host_gib * GIB)
    return ns.Task(TABLES, topology, 1024, constraints=ns.Constraints((IN_HOSTS, *rules), **constraints))


def test_host_variants_give_every_host_the_same_number_of_columns():
    variants = list(host_variants(_task()))
    assert [len(variant.constraints.pinned) for variant in variants] == [4, 8, 16]
    for variant in variants:
        columns = Counter()
        for pin in variant.constraints.pinned:
            columns[pin.table, pin.devices] += pin.dim
        hosts = [tuple(range(4)), tuple(range(4, 8))]
        assert columns == {(table, host): 32 for table in "ab" for host in hosts}


def test_host_variants_are_none_if_no_host_can_be_overfilled():
    assert list(host_variants(_task(host_gib=100))) == []
    on_devices = replace(_task(), constraints=ns.Constraints())
    assert list(host_variants(on_devices)) == []


@pytest.mark.parametrize(
    ("rules", "constraints"),
    [
        ([ns.TableRule("a", max_shards=1)], {}),
        ([ns.TableRule("a", min_dim=64)], {}),
        ([ns.TableRule("a", devices=(0, 1))], {}),
        ([], {"pinned": (ns.PinnedShard("a", 64, (0,)),)}),
    ],
    ids=["whole", "wide", "on some devices", "pinned"],
)
def test_host_variants_pin_no_table_with_rules_of_its_own(rules, constraints):
    task = _task(*rules, **constraints)
    given = len(task.constraints.pinned)
    for variant in host_variants(task):
        assert {pin.table for pin in variant.constraints.pinned[given:]} == {"b"}
