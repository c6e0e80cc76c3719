"""A lower bound of the bytes that the tables of a task take, so that a task that cannot fit in memory is refused
before any cost is predicted.

Every check here is a proof. A sum over tables is compared with a sum over devices or hosts, and each table counts with
the sharding type and the tier in which it takes the fewest bytes; so no task that has a plan is refused.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.layouts import LAYOUTS, Layout
from neuroshard.plumbing.arrays import BoolArray, IntArray
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.stages.search.options.sharding_types import COLUMNS, OTHERS, allowed_types
from neuroshard.stages.search.options.tiers import LEAST_CACHED, memory_shortage
from neuroshard.stages.search.space.fixed_load import FixedLoad, check_buffers, device_memory
from neuroshard.stages.search.space.memory_checks import check_confined, check_total, memory_in_all, too_large
from neuroshard.stages.search.space.search_space import SearchSpace, narrowest_shards
from neuroshard.tasks.task import Task
from neuroshard.words.form import CALLS, FORMS, Call
from neuroshard.words.placement import ON_DEVICE, Tier, TierAssignment

_UNKNOWN = 1 << 61  # more than any table takes


def check_least_bytes(task: Task, calls: Collection[Call], least_cached: float = LEAST_CACHED) -> None:
    """Raise InfeasibleError if the tables do not fit in memory even if every table has the sharding type and the tier
    that take the fewest bytes.

    Args:
        task: the tables, the devices and the constraints.
        calls: kernel calls that the search may choose and the cost models know.
        least_cached: smallest share of a table's rows that the search gives a cache room for.
    """
    check_buffers(task)
    chooses = bool(task.topology.host_bytes) and any(call.tier is not Tier.DEVICE for call in calls)
    least = LeastBytes.of(task, calls, _tiers(task, least_cached) if chooses else (task.tier_assignments,))
    if chooses:
        if (short := memory_shortage(task, *least.totals)) is not None:
            raise short
        return
    device_bytes, host_bytes, _ = least.totals
    if device_bytes > int(device_memory(task).sum()) or host_bytes > task.topology.all_host_bytes:
        raise _too_many(task, device_bytes)
    _check_each(task, allowed_types(task, calls))


@dataclass(frozen=True, eq=False)
class LeastBytes:
    """The fewest bytes that each of T tables can take: of device memory, of host memory, and of both memories together.
    The bytes of each table are summed over all devices and hosts.

    Each attribute is an array, (T,). The three minima of a table may come from different sharding types and tiers.

    Attributes:
        device_bytes: of the devices' memory.
        host_bytes: of the hosts' memory.
        both_bytes: of both memories together.
    """

    device_bytes: IntArray
    host_bytes: IntArray
    both_bytes: IntArray

    @classmethod
    def of(cls, task: Task, calls: Collection[Call], tiers: Sequence[Sequence[TierAssignment]]) -> "LeastBytes":
        """Return the fewest bytes that each of T tables can take. The minimum is over all sharding types and all tier
        assignments in `tiers` that the table may have. Each list in `tiers` has one tier assignment for each table.

        Only kernel `calls` count; a table without any of these calls counts 0.
        """
        whole, forms = Loads.of(task.tables, task.batch_size), allowed_types(task, CALLS)
        known = np.array([*(call in calls for call in CALLS), False])  # the last one: there is no such call
        least = np.full((3, len(whole)), _UNKNOWN, dtype=np.int64)
        for assignments in tiers:
            may = np.array(
                [limits.allows_tier(assignment) for limits, assignment in zip(task.limits, assignments, strict=True)]
            )
            for form, layout in enumerate(LAYOUTS.values()):
                loads = replace(whole.at(assignments), form=np.full(len(whole), form))
                tables = np.flatnonzero(may & forms[:, form] & known[loads.call])
                if len(tables):
                    device, host = _over_all(task, layout, loads.take(tables))
                    least[:, tables] = np.minimum(least[:, tables], (device, host, device + host))
        return cls(*np.where(least == _UNKNOWN, 0, least))

    @property
    def totals(self) -> tuple[int, int, int]:
        """Three sums over all tables: the fewest bytes of device memory, the fewest bytes of host memory, and the
        fewest bytes of both memories together.
        """
        device, host, both = (sum(each.tolist()) for each in (self.device_bytes, self.host_bytes, self.both_bytes))
        return device, host, both


def _tiers(task: Task, least_cached: float) -> list[list[TierAssignment]]:
    """Return three lists, each with a tier assignment for every table. The first list puts all tables in device memory.
    The second list gives all tables the smallest caches. The third list puts all tables in host memory. Which list
    needs the fewest bytes can differ from table to table.

    The smallest cache of a table has room for the share `least_cached` of the rows, unless a constraint of the task
    sets another share.
    """
    caches = [
        TierAssignment(Tier.UVM_CACHING, least_cached if its.cache_load_factor is None else its.cache_load_factor)
        for its in task.limits
    ]
    return [[ON_DEVICE] * len(caches), caches, [TierAssignment(Tier.UVM)] * len(caches)]


def _over_all(task: Task, layout: Layout, loads: Loads) -> tuple[IntArray, IntArray]:
    """Return the fewest bytes that each of n tables takes with the sharding type `layout`: an array, (n,), for device
    memory, and an array, (n,), for host memory. The bytes of all shards of a table are added up.

    Shards of a table never take fewer bytes together than the whole table. If every device has a shard whatever the
    others have, the shards are alike.
    """
    count = task.topology.num_devices if layout.everywhere else 1
    shards = layout.share(loads, count) if layout.everywhere else loads
    device, host = task.memory.device_bytes(shards), task.memory.host_bytes(shards)
    most = _UNKNOWN // count
    return np.minimum(device, most) * count, np.minimum(host, most) * count


def _too_many(task: Task, least_bytes: int) -> InfeasibleError:
    """Return the error which says that the tables of a task take too much memory. If all tables may be column-wise,
    and `check_total` raises an error, this error is returned. Otherwise, the error names `least_bytes`, the fewest
    bytes of device memory that all tables together take.
    """
    if all(its.free for its in task.limits):
        try:
            check_total(SearchSpace.of_task(task))
        except InfeasibleError as error:
            return error
    return InfeasibleError(
        "tables-least-exceeds-devices",
        f"no plan exists, because the tables take at least {readable_bytes(least_bytes)}",
        limit=memory_in_all(device_memory(task)),
        remedy="Give each device more memory (topology.memory_bytes), or use more devices",
    )


def _check_each(task: Task, allowed: BoolArray) -> None:
    """Raise InfeasibleError if a table does not fit in memory with any allowed sharding type, even if the devices have
    no other tables. Only tables that may be column-wise are checked. `allowed` (T, F) is True if a table may have a
    sharding type, for each of T tables and F families of sharding types.

    Each table is in the memory tier that the task assigns to the table. The error is also raised if constraints confine
    tables to devices with too little memory for these tables together.
    """
    in_columns = np.flatnonzero(allowed[:, COLUMNS])
    if not len(in_columns):
        return
    space = SearchSpace.of(FixedLoad.empty(task, in_columns))
    check_confined(space)
    _, least, room = narrowest_shards(space)
    tight = np.flatnonzero(least > room)
    leading = space.first_tables[tight]
    if len(nowhere := tight[~_fits_otherwise(task, leading, allowed)]):
        raise too_large(space, nowhere)


def _fits_otherwise(task: Task, tables: IntArray, allowed: BoolArray) -> BoolArray:
    """Return a mask of `tables` (t,): True if the table fits in device memory with an allowed sharding type other than
    column_wise. The devices are assumed to have no other tables.
    """
    devices, memory = task.topology.num_devices, int(device_memory(task).max())
    fits = np.zeros(len(tables), dtype=np.bool_)
    weights = replace(task.memory, batches_in_flight=0, pipeline=None)  # how lookups are spread says nothing of those
    for form in OTHERS:
        may = np.flatnonzero(allowed[tables, form])
        if len(may):
            loads = LAYOUTS[FORMS[form]].share(task.loads.take(tables[may]), devices)
            fits[may] |= weights.device_bytes(loads) <= memory
    return fits
