"""What a search is asked: tables, devices and a batch size."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from neuroshard.cost.loads import Loads
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import (
    MAX_BYTES,
    MAX_TABLES,
    BatchSize,
    as_fields,
    parse,
    readable_bytes,
)
from neuroshard.tables import Table, check_unique_names
from neuroshard.tasks.constraint_checks import check_constraints
from neuroshard.tasks.constraints import Constraints, TableLimits
from neuroshard.tasks.memory import MemoryUse
from neuroshard.words.placement import ON_DEVICE, Home, Tier
from neuroshard.words.topology import Topology

_SAME_BATCH_SIZE = 0.05  # relative difference that hardly changes a reuse histogram


@dataclass(frozen=True)
@checked
class Task:
    """Tables (T,) to be sharded over a topology.

    Attributes:
        batch_size: global: samples per step over all devices.
        memory: what counts against a device's memory.
        constraints: what a plan must keep to besides.
    """

    tables: tuple[Table, ...]
    topology: Topology
    batch_size: BatchSize
    memory: MemoryUse = field(default_factory=MemoryUse)
    constraints: Constraints = field(default_factory=Constraints)

    def __post_init__(self) -> None:
        if not 1 <= len(self.tables) <= MAX_TABLES:
            raise UserError(
                f"a task needs at least one table and at most {MAX_TABLES:,}; this one has {len(self.tables)}"
            )
        if self.batch_size < self.topology.num_devices:
            raise UserError(
                f"task: batch_size={self.batch_size} must be "
                f"at least one sample for each of the {self.topology.num_devices} devices"
            )
        if (total := self.total_bytes) > MAX_BYTES:
            raise UserError(
                f"task: its tables take {readable_bytes(total)} with optimizer state and buffers, more than 2^60 bytes"
            )
        check_unique_names(self.tables)
        if self.constraints != Constraints():
            check_constraints(self)
        if not self.topology.host_bytes:
            for table, home in zip(self.tables, self.homes, strict=True):
                if home.tier is not Tier.DEVICE:
                    raise UserError(
                        f"task: table {table.name!r} may lie in host memory only, and hosts have none for tables; set "
                        "topology.host_memory_bytes"
                    )

    @cached_property
    def limits(self) -> tuple[TableLimits, ...]:
        """(T,) all that the constraints say of each table."""
        return tuple(self.constraints.limits(table, self.topology.num_devices) for table in self.tables)

    @cached_property
    def homes(self) -> tuple[Home, ...]:
        """(T,) the memory that holds each table where no search chooses it."""
        if all(rule.tiers is None for rule in self.constraints.rules):
            return (ON_DEVICE,) * len(self.tables)
        return tuple(limits.home for limits in self.limits)

    @cached_property
    def loads(self) -> Loads:
        """(T,) loads of the whole tables, each in columns on a device, in its home."""
        return Loads.of(self.tables, self.batch_size).at(self.homes)

    @property
    def size_bytes(self) -> int:
        """Bytes of the weights of all tables."""
        return sum(table.size_bytes for table in self.tables)

    @property
    def output_columns(self) -> float:
        """Columns of all that a sample gets of the tables."""
        return sum(table.output_columns for table in self.tables)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tables, unsplit, with what the task counts besides weights."""
        sizes = self.memory.device_bytes(Loads.of(self.tables, self.batch_size))
        return sum(sizes.tolist())

    @cached_property
    def shard_memory(self) -> tuple[int, ...]:
        """(D,) bytes for shards on each device: what its own samples' inputs and embeddings leave."""
        inputs = sum(table.pooling_factor + table.features for table in self.tables)
        devices = self.topology.num_devices
        received = self.memory.received_bytes(self.output_columns, self.batch_size, devices, inputs)
        return tuple(free - received for free in self.topology.device_memory)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the tables was made for another batch size, in a line: a histogram can't be converted."""
        others = [table for table in self.tables if _is_other(table.reuse_batch_size, self.batch_size)]
        if not others:
            return ()
        return (
            f"reuse histograms: made for batch size {others[0].reuse_batch_size}, not {self.batch_size} "
            f"({len(others)} of {len(self.tables)} tables, such as {others[0].name!r}): the rows that a batch touches "
            f"are estimated wrongly; make the tables with batch_size={self.batch_size}",
        )

    def to_json(self) -> dict[str, Any]:
        """Convert the task to JSON-ready fields."""
        return {
            "topology": as_fields(self.topology, ("host_memory_bytes", "devices_per_domain")),
            "batch_size": self.batch_size,
            "memory": as_fields(self.memory, ("pipeline",)),
            "constraints": self.constraints.to_json(),
            "tables": [table.to_json() for table in self.tables],
        }

    @classmethod
    def from_json(cls, content: object) -> "Task":
        """Read the task in `content`, as `to_json` gives it.

        Raises:
            UserError: a field is missing or out of range.
        """
        return parse(content, cls, "task")


def _is_other(made_for: int | None, batch_size: int) -> bool:
    return made_for is not None and abs(made_for / batch_size - 1) > _SAME_BATCH_SIZE
