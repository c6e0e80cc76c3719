"""Which tables lie in which form, and the task that is left of those in columns once the others have their places."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from glob import escape

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.models.model_set import ModelSet
from neuroshard.plans.lay_out import in_copies, in_rows
from neuroshard.plans.plan import Plan
from neuroshard.plans.row_blocks import has_row_blocks
from neuroshard.plumbing.arrays import BoolArray, IntArray
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.units import readable_bytes
from neuroshard.stages.search.space.feasibility import device_memory
from neuroshard.tables import Table
from neuroshard.tasks.constraints import TableRule
from neuroshard.tasks.task import Task
from neuroshard.words.form import CALLS, FORMS, Call, Form
from neuroshard.words.home import Tier
from neuroshard.words.shard import Placement

COLUMNS, ROWS, COPIES = (FORMS.index(form) for form in (Form.COLUMNS, Form.ROWS, Form.COPIES))


def known_calls(models: ModelSet, forms: Collection[str] = FORMS) -> frozenset[Call]:
    """The kernel calls of tables in some forms, by name, that models know costs of, what is exchanged included."""
    known = models.forms.intersection(forms)
    return frozenset(call for call in models.compute.calls if call.form in known)


def allowed_forms(task: Task, calls: Collection[Call]) -> BoolArray:
    """(T, F) which forms each table may lie in: those that there are `calls` of, with its kind and its memory.

    As far as the task's constraints and what each form asks for let it. Rows and copies lie on every device, so each
    must be allowed. Tables that are pinned or kept apart stay in columns; those kept together may lie in what all of
    them may. One device has columns only.
    """
    constraints = task.constraints
    bound = {shard.table for shard in constraints.pinned}.union(*constraints.apart)
    known = {
        (pooled, tier): frozenset(call.form for call in calls if (call.pooled, call.tier) == (pooled, tier))
        for pooled in (True, False)
        for tier in Tier
    }
    alone = np.array(
        [
            _allowed(task, table, known[table.pooled, home.tier], table.name in bound)
            for table, home in zip(task.tables, task.homes, strict=True)
        ]
    )
    first, by_all = leaders(task), alone.copy()
    np.logical_and.at(by_all, first, alone)
    allowed: BoolArray = by_all[first]
    return allowed


def leaders(task: Task) -> IntArray:
    """(T,) the first of the tables that each one is kept together with; itself where there are none."""
    number = {table.name: index for index, table in enumerate(task.tables)}
    first = np.arange(len(number))
    for group in task.constraints.together:
        its = [number[name] for name in group]
        first[its] = min(its)
    return first


def has_other_forms(task: Task, tried: BoolArray) -> bool:
    """Whether the task lets some table lie otherwise than in columns and as was `tried` (T, F), models aside."""
    if np.delete(allowed_forms(task, CALLS) & ~tried, COLUMNS, axis=1).any():
        return True
    host, devices = task.topology.host_size, task.topology.num_devices
    limits = (task.constraints.limits(table, devices) for table in task.tables)
    return 1 < host < devices and any(Form.ROWS in its.forms for its in limits)  # on one host's devices


def has_other_homes(task: Task) -> bool:
    """Whether the task lets some table lie in another memory, or with another cache, than where it lies as it is."""
    if not task.topology.host_bytes:
        return False
    limits = (task.constraints.limits(table, task.topology.num_devices) for table in task.tables)
    return any(len(its.tiers) > 1 or (Tier.CACHED in its.tiers and its.cached is None) for its in limits)


def _allowed(task: Task, table: Table, forms: frozenset[Form], bound: bool) -> list[bool]:
    """(F,) of one table, which may be bound to others or to a device."""
    devices, limits = task.topology.num_devices, task.constraints.limits(table, task.topology.num_devices)
    forms &= limits.forms
    everywhere = not bound and devices > 1 and len(limits.devices) == devices
    in_blocks = everywhere and limits.min_blocks <= devices <= limits.max_blocks and has_row_blocks(table, devices)
    may = {Form.COLUMNS: True, Form.ROWS: in_blocks, Form.COPIES: everywhere and limits.min_shards == 1}
    return [form in forms and may[form] for form in FORMS]


def part_of(task: Task, tables: Sequence[int], free_bytes: IntArray) -> Task:
    """A task of some of a task's tables, where shards have `free_bytes` (D,) of each device's memory, all above 0."""
    topology, kept = task.topology, tuple(task.tables[table] for table in tables)
    received = task.memory.received_bytes(
        sum(table.output_columns for table in kept), task.batch_size, topology.num_devices
    )
    memory = tuple((free_bytes + received).tolist())
    devices = replace(topology, memory_bytes=memory, reserved_bytes=0)
    homes = tuple(task.fixed_homes[table] for table in tables) if task.fixed_homes else ()
    return replace(task, tables=kept, topology=devices, constraints=task.constraints.of(kept), fixed_homes=homes)


class Spread:
    """Placements of a task's tables in rows and in copies, over all devices; each table's are made once."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._made: dict[tuple[int, int], list[Placement]] = {}

    def placements(self, table: int, form: int) -> list[Placement]:
        """Return the placements of a table, by its index, in a form, by its place in `FORMS`."""
        if (table, form) not in self._made:
            devices = range(self._task.topology.num_devices)
            made = in_rows(self._task, table, devices) if form == ROWS else in_copies(self._task, table)
            self._made[table, form] = made
        return self._made[table, form]


