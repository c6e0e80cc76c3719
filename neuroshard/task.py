"""What a search is asked: tables, devices and a batch size."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from neuroshard.constraints import Constraints, constraints
from neuroshard.errors import UserError
from neuroshard.memory import MemoryUse
from neuroshard.tables import Table, check_unique_names


@dataclass(frozen=True)
class Topology:
    """Devices and their memory.

    Attributes:
        num_devices: D.
        memory_bytes: of each device; one number for all, or (D,).
        reserved_bytes: of that for the rest of the model; one number for all, or (D,).
    """

    num_devices: int
    memory_bytes: int | tuple[int, ...]
    reserved_bytes: int | tuple[int, ...] = 0

    def __post_init__(self) -> None:
        if not isinstance(self.num_devices, int) or self.num_devices < 1:
            raise UserError(f"topology: num_devices={self.num_devices!r} must be a whole number of at least 1")
        for name, least in (("memory_bytes", 1), ("reserved_bytes", 0)):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
                if len(value) != self.num_devices:
                    raise UserError(f"topology: {name} lists {len(value)} devices, there are {self.num_devices}")
            for size in self._each(name):
                if not isinstance(size, int) or size < least:
                    raise UserError(f"topology: {name}={size!r} must be a whole number of bytes, at least {least}")
        for device, free in enumerate(self.device_memory):
            if free < 1:
                raise UserError(f"topology: reserved_bytes leave device {device} nothing of its memory_bytes")

    @property
    def device_memory(self) -> tuple[int, ...]:
        """(D,) bytes for embeddings on each device."""
        pairs = zip(self._each("memory_bytes"), self._each("reserved_bytes"), strict=True)
        return tuple(memory - reserved for memory, reserved in pairs)

    def _each(self, name: str) -> tuple[int, ...]:
        value: int | tuple[int, ...] = getattr(self, name)
        return value if isinstance(value, tuple) else (value,) * self.num_devices


@dataclass(frozen=True)
class Task:
    """Tables (T,) to be sharded over a topology.

    Attributes:
        batch_size: global: samples per step over all devices.
        memory: what counts against a device's memory.
        constraints: what a plan must keep to besides.
    """

    tables: tuple[Table, ...]
    topology: Topology
    batch_size: int
    memory: MemoryUse = field(default_factory=MemoryUse)
    constraints: Constraints = field(default_factory=Constraints)

    def __post_init__(self) -> None:
        if not self.tables:
            raise UserError("a task needs at least one table; this one has none")
        if not isinstance(self.batch_size, int) or self.batch_size < self.topology.num_devices:
            raise UserError(
                f"task: batch_size={self.batch_size!r} must be a whole number, "
                f"at least one sample for each of the {self.topology.num_devices} devices"
            )
        check_unique_names(self.tables)
        self.constraints.check(self.tables, self.topology.num_devices)

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(table.size_bytes for table in self.tables)

    @cached_property
    def shard_memory(self) -> tuple[int, ...]:
        """(D,) bytes for shards on each device: what is left when every device has its own samples' embeddings."""
        total_dim = sum(table.dim for table in self.tables)
        received = self.memory.received_bytes(total_dim, self.batch_size, self.topology.num_devices)
        return tuple(free - received for free in self.topology.device_memory)

    def to_json(self) -> dict[str, Any]:
        """The task as JSON-ready fields."""
        return {
            "topology": asdict(self.topology),
            "batch_size": self.batch_size,
            "memory": asdict(self.memory),
            "constraints": self.constraints.to_json(),
            "tables": [table.to_json() for table in self.tables],
        }

    @classmethod
    def from_json(cls, content: object) -> "Task":
        """The task in `content`, as `to_json` gives it.

        Raises:
            UserError: a field is missing or out of range.
        """
        try:
            fields: Any = content
            tables = tuple(Table.from_json(table) for table in fields["tables"])
            memory = MemoryUse(**fields.get("memory", {}))
            rules = constraints(**fields.get("constraints", {}))
            return cls(tables, Topology(**fields["topology"]), fields["batch_size"], memory, rules)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"malformed task: bad or missing field ({error})") from None
