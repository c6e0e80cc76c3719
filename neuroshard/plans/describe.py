"""A plan in a few lines: what lies on each device."""

from collections.abc import Iterator

from neuroshard.plans.plan import Plan
from neuroshard.units import readable_bytes

_SHOWN_DEVICES = 8
_SHOWN_SHARDS = 6


def plan_lines(plan: Plan) -> Iterator[str]:
    """A line for the plan and one for each of the first devices."""
    tables, devices = len(plan.task.tables), plan.task.topology.num_devices
    predicted = "" if plan.prediction is None else f": {plan.prediction}"
    yield f"{tables} tables in {len(plan.shards)} shards on {devices} devices, batch {plan.task.batch_size}{predicted}"
    for device in range(min(devices, _SHOWN_DEVICES)):
        yield device_line(plan, device)
    if devices > _SHOWN_DEVICES:
        yield f"... and {devices - _SHOWN_DEVICES} more devices"


def device_line(plan: Plan, device: int) -> str:
    """What lies on one device: the first columns are those of the largest shards."""
    here = [(s, plan.task.tables[s.table]) for s, d in zip(plan.shards, plan.devices, strict=True) if d == device]
    here.sort(key=lambda pair: -pair[0].dim * pair[1].rows * pair[1].bytes_per_element)
    names = [
        table.name if shard.dim == table.dim else f"{table.name}[{shard.offset}:{shard.offset + shard.dim}]"
        for shard, table in here
    ]
    more = f", ... {len(names) - _SHOWN_SHARDS} more" if len(names) > _SHOWN_SHARDS else ""
    count = f"{len(names)} shard{'' if len(names) == 1 else 's'}"
    what = f"{count}, {plan.device_dims[device]} columns, {readable_bytes(plan.device_bytes[device])}"
    return f"device {device}: {what}: {', '.join(names[:_SHOWN_SHARDS]) or 'nothing'}{more}"
