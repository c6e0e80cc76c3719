"""The samples to measure for a plan: the kernel calls of each device, and the successive exchanges between devices.

A device calls one kernel for each sharding type (`Form`), tier and data type of its pooled tables; sequence tables have
one call per width, too.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neuroshard.cost.loads import Traffic
from neuroshard.layouts import LAYOUTS, Layout
from neuroshard.measure.store.samples import BACKWARD, CommSample, ComputeSample, RowBlock
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.grouping import grouped
from neuroshard.tables import Table
from neuroshard.tables.reuse import reuse_at
from neuroshard.words.collective import Collective
from neuroshard.words.form import CALLS, Call
from neuroshard.words.placement import Placement, Tier, TierAssignment


def kernel_calls(plan: Plan) -> tuple[tuple[ComputeSample, ...], ...]:
    """Return a tuple (D,) with a tuple of kernel calls for each of D devices.
    A device makes these calls one after another. The inner tuple is empty if the device has no shards.
    """
    by_device = grouped(plan.placements, lambda placed: placed.device)
    return tuple(_calls(plan, by_device.get(device, ())) for device in range(plan.task.topology.num_devices))


def _calls(plan: Plan, placements: Sequence[Placement]) -> tuple[ComputeSample, ...]:
    def kernel(placed: Placement) -> tuple[int, int, int]:
        """Return the key of the kernel call that looks up a shard. One call looks up all shards of a device with the
        same key. The key is a tuple: the type of the call (as an index in `CALLS`), the bytes per weight, and the width
        of the shard. In place of the width, the key has 0 if the table is pooled, because pooled tables of all widths
        share a call.
        """
        number, table = placed.shard.table, plan.task.tables[placed.shard.table]
        call = CALLS.index(Call(plan.forms[number], table.pooled, placed.tier_assignment.tier))
        return call, table.bytes_per_element, 0 if table.pooled else placed.shard.dim

    by_kernel = sorted(grouped(placements, kernel).items())
    return tuple(_call(plan, LAYOUTS[CALLS[call].form], placed) for (call, *_), placed in by_kernel)


def _call(plan: Plan, layout: Layout, placements: Sequence[Placement]) -> ComputeSample:
    tables = tuple(plan.task.tables[p.shard.table].with_dim(p.shard.dim) for p in placements)
    samples, shares = plan.task.batch_size, layout.batch_shares(plan.task.topology.num_devices)
    if shares > 1:
        tables, samples = tuple(_of_share(table, shares) for table in tables), max(1, samples // shares)
    blocks = tuple(RowBlock(p.shard.row, p.shard.rows) for p in placements) if layout.blocks else ()
    return ComputeSample(tables, samples, layout.form, blocks, tier_assignment=_common_tier_assignment(placements))


def _common_tier_assignment(placements: Sequence[Placement]) -> TierAssignment:
    """Return the tier assignment of a kernel call: the memory tier, and the cache load factor if the tables are cached.
    Both apply to all tables of the call. Cached tables share one cache, which has room for the cached rows of all
    tables. The cache load factor is the share of the rows of all shards in the call that fit in the cache.
    """
    first = placements[0].tier_assignment
    if first.tier is not Tier.UVM_CACHING:
        return first
    rows = sum(p.shard.rows for p in placements)
    return TierAssignment(
        first.tier, min(sum(p.shard.rows * p.tier_assignment.cached_share for p in placements) / rows, 1.0)
    )


def _of_share(table: Table, shares: int) -> Table:
    """Return a copy of the table with the reuse histogram for a smaller batch, which has 1/`shares` of the samples of
    the full batch. A reuse histogram says which fraction of the looked-up rows is looked up once, twice, 3 or 4 times,
    and so on.
    """
    reuse = reuse_at(np.array(table.reuse), 1 / shares)
    return replace(table, reuse=tuple(reuse.tolist()))


def exchanges(plan: Plan, direction: int) -> tuple[CommSample, ...]:
    """Return the exchanges of a plan in the forward pass or in the backward pass, as samples to measure. In each
    sample, all devices start at the same time. Samples of the backward pass are not in reverse order: both directions
    have the order of `Collective`.

    Data-parallel tables exchange nothing in the forward pass. The input dist is left out (`input_exchange`).
    """
    traffic = plan.traffic if direction == BACKWARD else plan.traffic.forward
    return _exchanges(plan, traffic, [which for which in Collective if which is not Collective.INPUT])


def input_exchange(plan: Plan) -> tuple[CommSample, ...]:
    """Return a tuple with one sample to measure: the input dist, the exchange of indices and lengths.
    In the sample, all devices start at the same time. The tuple is empty if the plan has no input dist.
    """
    return _exchanges(plan, plan.traffic, [Collective.INPUT])


def _exchanges(plan: Plan, traffic: Traffic, collectives: Sequence[Collective]) -> tuple[CommSample, ...]:
    task, starts = plan.task, (0.0,) * plan.task.topology.num_devices
    given = {which: traffic.sent_bytes(which)[0] for which in collectives}
    return tuple(
        CommSample(tuple(map(round, sizes.tolist())), starts, task.batch_size, which, task.topology.fast_links)
        for which, sizes in given.items()
        if sizes.any()
    )
