"""What a search is asked: tables, devices and a batch size."""

from dataclasses import asdict, dataclass
from typing import Any

from neuroshard.errors import UserError
from neuroshard.tables import Table, check_unique_names


@dataclass(frozen=True)
class Topology:
    """`num_devices` devices with `memory_bytes` for embedding weights each."""

    num_devices: int
    memory_bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.num_devices, int) or self.num_devices < 1:
            raise UserError(f"topology: num_devices={self.num_devices!r} must be a whole number of at least 1")
        if not isinstance(self.memory_bytes, int) or self.memory_bytes < 1:
            raise UserError(f"topology: memory_bytes={self.memory_bytes!r} must be a positive whole number of bytes")


@dataclass(frozen=True)
class Task:
    """Tables (T,) to be sharded over a topology; `batch_size` is global: samples per step over all devices."""

    tables: tuple[Table, ...]
    topology: Topology
    batch_size: int

    def __post_init__(self) -> None:
        if not self.tables:
            raise UserError("a task needs at least one table; this one has none")
        if not isinstance(self.batch_size, int) or self.batch_size < self.topology.num_devices:
            raise UserError(
                f"task: batch_size={self.batch_size!r} must be a whole number, "
                f"at least one sample for each of the {self.topology.num_devices} devices"
            )
        check_unique_names(self.tables)

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(table.size_bytes for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """The task as JSON-ready fields."""
        return {
            "topology": asdict(self.topology),
            "batch_size": self.batch_size,
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
            return cls(tables, Topology(**fields["topology"]), fields["batch_size"])
        except (KeyError, TypeError) as error:
            raise UserError(f"malformed task: bad or missing field ({error})") from None
