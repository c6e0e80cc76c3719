"""The devices that tables are laid out over: how many there are, their memory, and the hosts and links they share."""

from dataclasses import dataclass
from typing import Any

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import MAX_BYTES, Devices, Size, to_bytes


@dataclass(frozen=True)
@checked
class Topology:
    """Devices and their memory.

    Attributes:
        num_devices: number of devices to place shards on.
        memory_bytes: memory of each device, or a list with one size per device. Sizes are numbers of bytes, or text
            such as "32GiB".
        reserved_bytes: part of each device's memory that is kept for the rest of the model, or a list with one size per
            device.
        devices_per_host: number of devices on each host, in order of rank; None: one host has all devices. It divides
            num_devices.
        host_memory_bytes: memory of each host for tables that devices have no room for; 0: none.
        devices_per_domain: number of devices that fast links join, in order of rank, if fast links reach beyond a host,
            as NVLink does in a GB200 NVL72: a whole number of hosts; None: the devices of a host. It divides
            num_devices.
    """

    num_devices: Devices
    memory_bytes: Size | tuple[Size, ...]
    reserved_bytes: Size | tuple[Size, ...] = 0
    devices_per_host: Devices | None = None
    host_memory_bytes: Size = 0
    devices_per_domain: Devices | None = None

    def __post_init__(self) -> None:
        if self.num_devices % self.host_size:
            raise UserError(
                f"topology: devices_per_host={self.devices_per_host} must divide num_devices={self.num_devices}"
            )
        if self.num_devices % self.domain_size or self.domain_size % self.host_size:
            raise UserError(
                f"topology: devices_per_domain={self.devices_per_domain} must divide num_devices={self.num_devices}, "
                f"and be a multiple of the {self.host_size} devices of a host"
            )
        for name in ("memory_bytes", "reserved_bytes"):
            value = getattr(self, name)
            if isinstance(value, tuple):
                if len(value) != self.num_devices:
                    raise UserError(f"topology: {name} lists {len(value)} devices, there are {self.num_devices}")
                object.__setattr__(self, name, tuple(to_bytes(size, f"topology: {name}") for size in value))
            else:
                object.__setattr__(self, name, to_bytes(value, f"topology: {name}"))
        object.__setattr__(self, "host_memory_bytes", to_bytes(self.host_memory_bytes, "topology: host_memory_bytes"))
        if sum(self._each("memory_bytes")) > MAX_BYTES or self.all_host_bytes > MAX_BYTES:
            raise UserError("topology: all devices, or all hosts, together have more than 2^60 bytes of memory")
        for device, free in enumerate(self.device_memory):
            if free < 1:
                raise UserError(
                    f"topology: reserved_bytes={self._each('reserved_bytes')[device]} leave device {device} nothing of "
                    f"its memory_bytes={self._each('memory_bytes')[device]}"
                )

    @property
    def device_memory(self) -> tuple[int, ...]:
        """(D,) bytes for embeddings on each device."""
        pairs = zip(self._each("memory_bytes"), self._each("reserved_bytes"), strict=True)
        return tuple(memory - reserved for memory, reserved in pairs)

    @property
    def host_bytes(self) -> int:
        """Bytes of each host's memory for tables."""
        return int(self.host_memory_bytes)

    @property
    def all_host_bytes(self) -> int:
        """Bytes of all hosts' memory for tables."""
        return self.host_bytes * len(self.hosts)

    @property
    def host_size(self) -> int:
        """Number of devices on each host."""
        return self.devices_per_host or self.num_devices

    @property
    def hosts(self) -> tuple[range, ...]:
        """The devices of every host."""
        return self._ranges(self.host_size)

    @property
    def fast_links(self) -> int | None:
        """Number of devices that fast links join; None where nobody said that they don't join all."""
        return self.devices_per_domain or self.devices_per_host

    @property
    def domain_size(self) -> int:
        """Number of devices in each domain of fast links."""
        return self.fast_links or self.num_devices

    @property
    def domains(self) -> tuple[range, ...]:
        """The devices of every domain of fast links."""
        return self._ranges(self.domain_size)

    def _ranges(self, size: int) -> tuple[range, ...]:
        return tuple(range(first, first + size) for first in range(0, self.num_devices, size))

    def _each(self, name: str) -> tuple[int, ...]:
        value: Any = getattr(self, name)
        return value if isinstance(value, tuple) else (value,) * self.num_devices
