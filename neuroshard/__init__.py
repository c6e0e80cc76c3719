"""NeuroShard: embedding-table sharding with pre-trained neural cost models and search.

import neuroshard as ns

tables = ns.load_tables("criteo", batch_size=4096)
task = ns.Task(tables, ns.Topology(num_devices=4, memory_bytes=32 << 30), batch_size=4096)
sim = ns.Simulator(ns.CostModels.load("cpu"))
plan = ns.search(task, sim)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neuroshard.constraints import Constraints, PinnedShard, TableRule
from neuroshard.cost import Cost
from neuroshard.errors import InfeasibleError, UserError
from neuroshard.memory import MemoryUse
from neuroshard.models import CostModels
from neuroshard.plan import Plan, Shard
from neuroshard.simulator import Simulator
from neuroshard.sources import load_tables
from neuroshard.tables import Table, table_from_trace, zipf_reuse
from neuroshard.task import Task, Topology

if TYPE_CHECKING:
    from neuroshard.search import search

__all__ = [
    "Constraints",
    "Cost",
    "CostModels",
    "InfeasibleError",
    "MemoryUse",
    "PinnedShard",
    "Plan",
    "Shard",
    "Simulator",
    "Table",
    "TableRule",
    "Task",
    "Topology",
    "UserError",
    "load_tables",
    "search",
    "table_from_trace",
    "zipf_reuse",
]


def __getattr__(name: str) -> Any:
    # The core imports no stage; the stage is imported when somebody asks for it, and can be called like a function.
    if name == "search":
        return import_module("neuroshard.search")
    raise AttributeError(f"module 'neuroshard' has no attribute {name!r}")
