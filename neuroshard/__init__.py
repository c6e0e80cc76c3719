"""NeuroShard: embedding-table sharding with pre-trained neural cost models and search.

import neuroshard as ns

tables = ns.load_tables("dlrm_like", num_tables=60, batch_size=4096)
task = ns.Task(tables, ns.Topology(num_devices=4, memory_bytes="8GiB"), batch_size=4096)
sim = ns.Simulator(ns.CostModels.load("cpu"))
plan = ns.search(task, sim)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuroshard.cost import Cost
    from neuroshard.errors import InfeasibleError, NeuroShardWarning, UserError
    from neuroshard.models.cost_models import CostModels
    from neuroshard.plans.plan import Plan
    from neuroshard.plans.prediction import Prediction
    from neuroshard.plans.shard import Home, Placement, Shard, Tier
    from neuroshard.searcher import Searcher
    from neuroshard.searching import search
    from neuroshard.simulator import Simulator
    from neuroshard.sources import load_tables
    from neuroshard.tables.from_batches import tables_from_batches
    from neuroshard.tables.measured import MeasuredTables
    from neuroshard.tables.reuse import zipf_reuse
    from neuroshard.tables.table import Table
    from neuroshard.tables.tally import Counted, TableShape
    from neuroshard.tables.trace import table_from_trace
    from neuroshard.targets.export import export_plan
    from neuroshard.targets.exported import Exported
    from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule
    from neuroshard.tasks.memory import MemoryUse
    from neuroshard.tasks.task import Task, Topology

__version__ = "0.1.0"
__all__ = [
    "Constraints",
    "Cost",
    "CostModels",
    "Counted",
    "Exported",
    "Home",
    "InfeasibleError",
    "MeasuredTables",
    "MemoryUse",
    "NeuroShardWarning",
    "PinnedShard",
    "Placement",
    "Plan",
    "Prediction",
    "Searcher",
    "Shard",
    "Simulator",
    "Table",
    "TableRule",
    "TableShape",
    "Task",
    "Tier",
    "Topology",
    "UserError",
    "export_plan",
    "load_tables",
    "search",
    "table_from_trace",
    "tables_from_batches",
    "zipf_reuse",
]

# Where the names live: they are imported when somebody asks for them, so that `import neuroshard` costs nothing.
_HOMES = {
    "tasks.constraints": ("Constraints", "PinnedShard", "TableRule"),
    "cost": ("Cost",),
    "errors": ("InfeasibleError", "NeuroShardWarning", "UserError"),
    "tasks.memory": ("MemoryUse",),
    "models.cost_models": ("CostModels",),
    "plans.plan": ("Plan",),
    "plans.prediction": ("Prediction",),
    "plans.shard": ("Home", "Placement", "Shard", "Tier"),
    "searcher": ("Searcher",),
    "searching": ("search",),
    "simulator": ("Simulator",),
    "sources": ("load_tables",),
    "tables.from_batches": ("tables_from_batches",),
    "tables.measured": ("MeasuredTables",),
    "tables.reuse": ("zipf_reuse",),
    "tables.table": ("Table",),
    "tables.tally": ("Counted", "TableShape"),
    "tables.trace": ("table_from_trace",),
    "targets.export": ("export_plan",),
    "targets.exported": ("Exported",),
    "tasks.task": ("Task", "Topology"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'neuroshard' has no attribute {name!r}")
    return getattr(import_module(f"neuroshard.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
