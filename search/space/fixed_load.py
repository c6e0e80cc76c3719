"""The fixed load of devices: the row-wise and data-parallel tables, with the memory and the costs of these tables."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuroshard.cost.loads import LoadSets, Traffic
from neuroshard.layouts import COLUMN_WISE_LAYOUT, place_column_wise, placed_loads, sent_bytes_of
from neuroshard.models import ComputeModel
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import DIM_MULTIPLE, readable_bytes
from neuroshard.tasks.task import Task
from neuroshard.words.collective import ELEMENT_BYTES, Collective
from neuroshard.words.placement import Placement


def device_memory(task: Task) -> IntArray:
    """Return the bytes of memory that each device has for shards, (D,)."""
    return np.array(task.shard_memory, dtype=np.int64)


def check_buffers(task: Task) -> None:
    """Raise InfeasibleError if the buffers for the samples of a device take more memory than the device has."""
    if (least := int(device_memory(task).min())) < 0:
        raise InfeasibleError(
            "device-buffers-too-large",
            "the buffers for a device's own samples do not fit in the memory of the smallest device",
            limit=f"the buffers take {readable_bytes(-least)} more than that device has",
            remedy="Give each device more memory (topology.memory_bytes), or set a smaller memory.batches_in_flight",
        )


@dataclass(frozen=True, eq=False)
class FixedLoad:
    """The load that D devices have before a search places the column-wise tables: the memory, the compute time and the
    traffic of all other tables of the task.

    Attributes:
        task: the task with all tables.
        column_wise: (t,) indices of the tables that are to be placed column-wise (whole or split), ascending.
        size_bytes: (D,) bytes of each device's memory that the other tables take.
        compute_ms: (D,) ms of the other tables' kernel calls.
        sent_bytes: (D, C) bytes that the other tables put into every collective.
        others: placements of the other tables, the same in every plan.
        loads: (D,) sets of loads of the other tables; None if there are no other tables or all devices are alike.
    """

    task: Task
    column_wise: IntArray
    size_bytes: IntArray
    compute_ms: FloatArray
    sent_bytes: FloatArray
    others: tuple[Placement, ...] = ()
    loads: LoadSets | None = None

    @classmethod
    def empty(cls, task: Task, tables: IntArray | None = None) -> "FixedLoad":
        """Return a fixed load that takes no memory, compute time or traffic on any device: no table is placed yet.

        `tables` (t,) has the indices of the tables that the search places column-wise; None for all tables of the task.
        """
        devices = task.topology.num_devices
        which = np.arange(len(task.tables)) if tables is None else tables
        nothing = np.zeros(devices, dtype=np.int64), np.zeros(devices), np.zeros((devices, len(Collective)))
        return cls(task, which, *nothing)

    @classmethod
    def of(cls, task: Task, others: Sequence[Placement], model: ComputeModel) -> "FixedLoad":
        """Return the fixed load of the placements `others`. The load has the memory, the traffic, and the compute times
        that `model` predicts. All tables without a placement in `others` are left for the search to place column-wise.

        Raises:
            InfeasibleError: the placements take more memory than there is.
        """
        if not others:
            return cls.empty(task)
        devices = task.topology.num_devices
        places = np.array([placed.device for placed in others], dtype=np.int64)
        loads = placed_loads(task.tables, others, task.batch_size, devices)
        sent_bytes = np.zeros((devices, len(Collective)))
        np.add.at(sent_bytes, places, sent_bytes_of(loads, devices))
        grouped = LoadSets.grouped(loads, places, devices)
        size_bytes = _set_bytes(task, grouped)
        _check_devices(task, size_bytes)
        _check_hosts(task, task.memory.host_bytes(loads), places)
        left = np.setdiff1d(np.arange(len(task.tables)), [placed.shard.table for placed in others])
        return cls(task, left, size_bytes, model.device_ms(grouped), sent_bytes, tuple(others), grouped)

    @classmethod
    def of_plan(cls, plan: Plan, model: ComputeModel) -> "FixedLoad":
        """Return the fixed load of the row-wise and data-parallel tables in a plan; the column-wise tables are to be
        placed again.

        Raises:
            InfeasibleError: the row-wise and data-parallel tables take more memory than there is.
        """
        layouts = plan.layouts
        others = [placed for placed in plan.placements if layouts[placed.shard.table] is not COLUMN_WISE_LAYOUT]
        return cls.of(plan.task, others, model)

    @cached_property
    def free_bytes(self) -> IntArray:
        """The bytes of memory on each device that are left for the column-wise tables, (D,), after the tables of this
        load are placed.
        """
        return device_memory(self.task) - self.size_bytes

    def traffic(self, units: FloatArray) -> Traffic:
        """Return the bytes that each of D devices sends in the exchanges of n plans. The bytes are a sum: the bytes for
        the tables of this load, which are equal in all plans, plus the bytes for the column-wise tables. For the
        column-wise tables, `units` (n, D) has the number of columns that each device sends per sample, divided by 4.
        """
        task, columns = self.task, units * DIM_MULTIPLE
        if not self.sent_bytes.any():
            return Traffic.of_columns(columns, task.batch_size, task.topology.fast_links)
        sent_bytes = np.repeat(self.sent_bytes[None], len(columns), axis=0)
        sent_bytes[..., Collective.ALL_TO_ALL] += columns * float(ELEMENT_BYTES * task.batch_size)
        return Traffic(sent_bytes, np.full(len(columns), task.batch_size), task.topology.fast_links)

    def plan(self, columns: Sequence[tuple[int, int, int]] = ()) -> Plan:
        """Return a plan that places the tables of this load, and places the column-wise shards in `columns`. An entry
        of `columns` is (table index, dim, device): a shard with `dim` columns of the table is placed on the device.
        """
        return Plan(self.task, (*place_column_wise(self.task, columns), *self.others))

    def step(self, simulator: Simulator, compute_ms: FloatArray, units: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return two arrays of times in ms, (n, D) each, for D devices in each of n plans. The first array has the
        compute time of a device plus the time of the backward exchanges. A device starts the output dist after this
        time. The second array has the times of the first array plus the time of the output dist.

        Args:
            simulator: costs exchanges.
            compute_ms: (n, D) compute cost of the column-wise tables on each device.
            units: (n, D) units of 4 columns that each device sends for each sample.
        """
        whole_ms = compute_ms + self.compute_ms
        forward, backward = simulator.communication(self.traffic(units), whole_ms)
        ready_ms: FloatArray = whole_ms + backward
        return ready_ms, ready_ms + forward

    def closed_to(self) -> BoolArray:
        """Return a mask (T, D), with an entry for each of T tables on each of D devices. The entry is True if a table
        of this fixed load is on the device, and is in the same group of `constraints.apart` as the table of the entry.
        A column-wise table must not be placed on a device for which the entry of the table is True.
        """
        names = [table.name for table in self.task.tables]
        closed: BoolArray = np.zeros((len(names), self.task.topology.num_devices), dtype=np.bool_)
        held: dict[str, set[int]] = defaultdict(set)
        for placed in self.others:
            held[names[placed.shard.table]].add(placed.device)
        for group in self.task.constraints.apart if self.others else ():
            taken = sorted(set[int]().union(*(held[name] for name in group if name in held)))
            for name in group:
                closed[names.index(name), taken] = True
        return closed


