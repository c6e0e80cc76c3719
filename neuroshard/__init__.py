"""NeuroShard: embedding-table sharding with pre-trained neural cost models and search.

import neuroshard as ns

tables = ns.load_tables("dlrm_like", num_tables=60, batch_size=4096)
task = ns.Task(tables, ns.Topology(num_devices=4, memory_bytes="8GiB"), batch_size=4096)
sim = ns.Simulator(ns.CostModels.load("cpu"))
plan = ns.search(task, sim)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neuroshard.plumbing.version import __version__ as __version__

if TYPE_CHECKING:
    from neuroshard.app.pipeline import collect, evaluate, pretrain, search
    from neuroshard.cost.cost import Cost, Prediction
    from neuroshard.models.cost_models import CostModels
    from neuroshard.models.simulator import Simulator
    from neuroshard.plans.plan import Plan
    from neuroshard.plumbing.errors import InfeasibleError, NeuroShardWarning, UserError
    from neuroshard.searching.searcher import Found, Searcher
    from neuroshard.tables.reuse import zipf_reuse
    from neuroshard.tables.sources import load_tables
    from neuroshard.tables.statistics.from_batches import table_from_trace, tables_from_batches
    from neuroshard.tables.statistics.measured import MeasuredTables
    from neuroshard.tables.statistics.tally import Counted, TableShape
    from neuroshard.tables.table import Table
    from neuroshard.targets.target import Exported, export_plan
    from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule
    from neuroshard.tasks.memory import MemoryUse
    from neuroshard.tasks.task import Task
    from neuroshard.words.model_choice import ModelChoice
    from neuroshard.words.placement import Placement, Shard, Tier, TierAssignment
    from neuroshard.words.topology import Topology

__all__ = [
    "Constraints",
    "Cost",
    "CostModels",
    "Counted",
    "Exported",
    "Found",
    "InfeasibleError",
    "MeasuredTables",
    "MemoryUse",
    "ModelChoice",
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
    "TierAssignment",
    "Topology",
    "UserError",
    "collect",
    "evaluate",
    "export_plan",
    "load_tables",
    "pretrain",
    "search",
    "table_from_trace",
    "tables_from_batches",
    "zipf_reuse",
]

# Where the names live: they are imported when somebody asks for them, so that `import neuroshard` costs nothing.
_HOMES = {
    "app.pipeline": ("collect", "evaluate", "pretrain", "search"),
    "cost.cost": ("Cost", "Prediction"),
    "models.cost_models": ("CostModels",),
    "models.simulator": ("Simulator",),
    "plans.plan": ("Plan",),
    "plumbing.errors": ("InfeasibleError", "NeuroShardWarning", "UserError"),
    "searching.searcher": ("Found", "Searcher"),
    "tables.reuse": ("zipf_reuse",),
    "tables.sources": ("load_tables",),
    "tables.statistics.from_batches": ("table_from_trace", "tables_from_batches"),
    "tables.statistics.measured": ("MeasuredTables",),
    "tables.statistics.tally": ("Counted", "TableShape"),
    "tables.table": ("Table",),
    "targets.target": ("Exported", "export_plan"),
    "tasks.constraints": ("Constraints", "PinnedShard", "TableRule"),
    "tasks.memory": ("MemoryUse",),
    "tasks.task": ("Task",),
    "words.model_choice": ("ModelChoice",),
    "words.placement": ("TierAssignment", "Placement", "Shard", "Tier"),
    "words.topology": ("Topology",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'neuroshard' has no attribute {name!r}")
    return getattr(import_module(f"neuroshard.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
