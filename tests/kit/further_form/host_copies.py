"""Host copies, a made-up sharding type: each of two hosts has all rows of a table, in blocks on its devices."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.layouts.layout import Layout, Whole
from neuroshard.layouts.row_wise import RowWise, place_row_wise
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tables.reuse import reuse_at
from neuroshard.words.collective import ELEMENT_BYTES, Collective
from neuroshard.words.form import FORMS, Form
from neuroshard.words.placement import Placement, Shard
from neuroshard.words.topology import Topology

_HOSTS = 2


class HostCopies(Layout):
    """Each host looks up its own samples in its blocks; one all-reduce adds up the gradients over both hosts.

    Because one all-reduce adds up all blocks of a table, these blocks must have equally many rows.
    """

    form: ClassVar[Form] = Form.HOST_COPIES
    exchanges: ClassVar[tuple[Collective, ...]] = (Collective.HOST_REDUCE_SCATTER, Collective.ALL_REDUCE)
    color: ClassVar[str] = "#ccb974"
    dense: ClassVar[bool] = True
    everywhere: ClassVar[bool] = True
    blocks: ClassVar[bool] = True
    note: ClassVar[str] = "host copy"

    def holds(self, table: Table, shards: Sequence[Shard]) -> bool:
        return len(set(shards)) < len(shards) and shards[0].rows < table.rows

    def fits(self, rows: int, count: int) -> bool:
        return count % _HOSTS == 0 and count > _HOSTS and rows % (count // _HOSTS) == 0

    def over(self, whole: Whole, index: int, devices: Sequence[int]) -> list[Placement]:
        host = whole.topology.num_devices // _HOSTS
        hosts = (range(number * host, (number + 1) * host) for number in range(_HOSTS))
        return [placed for its in hosts for placed in place_row_wise(whole, index, its)]

    def check(self, table: Table, placements: Sequence[Placement], topology: Topology) -> None:
        host = topology.domain_size
        if len(placements) != _HOSTS * host or topology.num_devices != _HOSTS * host:
            raise UserError("plan-host-copy-missing", f"table {table.name!r} has no copy on some host", where="plan")
        blocks = sorted(placements, key=lambda placed: placed.device)
        for its in (blocks[:host], blocks[host:]):
            RowWise().check(table, its, topology)

    def placed(
        self, loads: Loads, which: IntArray, tables: Sequence[Table], placements: Sequence[Placement], num_devices: int
    ) -> Loads:
        blocks = RowWise().placed(loads, which, tables, placements, num_devices)
        sharers = blocks.sharers.copy()
        sharers[which] = num_devices // _HOSTS
        return _of_own_hosts(replace(blocks, sharers=sharers), which)

    def share(self, loads: Loads, count: int) -> Loads:
        form = np.full(len(loads), FORMS.index(self.form))
        return _of_own_hosts(replace(RowWise().share(loads, count // _HOSTS), form=form), np.arange(len(loads)))

    def batch_shares(self, devices: int) -> int:
        return _HOSTS

    def sent_bytes_of(
        self, loads: Loads, output_bytes: FloatArray, num_devices: int
    ) -> Mapping[Collective, FloatArray]:
        gradients = loads.rows * loads.dim * ELEMENT_BYTES
        return {Collective.HOST_REDUCE_SCATTER: output_bytes, Collective.ALL_REDUCE: gradients}


def _of_own_hosts(loads: Loads, which: IntArray) -> Loads:
    part, reuse = np.ones(len(loads)), loads.reuse.copy()
    part[which], reuse[which] = 1 / _HOSTS, reuse_at(loads.reuse[which], 1 / _HOSTS)
    lookups, samples, bags = (amount * part for amount in (loads.lookups, loads.samples, loads.bags))
    return replace(loads, lookups=lookups, samples=samples, bags=bags, reuse=reuse)
