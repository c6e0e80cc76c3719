"""Exports to plain JSON for any other tool: every placement with its table, rows, columns and device."""

from neuroshard.plans.plan import Plan
from neuroshard.targets.target import Exported, Target
from neuroshard.words.placement import Placement

_FORMAT = "neuroshard-placements-2"


def _write(plan: Plan) -> Exported:
    """Return the plan as a list of tables and a list of placements."""
    topology, tables = plan.task.topology, plan.task.tables
    return Exported(
        {
            "format": _FORMAT,
            "num_devices": topology.num_devices,
            "devices_per_host": topology.host_size,
            "batch_size": plan.task.batch_size,
            "tables": [
                {
                    "name": table.name,
                    "rows": table.rows,
                    "columns": table.dim,
                    "bytes_per_element": table.bytes_per_element,
                    "sharding_type": sharding_type,
                }
                for table, sharding_type in zip(tables, plan.sharding_types, strict=True)
            ],
            "placements": [_placed(tables[placed.shard.table].name, placed) for placed in sorted(plan.placements)],
        }
    )


def _placed(table: str, placed: Placement) -> dict[str, str | int | float | None]:
    """Convert the placement of a shard to fields for JSON; `table` is the name of the table of the shard."""
    shard, assignment = placed.shard, placed.tier_assignment
    return {
        "table": table,
        "first_row": shard.row,
        "rows": shard.rows,
        "first_column": shard.column,
        "columns": shard.dim,
        "device": placed.device,
        "tier": assignment.tier.value,
        "cache_load_factor": assignment.cache_load_factor,
    }


TARGET = Target("json", "JSON", _write, steps="any")