@dataclass(frozen=True, eq=False)
class FormedTask:
    """A task with some tables in columns; what lies otherwise is the same whatever becomes of these.

    Attributes:
        task: with all tables.
        in_columns: (t,) tables that lie in columns, ascending.
        others: placements of all other tables.
    """

    task: Task
    in_columns: IntArray
    others: tuple[Placement, ...]

    @classmethod
    def of(cls, task: Task, forms: IntArray, spread: Spread) -> "FormedTask":
        """Place all tables but those in columns by forms (T,), places in `FORMS`; rows are over all devices."""
        tables = np.flatnonzero(forms != COLUMNS)
        pairs = zip(tables.tolist(), forms[tables].tolist(), strict=True)
        others = tuple(placed for table, form in pairs for placed in spread.placements(table, form))
        return cls(task, np.flatnonzero(forms == COLUMNS), others)

    @classmethod
    def of_plan(cls, plan: Plan) -> "FormedTask":
        """Split a plan into its tables in columns and the placements of all others."""
        in_columns = np.array([form is Form.COLUMNS for form in plan.forms])
        others = tuple(placed for placed in plan.placements if not in_columns[placed.shard.table])
        return cls(plan.task, np.flatnonzero(in_columns), others)

    @property
    def whole(self) -> bool:
        """Whether all tables lie in columns."""
        return len(self.in_columns) == len(self.task.tables)

    def columns_task(self) -> Task:
        """The tables in columns, one at least, with the memory that the others leave.

        Raises:
            InfeasibleError: the others need more than there is.
        """
        if self.whole:
            return self.task
        free = np.maximum(self._free_bytes(), 1)  # into a byte nothing goes, and no device has less
        part = part_of(self._with_apart(), self.in_columns.tolist(), free)
        return replace(part, topology=replace(part.topology, host_memory_bytes=self._free_host_bytes()))

    def columns_plan(self, plan: Plan) -> Plan:
        """What a plan of the whole task has in columns, as a plan of `columns_task`.

        Raises:
            InfeasibleError: the other tables need more memory than there is.
        """
        if self.whole:
            return plan
        number = {table: place for place, table in enumerate(self.in_columns.tolist())}
        kept = [placed for placed in plan.placements if placed.shard.table in number]
        return Plan(self.columns_task(), tuple(_renumbered(placed, number[placed.shard.table]) for placed in kept))

    def whole_plan(self, columns: Plan | None) -> Plan:
        """The plan of all tables, with one of `columns_task`; None where no table lies in columns.

        Raises:
            InfeasibleError: the tables in rows and copies alone need more memory than there is.
        """
        if columns is None:
            self._free_bytes()
        elif self.whole:
            return columns
        tables, placed = self.in_columns.tolist(), () if columns is None else columns.placements
        return Plan(self.task, (*(_renumbered(p, tables[p.shard.table]) for p in placed), *self.others))

    def _free_bytes(self) -> IntArray:
        """(D,) bytes of each device's memory that rows and copies leave.

        Raises:
            InfeasibleError: they need more than there is.
        """
        memory, used = device_memory(self.task), placed_bytes(self.task, self.others)
        free: IntArray = memory - used
        if free.min() < 0:
            device = int(free.argmin())
            raise InfeasibleError(
                f"the tables in rows and copies take {readable_bytes(used.sum())}, of that "
                f"{readable_bytes(used[device])} on device {device}, which has {readable_bytes(memory[device])}; give "
                "each device more memory, or let them lie in columns"
            )
        return free

    def _free_host_bytes(self) -> int:
        """Bytes of each host's memory that rows leave.

        Raises:
            InfeasibleError: they need more than there is.
        """
        topology = self.task.topology
        loads = Loads.placed(self.task.tables, self.others, self.task.batch_size, topology.num_devices)
        used = np.zeros(len(topology.hosts), dtype=np.int64)
        devices = np.array([placed.device for placed in self.others], dtype=np.int64)
        np.add.at(used, devices // topology.host_size, self.task.memory.host_bytes(loads))
        most = int(used.max())
        if most > topology.host_bytes:
            raise InfeasibleError(
                f"tables in rows take {readable_bytes(most)} of a host's memory, which has "
                f"{readable_bytes(topology.host_bytes)}; raise topology.host_memory_bytes"
            )
        return max(topology.host_bytes - most, min(topology.host_bytes, 1))

    def _with_apart(self) -> Task:
        """The task, with rules that keep tables in columns off the devices of others that they are kept apart from."""
        held: dict[str, set[int]] = defaultdict(set)
        for placed in self.others:
            held[self.task.tables[placed.shard.table].name].add(placed.device)
        rules, constraints = [], self.task.constraints
        for group in constraints.apart:
            taken = set[int]().union(*(held[name] for name in group if name in held))
            free = tuple(device for device in range(self.task.topology.num_devices) if device not in taken)
            rules += [TableRule(escape(name), devices=free) for name in group if taken and name not in held]
        if not rules:
            return self.task
        return replace(self.task, constraints=replace(constraints, rules=(*constraints.rules, *rules)))


def placed_bytes(task: Task, placements: Sequence[Placement]) -> IntArray:
    """(D,) bytes of device memory that placements of some of the task's tables take."""
    loads = Loads.placed(task.tables, placements, task.batch_size, task.topology.num_devices)
    total = np.zeros(task.topology.num_devices, dtype=np.int64)
    np.add.at(total, [placed.device for placed in placements], task.memory.device_bytes(loads))
    return total


def _renumbered(placed: Placement, table: int) -> Placement:
    """The same shard, of another table."""
    return replace(placed, shard=replace(placed.shard, table=table))
