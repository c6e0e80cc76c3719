"""The tasks of the golden set, by name: tasks of every kind, each small enough for a search of about a second."""

from dataclasses import replace
from functools import cache

import numpy as np

import neuroshard as ns
from neuroshard.plumbing.registry import instantiate_config
from tests.kit.hydra_configs import compose_config

BATCH_SIZE = 4096
DIMS = (8, 16, 32, 64, 128)


@cache
def all_tasks():
    """Return all tasks; the names of tasks of a kind begin with the same word."""
    return papers() | constrained() | in_memory() | of_other_tables() | on_hosts() | in_tiers()


def papers():
    """Tasks drawn as in the papers, on 4 and 8 devices, by the settings of the command."""
    four = _drawn("tasks.draw.count=12", "topology.num_devices=4", "batch_size=4096")
    eight = _drawn("tasks.draw.count=8", "topology.num_devices=8", "batch_size=8192", "tasks.draw.seed=1")
    return _numbered("paper_4dev", four) | _numbered("paper_8dev", eight)


def _drawn(*overrides):
    config = compose_config("search", ["tasks=paper", "topology.memory_bytes=4GiB", *overrides])
    return instantiate_config(config.run.tasks)


def _numbered(name, tasks):
    return {f"{name}_{number}": task for number, task in enumerate(tasks)}


def some_tables(count, seed, widths=DIMS, prefix="t"):
    """Draw tables t0, t1, ... from the synthetic ones, with random widths."""
    rng, pool = np.random.default_rng(seed), ns.load_tables("dlrm_like", num_tables=200, batch_size=BATCH_SIZE)
    chosen, dims = rng.choice(len(pool), count, replace=False), rng.choice(widths, count)
    return tuple(
        replace(pool[i], name=f"{prefix}{n}", dim=int(dim)) for n, (i, dim) in enumerate(zip(chosen, dims, strict=True))
    )


def task_of(tables, num_devices=4, room=3.0, memory=None, rules=None, **topology):
    """Make a task; devices have equal memory of `room` times the weights in all, unless `topology` is given."""
    total = sum(table.rows * table.dim * table.bytes_per_element for table in tables)
    topology.setdefault("memory_bytes", int(total * room / num_devices))
    return ns.Task(
        tables, ns.Topology(num_devices, **topology), BATCH_SIZE, memory or ns.MemoryUse(), rules or ns.Constraints()
    )


def constrained():
    """Twelve tables under each kind of rule, then under many, then under rules that no plan keeps."""
    tables = some_tables(12, 0, (32, 64, 128))
    narrow = tables[0].dim // 2
    rules = {
        "free": {},
        "together": {"together": (("t0", "t1", "t2"), ("t3", "t4"))},
        "apart": {"apart": (("t0", "t1", "t2", "t3"), ("t4", "t5"))},
        "pinned": {"pinned": (ns.PinnedShard("t0", narrow, (3,)), ns.PinnedShard("t1", tables[1].dim, (0, 1)))},
        "forbidden": {"rules": (ns.TableRule("t[0-5]", devices=(0, 1)), ns.TableRule("t1?", devices=(2,)))},
        "whole": {"rules": (ns.TableRule("*", max_shards=1),)},
        "spread": {"rules": (ns.TableRule("t0", min_shards=2), ns.TableRule("t5", min_shards=4))},
        "wide": {"rules": (ns.TableRule("*", min_dim=32),)},
        "columns": {"rules": (ns.TableRule("*", sharding_types=("column_wise",)),)},
        "rows": {"rules": (ns.TableRule("t[0-3]", sharding_types=("row_wise",)), ns.TableRule("t4", min_blocks=4))},
        "copies": {"rules": (ns.TableRule("t[3-5]", sharding_types=("data_parallel",)),)},
        "equal": {"rules": (ns.TableRule("*", equal_widths=True),)},
        "many": {
            "rules": (ns.TableRule("t7", devices=(1, 2)), ns.TableRule("t8", min_shards=2)),
            "pinned": (ns.PinnedShard("t0", narrow, (3,)),),
            "together": (("t1", "t2"),),
            "apart": (("t3", "t4"),),
        },
    }  # fmt: skip
    return {f"rules_{name}": task_of(tables, room=4.0, rules=ns.Constraints(**one)) for name, one in rules.items()}


def in_memory():
    """Tasks with little memory, unequal devices, or optimizers with state, and with too little memory."""
    tables = some_tables(16, 1)
    sizes = (6 << 30, 2 << 30, 2 << 30, 1 << 30)
    return {
        "memory_tight": task_of(tables, room=1.05),
        "memory_one_device": task_of(tables, room=2.0, rules=ns.Constraints(rules=(ns.TableRule("*", devices=(0,)),))),
        "memory_too_little": task_of(tables, room=0.9),
        "memory_adam": task_of(tables, room=3.3, memory=ns.MemoryUse("adam", 1)),
        "memory_rowwise": task_of(tables, room=1.4, memory=ns.MemoryUse("rowwise_adagrad", 1)),
        "memory_unlike": task_of(tables, memory_bytes=sizes, reserved_bytes=(1 << 28, 0, 0, 0)),
    }


