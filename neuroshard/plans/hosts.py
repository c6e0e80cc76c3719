"""Tables in host memory assigned to hosts so that none is overfilled: as rules and pinned shards, which searches keep.

Searches know how much memory each device has, and of hosts only what all of them have together. So where the tables in
host memory are more than one host holds, a search may be asked again with every such table on one host, or its columns
divided between several.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from glob import escape

import numpy as np

from neuroshard.layouts import COLUMNS
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.tasks.constraints import PinnedColumns, PinnedShard, TableRule
from neuroshard.tasks.task import Task
from neuroshard.words.placement import Tier

_PRECISION = 1.002  # of the least host memory that is named


def may_overfill(task: Task) -> bool:
    """Return True if a plan of the task could overfill a host: there are several hosts, none with room for all."""
    topology = task.topology
    used = sum(task.memory.host_bytes(task.loads).tolist())
    return len(topology.hosts) > 1 and used > topology.host_bytes


def assigned_to_hosts(task: Task, in_rows: Collection[str] = ()) -> Task | None:
    """Return the task with its tables in host memory assigned to hosts, within the memory of these; None if that fails.

    A table is on one host if a host has room for the table, else its columns are divided between as few hosts as
    possible. The result is None, too, if no plan could overfill a host. The tables `in_rows`, by name, are row-wise
    over all hosts, evenly.
    """
    return _assigned(task, task.topology.host_bytes, in_rows) if may_overfill(task) else None


def least_host_bytes(task: Task) -> int:
    """Find the memory of each host that lets hosts take all tables, within 0.2%; what all take, if no less does."""
    total: int = sum(task.memory.host_bytes(task.loads).tolist())
    low, high = total // len(task.topology.hosts), total
    while high > max(low, 1) * _PRECISION:
        middle = (low + high) // 2
        low, high = (low, middle) if _assigned(task, middle, ()) is not None else (middle, high)
    return high


def kept_on_hosts(plan: Plan) -> Plan:
    """Keep the column shards in host memory on their hosts, by constraints of the plan's task, if hosts may overfill.

    Shards of a table that is on several hosts keep their widths. Tables with pinned shards get no more constraints.
    """
    task = plan.task
    if not may_overfill(task):
        return plan
    constraints, rules, pins = task.constraints, list[TableRule](), list[PinnedShard]()
    for table, its in enumerate(plan.by_table):
        columns = plan.layouts[table] is COLUMNS and its[0].tier_assignment.tier is not Tier.DEVICE
        if not columns or task.tables[table].name in constraints.pins:
            continue
        piece = _Piece.of_table(task, table)
        held = Counter[int]()  # columns on each device
        for placed in its:
            held[placed.device] += placed.shard.dim
        shards = [(device // task.topology.host_size, dim // DIM_MULTIPLE) for device, dim in held.items()]
        if len({host for host, _ in shards}) > 1:
            pins += piece.pins(shards)
        else:
            rules += piece.rules(shards[0][0])
    kept = replace(constraints.with_rules(rules), pinned=(*constraints.pinned, *pins))
    return replace(plan, task=replace(task, constraints=kept))


@dataclass(frozen=True)
class _Piece:
    """Columns in host memory that may be assigned to one host, or to several where they may be cut.

    Attributes:
        names: of its tables; several are kept together.
        units: of 4 columns.
        unit_bytes: of each in host memory.
        devices: (H,) those of each host that may hold it.
        most_shards: it may be cut into.
        least_units: of a shard.
        equal: whether shards are two halves.
        pinned: whether it is a pinned shard, or the rest of a table that has some.
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
        """Make a piece of a whole table, without what is kept together with it."""
        its, limits = task.tables[table], task.limits[table]
        units = its.dim // DIM_MULTIPLE
        size_bytes = int(task.memory.host_bytes(task.loads.take(np.array([table])))[0])
        equal = limits.equal_widths or not its.pooled
        whole = limits.min_shards > 2 and equal  # as many shards as it must have, all on one host
        return cls(
            (its.name,),
            units,
            size_bytes // units,
            tuple(tuple(sorted(set(host).intersection(limits.devices))) for host in task.topology.hosts),
            1 if whole else limits.max_shards,
            limits.min_dim // DIM_MULTIPLE,
            equal,
            pinned=False,
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of host memory that all of the piece takes."""
        return self.units * self.unit_bytes

    def shards(self, free: IntArray) -> list[tuple[int, int]] | None:
        """Choose (host, units) of each shard, on hosts with (H,) bytes of memory left; None where it has no room."""
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
        fits = all(self.size_bytes // 2 <= free[host] for host in hosts)
        may = len(hosts) == 2 <= self.most_shards and self.units % 2 == 0
        return [(host, self.units // 2) for host in hosts] if fits and may else None

    def rules(self, host: int) -> Iterator[TableRule]:
        """Yield the rules that keep all of the piece on a host."""
        return (TableRule(escape(name), devices=self.devices[host]) for name in self.names)

    def pins(self, shards: Iterable[tuple[int, int]]) -> Iterator[PinnedShard]:
        """Yield the pinned shards that keep (host, units) of the piece where they are; of a single table."""
        return (PinnedColumns.on(self.names[0], units * DIM_MULTIPLE, self.devices[host]) for host, units in shards)


def _assigned(task: Task, host_bytes: int, in_rows: Collection[str]) -> Task | None:
    """Assign the task's tables in host memory to hosts with so much memory each; None where that fails."""
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
    except UserError:  # rules that contradict others: there may be another way
        return None


def _pieces(task: Task, in_rows: Collection[str]) -> tuple[list[_Piece], int]:
    """Collect the pieces to assign to hosts, and the bytes of tables that are row-wise over all hosts, evenly."""
    group_of = task.constraints.group_of
    grouped: dict[tuple[str, ...], list[_Piece]] = {}
    pieces, spread_bytes = list[_Piece](), 0
    for index, (table, home) in enumerate(zip(task.tables, task.tier_assignments, strict=True)):
        if home.tier is Tier.DEVICE:
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
    """Yield a table's pinned shards, and what is left of it."""
    for pin in pins:
        devices = tuple(tuple(sorted(set(its).intersection(pin.devices))) for its in piece.devices)
        yield replace(piece, units=pin.dim // DIM_MULTIPLE, devices=devices, most_shards=1, equal=False, pinned=True)
    if left := piece.units - sum(pin.dim for pin in pins) // DIM_MULTIPLE:
        yield replace(piece, units=left, most_shards=piece.most_shards - len(pins), pinned=True)


def _together(pieces: list[_Piece]) -> _Piece:
    """Join tables that are kept together on one device, unsplit, into one piece."""
    devices = tuple(
        tuple(sorted(set.intersection(*map(set, its))))
        for its in zip(*(piece.devices for piece in pieces), strict=True)
    )
    names = tuple(name for piece in pieces for name in piece.names)
    size_bytes = sum(piece.size_bytes for piece in pieces)
    return _Piece(names, 1, size_bytes, devices, 1, 1, equal=False, pinned=False)
