"""NeuroShard: embedding-table sharding with pre-trained neural cost models and search.

import neuroshard as ns

tables = ns.load_tables("criteo", batch_size=4096)
task = ns.Task(tables, ns.Topology(num_devices=4, memory_bytes="32GiB"), batch_size=4096)
sim = ns.Simulator(ns.CostModels.load("cpu"))
plan = ns.search(task, sim)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuroshard.constraints import Constraints, PinnedShard, TableRule
    from neuroshard.cost import Cost
    from neuroshard.errors import InfeasibleError, UserError
    from neuroshard.memory import MemoryUse
    from neuroshard.models.cost_models import CostModels
    from neuroshard.plan import Plan, Shard
    from neuroshard.prediction import Prediction
    from neuroshard.search import search
    from neuroshard.simulator import Simulator
    from neuroshard.sources import load_tables
    from neuroshard.tables.reuse import zipf_reuse
    from neuroshard.tables.table import Table
    from neuroshard.tables.trace import table_from_trace
    from neuroshard.task import Task, Topology

__version__ = "0.1.0"
__all__ = [
    "Constraints",
    "Cost",
    "CostModels",
    "InfeasibleError",
    "MemoryUse",
    "PinnedShard",
    "Plan",
    "Prediction",
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

# Where the names live: they are imported when somebody asks for them, so that `import neuroshard` costs nothing.
_HOMES = {
    "constraints": ("Constraints", "PinnedShard", "TableRule"),
    "cost": ("Cost",),
    "errors": ("InfeasibleError", "UserError"),
    "memory": ("MemoryUse",),
    "models.cost_models": ("CostModels",),
    "plan": ("Plan", "Shard"),
    "prediction": ("Prediction",),
    "simulator": ("Simulator",),
    "sources": ("load_tables",),
    "tables.reuse": ("zipf_reuse",),
    "tables.table": ("Table",),
    "tables.trace": ("table_from_trace",),
    "task": ("Task", "Topology"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "search":  # the stage itself, which can be called like a function
        return import_module("neuroshard.search")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'neuroshard' has no attribute {name!r}")
    return getattr(import_module(f"neuroshard.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
