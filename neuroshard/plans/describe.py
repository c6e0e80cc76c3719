"""A plan in a few lines: what lies on each device."""

from collections import Counter
from collections.abc import Iterator, Sequence

from neuroshard.cost.cost import Prediction
from neuroshard.layouts import LAYOUTS, Layout, layouts_of
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.tables import Table
from neuroshard.tasks.task import Task
from neuroshard.words.placement import Placement, Shard, Tier, by_table

_SHOWN_DEVICES = 8
_SHOWN_SHARDS = 6
_IN_HOST_MEMORY = {Tier.CACHED: "behind a cache", Tier.HOST: "in host memory"}


def plan_lines(
    task: Task,
    placements: Sequence[Placement],
    device_bytes: Sequence[int],
    device_dims: Sequence[int],
    prediction: Prediction | None,
) -> Iterator[str]:
    """Yield a line for the plan and one for each of the first devices.

    These hold `device_bytes` (D,), and a sample gets `device_dims` (D,) columns of them, as `Plan` has both.
    """
    placed = by_table(placements, len(task.tables))
    tiers = Counter(its[0].home.tier for its in placed)
    devices, layouts = task.topology.num_devices, layouts_of(task.tables, placed)
    what = f"{len(task.tables)} tables in {len(placements)} shards on {devices} devices, batch {task.batch_size}"
    other = [f"{layouts.count(one)} in {one}" for one in LAYOUTS.values() if one in layouts and not one.free]
    other += [f"{tiers[tier]} {word}" for tier, word in _IN_HOST_MEMORY.items() if tiers[tier]]
    what = f"{what} ({', '.join(other)})" if other else what
    yield what if prediction is None else f"{what}: {prediction}"
    for device in range(min(devices, _SHOWN_DEVICES)):
        here = [placement for placement in placements if placement.device == device]
        yield f"device {device}: {_contents(task, here, layouts, device_bytes[device], device_dims[device])}"
    if devices > _SHOWN_DEVICES:
        yield f"... and {devices - _SHOWN_DEVICES} more devices"


def _contents(
    task: Task, placements: Sequence[Placement], layouts: Sequence[Layout], size_bytes: int, dims: int
) -> str:
    """Say what lies on one device: the first shards named are the largest ones."""
    pairs = [(placement, task.tables[placement.shard.table]) for placement in placements]
    pairs.sort(key=lambda pair: -pair[0].shard.dim * pair[0].shard.rows * pair[1].bytes_per_element)
    names = [_name(placed, table, layouts[placed.shard.table]) for placed, table in pairs]
    more = f", ... {len(names) - _SHOWN_SHARDS} more" if len(names) > _SHOWN_SHARDS else ""
    count = f"{len(names)} shard{'' if len(names) == 1 else 's'}"
    listed = ", ".join(names[:_SHOWN_SHARDS]) or "nothing"
    return f"{count}, {dims:,} columns, {readable_bytes(size_bytes)}: {listed}{more}"


def _name(placed: Placement, table: Table, layout: Layout) -> str:
    """Name a copy as "name (copy)"; the columns of a shard as "name[0:8]", the rows before them, as in an array.

    What several features read says how many, sequence tables that they are: "name[0:8] (3 features, sequence)", and
    tables in host memory which share of the rows the device's cache holds: "name (cached 0.2)", "name (host)".
    """
    said = {
        layout.note: bool(layout.note), f"{table.features} features": table.features > 1, "sequence": not table.pooled,
        str(placed.home): placed.home.tier is not Tier.DEVICE,
    }  # fmt: skip
    notes = ", ".join(note for note, holds in said.items() if holds)
    name = table.name + _inside(placed.shard, table, layout)
    return f"{name} ({notes})" if notes else name


def _inside(shard: Shard, table: Table, layout: Layout) -> str:
    """Say what of the table is in the shard, in brackets; nothing where all of it is."""
    rows = f"{shard.row}:{shard.row_end}" if layout.blocks else ""
    columns = f"{shard.column}:{shard.column_end}" if shard.dim < table.dim else ""
    inside = f"{rows}, {columns or ':'}" if rows else columns
    return f"[{inside}]" if inside else ""
