"""Choose hosts for the tables in host memory, so that every host has enough memory. The choice becomes constraints:
rules for tables, or pinned shards for tables that are divided between hosts.

Many search methods check the memory of each device, but only the total memory of all hosts. If the tables in host
memory do not fit on one host, such a search can be repeated with constraints that keep every such table on one host, or
divide its columns between several hosts.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from glob import escape

import numpy as np

from neuroshard.layouts import COLUMN_WISE_LAYOUT
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.tasks.constraints import PinnedColumns, PinnedShard, TableRule
from neuroshard.tasks.task import Task
from neuroshard.words.placement import Tier

_PRECISION = 1.002  # ratio of the bounds at which the bisection for the least host memory ends


def may_overfill(task: Task) -> bool:
    """Return True if a plan could need more memory on a host than the host has.
    This is possible if there are several hosts, and the tables in host memory do not fit together on one host.
    """
    topology = task.topology
    used = sum(task.memory.host_bytes(task.loads).tolist())
    return len(topology.hosts) > 1 and used > topology.host_bytes


def assigned_to_hosts(task: Task, in_rows: Collection[str] = ()) -> Task | None:
    """Return the task with constraints that assign each table in host memory to hosts; None if no assignment is found.
    The tables named in `in_rows` are row-wise, so they need the same memory on every host and are not assigned.

    A table is on one host if a host has enough memory for the table. Otherwise its columns are divided between as few
    hosts as possible. The result is also None if no plan could exceed the memory of a host.
    """
    return _assigned(task, task.topology.host_bytes, in_rows) if may_overfill(task) else None


def least_host_bytes(task: Task) -> int:
    """Return the least memory per host, in bytes, with which all tables in host memory can be assigned to hosts.
    The result is accurate to 0.2%.

    The result is the memory of all tables in host memory if no smaller memory is enough.
    """
    total: int = sum(task.memory.host_bytes(task.loads).tolist())
    low, high = total // len(task.topology.hosts), total
    while high > max(low, 1) * _PRECISION:
        middle = (low + high) // 2
        low, high = (low, middle) if _assigned(task, middle, ()) is not None else (middle, high)
    return high


def kept_on_hosts(plan: Plan) -> Plan:
    """Return the plan with further constraints: each column shard in host memory must stay on the same host.
    Return the plan unchanged if there is only one host, or if all tables in host memory fit on one host.

    Shards of a table on several hosts keep their widths. Tables with pinned shards get no further constraints.
    """
    task = plan.task
    if not may_overfill(task):
        return plan
    constraints, rules, pins = task.constraints, list[TableRule](), list[PinnedShard]()
    for table, placements in enumerate(plan.by_table):
        in_columns = plan.layouts[table] is COLUMN_WISE_LAYOUT and placements[0].tier_assignment.tier is not Tier.DEVICE
        if not in_columns or task.tables[table].name in constraints.pins:
            continue
        piece = _Piece.of_table(task, table)
        columns = Counter[int]()  # by device
        for placed in placements:
            columns[placed.device] += placed.shard.dim
        shards = [(device // task.topology.host_size, dim // DIM_MULTIPLE) for device, dim in columns.items()]
        if len({host for host, _ in shards}) > 1:
            pins += piece.pins(shards)
        else:
            rules += piece.rules(shards[0][0])
    kept = replace(constraints.with_rules(rules), pinned=(*constraints.pinned, *pins))
    return replace(plan, task=replace(task, constraints=kept))


@dataclass(frozen=True)
class _Piece:
    """Table columns in host memory for which hosts are chosen in one step. A piece has all columns of one of the
    following: a table, several tables that are kept together on one device, a pinned shard, or the rest of a table that
    also has pinned shards. A pinned shard is a shard that every plan must put on one of the devices that a constraint
    names.

    If a piece may be split, its columns can be on several hosts.

    Attributes:
        names: names of the tables; several tables are kept together on one device.
        units: number of units of 4 columns.
        unit_bytes: bytes of a unit in host memory.
        devices: (H,) devices of each host that may have the piece.
        most_shards: maximum number of shards of the piece.
        least_units: minimum number of units in a shard.
        equal: True if the piece can only be split into two halves.
        pinned: True if the piece is a pinned shard, or the rest of a table with pinned shards.
    """

    names: tuple[str, ...]
    units: int
    unit_bytes: int
    devices: tuple[tuple[int, ...], ...]
    most_shards: int
    least_units: int
    equal: bool
    pinned: bool

    @classmethod
    def of_table(cls, task: Task, table: int) -> "_Piece":
        """Return a `_Piece` with all columns of one table; `table` is the index of the table in the task.
        Other tables are not included, even if constraints require them on the same device.
        """
        whole, limits = task.tables[table], task.limits[table]
        units = whole.dim // DIM_MULTIPLE
        size_bytes = int(task.memory.host_bytes(task.loads.take(np.array([table])))[0])
        equal = limits.equal_widths or not whole.pooled
        on_one_host = limits.min_shards > 2 and equal  # three or more equal shards cannot be two halves
        return cls(
            (whole.name,),
            units,
            size_bytes // units,
            tuple(tuple(sorted(set(host).intersection(limits.devices))) for host in task.topology.hosts),
            1 if on_one_host else limits.max_shards,
            limits.min_dim // DIM_MULTIPLE,
            equal,
            pinned=False,
        )

    @property
    def size_bytes(self) -> int:
        """The bytes of host memory that the columns in this piece (such as a table or a pinned shard) need."""
        return self.units * self.unit_bytes

    def shards(self, free: IntArray) -> list[tuple[int, int]] | None:
        """Divide the table columns in this piece into shards for hosts, and return (host, number of 4-column units) for
        each shard. `free` (H,) has the free bytes of each host. Return None if no allowed division fits in these bytes.

        The piece is whole on the host with the most free memory if it fits there. Otherwise hosts are filled one after
        the other, beginning with the most free memory.
        """
        hosts = [int(h) for h in np.argsort(-free, kind="stable") if self.devices[h]]
        if hosts and self.size_bytes <= free[hosts[0]]:
            return [(hosts[0], self.units)]
        if self.equal:
            return self._halves(free, hosts[:2])
        shards, left = list[tuple[int, int]](), self.units
        for host in hosts[: self.most_shards]:
            width = min(left, int(free[host]) // self.unit_bytes)
            if 0 < left - width < self.least_units:
                width = left - self.least_units
            if width < self.least_units:
                return None
            shards.append((host, width))
            left -= width
            if not left:
                return shards
        return None

    def _halves(self, free: IntArray, hosts: list[int]) -> list[tuple[int, int]] | None:
        """Split this piece into two equal halves on two hosts, and return (host, number of 4-column units) for both
        halves. `free` (H,) has the free bytes of each host, and `hosts` has the indices of the hosts to use. Return
        None if a half does not fit on a host, if there are fewer than two hosts, or if this piece cannot be halved.
        """
        fits = all(self.size_bytes // 2 <= free[host] for host in hosts)
        may = len(hosts) == 2 <= self.most_shards and self.units % 2 == 0
        return [(host, self.units // 2) for host in hosts] if fits and may else None

    def rules(self, host: int) -> Iterator[TableRule]:
        """Yield one rule for each table in this piece. The rule allows only devices on the host with the number `host`.
        Devices on this host that the task's constraints forbid for the piece remain forbidden.
        """
        return (TableRule(escape(name), devices=self.devices[host]) for name in self.names)

    def pins(self, shards: Iterable[tuple[int, int]]) -> Iterator[PinnedShard]:
        """Yield a constraint for each shard in `shards`. The constraint allows only devices on the shard's host.
        Devices on this host that the task's constraints forbid for the piece remain forbidden. `shards` has a pair for
        each shard: the number of the host, and the number of 4-column units in the shard.

        The piece must be of one table only.
        """
        return (PinnedColumns.on(self.names[0], units * DIM_MULTIPLE, self.devices[host]) for host, units in shards)


def _assigned(task: Task, host_bytes: int, in_rows: Collection[str]) -> Task | None:
    """Return the task with each table in host memory assigned to hosts; None if no assignment is found.
    Each host has `host_bytes` bytes of host memory. The tables named in `in_rows` count as row-wise.

    Pieces with fewer allowed hosts are assigned first, then pieces that cannot be split, then larger pieces.
    """
    constraints, hosts = task.constraints, task.topology.hosts
    pieces, spread_bytes = _pieces(task, in_rows)
    free = np.full(len(hosts), host_bytes - -(-spread_bytes // len(hosts)), dtype=np.int64)
    rules, pins = list[TableRule](), list[PinnedShard]()
    for piece in sorted(
        pieces, key=lambda piece: (sum(map(bool, piece.devices)), piece.most_shards > 1, -piece.size_bytes)
    ):
        shards = piece.shards(free)
        if shards is None:
            return None
        for host, units in shards:
            free[host] -= units * piece.unit_bytes
        if len(shards) == 1 and not piece.pinned:
            rules += piece.rules(shards[0][0])
        else:
            pins += piece.pins(shards)
    changed = {name for piece in pieces if piece.pinned for name in piece.names}
    kept = tuple(pin for pin in constraints.pinned if pin.table not in changed)
    try:
        return replace(task, constraints=replace(constraints.with_rules(rules), pinned=(*kept, *pins)))
    except UserError:  # the new rules contradict rules of the task; the caller may have another way
        return None


def _pieces(task: Task, in_rows: Collection[str]) -> tuple[list[_Piece], int]:
    """Divide the column-wise tables in host memory into pieces that can be assigned to hosts.
    Return the pieces, and the total bytes of row-wise tables in host memory, which are spread evenly over hosts.

    A piece is a table, a pinned shard, the columns of a table without pinned shards, or several tables that are kept
    together on one device. Tables in `in_rows`, by name, count as row-wise.
    """
    group_of = task.constraints.group_of
    grouped: dict[tuple[str, ...], list[_Piece]] = {}
    pieces, spread_bytes = list[_Piece](), 0
    for index, (table, assignment) in enumerate(zip(task.tables, task.tier_assignments, strict=True)):
        if assignment.tier is Tier.DEVICE:
            continue
        limits, piece = task.limits[index], _Piece.of_table(task, index)
        if not limits.free or table.name in in_rows:
            spread_bytes += piece.size_bytes
        elif table.name in group_of:
            grouped.setdefault(group_of[table.name], []).append(piece)
        elif pins := task.constraints.pins.get(table.name):
            pieces += _around_pins(piece, pins)
        else:
            pieces.append(piece)
    return [*pieces, *map(_together, grouped.values())], spread_bytes


def _around_pins(piece: _Piece, pins: list[PinnedShard]) -> Iterator[_Piece]:
    """Yield the pieces of a table with pinned shards: one piece for each pinned shard in `pins`, and one piece for the
    remaining columns of the table, if any columns remain. The argument `piece` has all columns of the table. A pinned
    shard is a shard that every plan must put on one of the devices that a constraint names.
    """
    for pin in pins:
        devices = tuple(tuple(sorted(set(on_host).intersection(pin.devices))) for on_host in piece.devices)
        yield replace(piece, units=pin.dim // DIM_MULTIPLE, devices=devices, most_shards=1, equal=False, pinned=True)
    if left := piece.units - sum(pin.dim for pin in pins) // DIM_MULTIPLE:
        yield replace(piece, units=left, most_shards=piece.most_shards - len(pins), pinned=True)


def _together(pieces: list[_Piece]) -> _Piece:
    """Combine several tables in host memory into one piece, and return this piece. Constraints keep these tables
    together on one device. Each piece in `pieces` is one whole table. The combined piece cannot be split, so the tables
    stay whole.
    """
    devices = tuple(
        tuple(sorted(set.intersection(*map(set, of_pieces))))
        for of_pieces in zip(*(piece.devices for piece in pieces), strict=True)
    )
    names = tuple(name for piece in pieces for name in piece.names)
    size_bytes = sum(piece.size_bytes for piece in pieces)
    return _Piece(names, 1, size_bytes, devices, 1, 1, equal=False, pinned=False)
