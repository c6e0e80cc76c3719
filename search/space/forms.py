"""Which tables lie in which form, and the task that is left of those in columns once the others have their places."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from neuroshard.arrays import BoolArray, IntArray
from neuroshard.errors import InfeasibleError
from neuroshard.loads import Loads
from neuroshard.plans.form import FORMS, Form
from neuroshard.plans.lay_out import in_copies, in_rows
from neuroshard.plans.plan import Plan
from neuroshard.plans.row_blocks import has_row_blocks
from neuroshard.plans.shard import Placement
from neuroshard.stages.search.space.feasibility import device_memory
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.units import readable_bytes

COLUMNS, ROWS, COPIES = (FORMS.index(form) for form in (Form.COLUMNS, Form.ROWS, Form.COPIES))


def allowed_forms(task: Task, forms: Collection[Form]) -> BoolArray:
    """(T, F) which of `forms` each table may lie in, by the task's constraints and by what each form asks for.

    Rows and copies lie on every device, so each must be allowed. Tables that are pinned, kept together or kept apart
    stay in columns, and so do sequence tables. One device has columns only.
    """
    constraints = task.constraints
    bound = {shard.table for shard in constraints.pinned}.union(*constraints.together, *constraints.apart)
    return np.array(
        [_allowed(task, table, frozenset(forms), table.name in bound or not table.pooled) for table in task.tables]
    )


def _allowed(task: Task, table: Table, forms: frozenset[Form], bound: bool) -> list[bool]:
    """(F,) of one table, which may be bound to others or to a device."""
    devices, limits = task.topology.num_devices, task.constraints.limits(table, task.topology.num_devices)
    forms &= limits.forms
    everywhere = not bound and devices > 1 and len(limits.devices) == devices
    in_blocks = everywhere and limits.min_shards <= devices <= limits.max_blocks and has_row_blocks(table, devices)
    may = {Form.COLUMNS: True, Form.ROWS: in_blocks, Form.COPIES: everywhere and limits.min_shards == 1}
    return [form in forms and may[form] for form in FORMS]


def part_of(task: Task, tables: Sequence[int], free_bytes: IntArray) -> Task:
    """A task of some of a task's tables, where shards have `free_bytes` (D,) of each device's memory, all above 0."""
    topology, kept = task.topology, tuple(task.tables[table] for table in tables)
    received = task.memory.received_bytes(
        sum(table.output_columns for table in kept), task.batch_size, topology.num_devices
    )
    memory = tuple((free_bytes + received).tolist())
    devices = Topology(topology.num_devices, memory, devices_per_host=topology.devices_per_host)
    return replace(task, tables=kept, topology=devices, constraints=task.constraints.of(kept))


class Spread:
    """Placements of a task's tables in rows and in copies, over all devices; each table's are made once."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._made: dict[tuple[int, int], list[Placement]] = {}

    def placements(self, table: int, form: int) -> list[Placement]:
        """Those of a table, by its index, in a form, by its place in `FORMS`."""
        if (table, form) not in self._made:
            devices = range(self._task.topology.num_devices)
            made = in_rows(self._task, table, devices) if form == ROWS else in_copies(self._task, table)
            self._made[table, form] = made
        return self._made[table, form]


@dataclass(frozen=True, eq=False)
class FormedTask:
    """A task whose tables each have a form; what lies in rows or copies is the same whatever becomes of the rest.

    Attributes:
        task: with all tables.
        forms: (T,) of each table, by its place in `FORMS`; rows are over all devices.
        spread: places what lies in rows and copies.
    """

    task: Task
    forms: IntArray
    spread: Spread

    @property
    def in_columns(self) -> IntArray:
        """(t,) tables that lie in columns."""
        return np.flatnonzero(self.forms == COLUMNS)

    @cached_property
    def everywhere(self) -> tuple[Placement, ...]:
        """The placements of the tables in rows and in copies."""
        tables = np.flatnonzero(self.forms != COLUMNS)
        pairs = zip(tables.tolist(), self.forms[tables].tolist(), strict=True)
        return tuple(placed for table, form in pairs for placed in self.spread.placements(table, form))

    def columns_task(self) -> Task:
        """The tables in columns, one at least, with the memory that the others leave.

        Raises:
            InfeasibleError: they leave none.
        """
        free = self._free_bytes()
        if free.min() < 1:
            raise InfeasibleError(
                f"tables in rows and copies leave device {int(free.argmin())} no memory; give each device "
                f"{readable_bytes(1 - int(free.min()))} more"
            )
        return part_of(self.task, self.in_columns.tolist(), free)

    def whole_plan(self, columns: Plan | None) -> Plan:
        """The plan of all tables, with one of `columns_task`; None where no table lies in columns.

        Raises:
            InfeasibleError: the tables in rows and copies alone need more memory than there is.
        """
        if columns is None and (free := self._free_bytes()).min() < 0:
            raise InfeasibleError(
                f"tables in rows and copies need {readable_bytes(-int(free.min()))} more than device "
                f"{int(free.argmin())} has; give each device more memory"
            )
        tables, placed = self.in_columns.tolist(), () if columns is None else columns.placements
        moved = (replace(p, shard=replace(p.shard, table=tables[p.shard.table])) for p in placed)
        return Plan(self.task, (*moved, *self.everywhere))

    def _free_bytes(self) -> IntArray:
        """(D,) bytes of each device's memory that rows and copies leave; below 0 where they need more."""
        devices, task = np.array([placed.device for placed in self.everywhere], dtype=np.int64), self.task
        loads = Loads.placed(task.tables, self.everywhere, task.batch_size, task.topology.num_devices)
        used = np.zeros(task.topology.num_devices, dtype=np.int64)
        np.add.at(used, devices, task.memory.device_bytes(loads))
        return device_memory(task) - used