def of_other_tables():
    """Tasks with sequence tables, several features, half precision or hot rows, and with few and many tables."""
    tables, buffers = some_tables(12, 2, (16, 32, 64)), ns.MemoryUse("sgd", 1)
    half = tuple(replace(table, pooled=i % 2 > 0) for i, table in enumerate(tables))
    every = tuple(replace(table, dim=32, pooled=False) for table in tables)
    features = tuple(replace(table, features=1 + i % 4) for i, table in enumerate(tables))
    both = tuple(replace(table, features=1 + i % 3, pooled=i % 4 > 0) for i, table in enumerate(tables))
    hot = tuple(replace(table, row_lookups=(0.7, 0.2, 0.06, 0.04)) for table in tables if table.rows >= 4)
    sequence_rules = ns.Constraints(
        rules=(ns.TableRule("t0", sharding_types=("row_wise",)), ns.TableRule("t2", max_shards=1))
    )
    return {
        "sequences_half": task_of(half, room=20.0, memory=buffers),
        "sequences_every": task_of(every, room=20.0, memory=buffers),
        "sequences_8dev": task_of(half, 8, room=30.0, memory=buffers),
        "sequences_rules": task_of(half, room=20.0, memory=buffers, rules=sequence_rules),
        "features": task_of(features),
        "features_8dev": task_of(features, 8, room=30.0, memory=buffers),
        "features_sequences": task_of(both, room=20.0, memory=buffers),
        "half_precision": task_of(tuple(replace(table, bytes_per_element=2) for table in tables)),
        "hot_rows": task_of(hot),
        "one_table": task_of(tables[:1], room=8.0),
        "five_tables": task_of(tables[:5], room=5.0),
        "five_features": task_of(features[:5], room=5.0),
        "small_tables": task_of(some_tables(60, 3, (4, 8)), 2),
        "16dev": task_of(some_tables(40, 4), 16, room=6.0),
    }


def on_hosts():
    """Tasks with devices on several hosts, and with the tables of MLPerf's DLRM."""
    tables, criteo = some_tables(14, 5), ns.load_tables("criteo", batch_size=65536)
    return {
        "hosts_2x2": task_of(tables, devices_per_host=2),
        "hosts_2x4": task_of(tables, 8, room=4.0, devices_per_host=4),
        "criteo": ns.Task(criteo, ns.Topology(8, "40GiB"), 65536),
    }


def in_tiers():
    """Tasks with tables that exceed the memory of devices, and with host memory."""
    tables = some_tables(12, 6)
    half = tuple(replace(table, pooled=i % 2 > 0) for i, table in enumerate(tables))
    cached = ns.TableRule("t[0-2]", tiers=("uvm_caching",), cache_load_factor=0.1)
    bound = ns.Constraints(rules=(cached, ns.TableRule("t3", tiers=("uvm",)), ns.TableRule("t4", tiers=("device",))))
    memory = ns.MemoryUse("rowwise_adagrad", 1)
    host = {"host_memory_bytes": "64GiB"}
    return {
        "tiers": task_of(tables, room=0.5, **host),
        "tiers_roomy": task_of(tables, room=3.0, **host),
        "tiers_two": task_of(tables[:2], room=2.0, **host),
        "tiers_rules": task_of(tables, room=2.0, rules=bound, **host),
        "tiers_buffers": task_of(tables, room=0.6, memory=memory, **host),
        "tiers_hosts": task_of(tables, room=0.5, devices_per_host=2, **host),
        "tiers_sequences": task_of(half, room=0.5, **host),
    }


def replanned():
    """Return (task of the previous plan, new task, settings of replan) by name."""
    tables = some_tables(12, 7)
    busier = tuple(
        replace(table, pooling_factor=table.pooling_factor * (3 if i % 3 else 1)) for i, table in enumerate(tables)
    )
    other = (*tables[2:], *some_tables(3, 8, prefix="new"))
    before, roomy = task_of(tables), task_of(busier)
    forced = task_of(tables, rules=ns.Constraints(apart=(("t0", "t1", "t2", "t3"),)))
    cached = ns.Constraints(rules=(ns.TableRule("t[0-3]", tiers=("uvm_caching",), cache_load_factor=0.2),))
    tiered = task_of(tables, rules=cached, host_memory_bytes="64GiB")
    return {
        "busier": (before, roomy, {}),
        "few_bytes": (before, roomy, {"max_moved_bytes": 100_000_000, "min_gain": 0.0}),
        "own_forms": (before, roomy, {"sharding_types": []}),
        "same": (before, before, {}),
        "fewer_devices": (before, task_of(tables, 3), {}),
        "other_tables": (before, task_of(other), {}),
        "rules": (before, forced, {}),
        "no_way": (before, task_of(tables, room=0.9), {}),
        "tiers": (tiered, replace(tiered, tables=busier), {}),
    }  # fmt: skip