def placed_bytes(task: Task, placements: Sequence[Placement]) -> IntArray:
    """Return the bytes of device memory that `placements` take on each device, (D,); the placements may cover only
    some tables of the task.
    """
    devices = task.topology.num_devices
    loads = placed_loads(task.tables, placements, task.batch_size, devices)
    places = np.array([placed.device for placed in placements], dtype=np.int64)
    return _set_bytes(task, LoadSets.grouped(loads, places, devices))


def _set_bytes(task: Task, sets: LoadSets) -> IntArray:
    """Return the bytes of device memory that the shards on each of B devices take, (B,). The argument `sets` has one
    set for each device, with the loads of the shards on this device.
    """
    total = np.zeros(len(sets), dtype=np.int64)
    np.add.at(total, sets.owners, task.memory.bytes_with_caches(sets))
    return total


def _check_devices(task: Task, used: IntArray) -> None:
    check_buffers(task)
    memory = device_memory(task)
    if (memory < used).any():
        device = int((memory - used).argmin())
        takes, has = readable_bytes(used[device]), readable_bytes(memory[device])
        if takes == has:
            takes, has = number_of(int(used[device]), "byte"), number_of(int(memory[device]), "byte")
        raise InfeasibleError(
            "device-memory-row-wise-tables",
            f"the row-wise and data-parallel tables take {takes} on device {device}",
            limit=f"device {device} has {has}, which is "
            f"{number_of(int(used[device] - memory[device]), 'byte')} too little",
            remedy="Give each device more memory (topology.memory_bytes), or allow column_wise for these tables",
        )


def _check_hosts(task: Task, size_bytes: IntArray, devices: IntArray) -> None:
    used, topology = np.zeros(len(task.topology.hosts), dtype=np.int64), task.topology
    np.add.at(used, devices // topology.host_size, size_bytes)
    if used.max() > topology.host_bytes:
        raise InfeasibleError(
            "host-memory-row-wise-tables",
            f"row-wise tables need {readable_bytes(used.max())} of one host's memory",
            limit=f"each host has {readable_bytes(topology.host_bytes)}",
            remedy="Raise topology.host_memory_bytes",
        )
