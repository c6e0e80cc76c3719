"""The devices that tables are placed on: their number and memory, their hosts, and the fast links between them."""

from dataclasses import dataclass
from typing import Any

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import MAX_BYTES, Devices, Size, to_bytes


@dataclass(frozen=True)
@checked
class Topology:
    """The devices of a job, numbered host by host, with their memory and links.

    Attributes:
        num_devices: number of devices to place tables on.
        memory_bytes: memory of each device, in bytes or as text such as 32GiB, or a list with one size per device, such
            as [32GiB,16GiB].
        reserved_bytes: memory of each device to keep free for the rest of the model, in bytes or as text such as 2GiB,
            or a list with one size per device.
        devices_per_host: number of devices on each host, a divisor of num_devices; ranks are numbered host by host, and
            None means that all devices are on one host.
        host_memory_bytes: memory of each host for tables, in bytes or as text such as 512GiB; 0 places no table in host
            memory.
        devices_per_domain: number of devices that fast links such as NVLink connect across hosts (72 in a GB200 NVL72),
            a divisor of num_devices and a multiple of devices_per_host; None means that fast links stay within a host.
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
                "topology-hosts-unequal",
                f"devices_per_host={self.devices_per_host} does not divide num_devices={self.num_devices}",
                where="topology",
                limit="all hosts must have the same number of devices",
                remedy=f"Set devices_per_host to a divisor of {self.num_devices}",
            )
        if self.num_devices % self.domain_size or self.domain_size % self.host_size:
            hosts = f"hosts of {number_of(self.host_size, 'device')}"
            raise UserError(
                "topology-domains-unequal",
                f"devices_per_domain={self.devices_per_domain} does not fit num_devices={self.num_devices} and {hosts}",
                where="topology",
                limit="all domains must have the same number of whole hosts",
                remedy=f"Set devices_per_domain to a divisor of {self.num_devices} that is a multiple of "
                f"{self.host_size}",
            )
        for name in ("memory_bytes", "reserved_bytes"):
            value = getattr(self, name)
            if isinstance(value, tuple):
                if len(value) != self.num_devices:
                    raise UserError(
                        "topology-sizes-count",
                        f"{name} lists {number_of(len(value), 'size')}",
                        where="topology",
                        limit=f"the topology has {number_of(self.num_devices, 'device')}",
                        remedy=f"Set {name} to one size for all devices, or to a list of {self.num_devices} sizes",
                    )
                object.__setattr__(self, name, tuple(to_bytes(size, f"topology.{name}") for size in value))
            else:
                object.__setattr__(self, name, to_bytes(value, f"topology.{name}"))
        object.__setattr__(self, "host_memory_bytes", to_bytes(self.host_memory_bytes, "topology.host_memory_bytes"))
        too_large = sum(self._each("memory_bytes")) > MAX_BYTES
        if too_large or self.all_host_bytes > MAX_BYTES:
            raise UserError(
                "topology-memory-total",
                f"all {'devices' if too_large else 'hosts'} together have more than 2^60 bytes of memory",
                where="topology",
                limit="the maximum is 2^60 bytes",
                remedy=f"Set {'memory_bytes' if too_large else 'host_memory_bytes'} to a smaller size",
            )
        for device, free in enumerate(self.device_memory):
            if free < 1:
                reserved, memory = (self._each(name)[device] for name in ("reserved_bytes", "memory_bytes"))
                raise UserError(
                    "topology-memory-reserved",
                    f"device {device} has no memory for tables",
                    where="topology",
                    limit=f"the device has memory_bytes={memory} and reserved_bytes={reserved}",
                    remedy="Set reserved_bytes to less than memory_bytes"
                    if memory
                    else "Set memory_bytes to the memory of each device, such as 32GiB",
                )

    @property
    def device_memory(self) -> tuple[int, ...]:
        """Memory for tables on each of the D devices, (D,), in bytes: `memory_bytes` minus `reserved_bytes`."""
        pairs = zip(self._each("memory_bytes"), self._each("reserved_bytes"), strict=True)
        return tuple(memory - reserved for memory, reserved in pairs)

    @property
    def host_bytes(self) -> int:
        """Memory in bytes that each host has for tables."""
        return int(self.host_memory_bytes)

    @property
    def all_host_bytes(self) -> int:
        """Memory in bytes that all hosts together have for tables."""
        return self.host_bytes * len(self.hosts)

    @property
    def host_size(self) -> int:
        """Number of devices on each host."""
        return self.devices_per_host or self.num_devices

    @property
    def hosts(self) -> tuple[range, ...]:
        """Indices of the devices on each host, as one range for each host."""
        return self._ranges(self.host_size)

    @property
    def fast_links(self) -> int | None:
        """Number of devices in a group that fast links connect. This is `devices_per_domain` or, if that is None,
        `devices_per_host`. If both are None, the result is None, and fast links connect all devices.
        """
        return self.devices_per_domain or self.devices_per_host

    @property
    def domain_size(self) -> int:
        """Number of devices in each domain, the group of devices that fast links connect."""
        return self.fast_links or self.num_devices

    @property
    def domains(self) -> tuple[range, ...]:
        """Indices of the devices in each domain, as one range for each domain. A domain is a group of devices that fast
        links connect.
        """
        return self._ranges(self.domain_size)

    def _ranges(self, size: int) -> tuple[range, ...]:
        return tuple(range(first, first + size) for first in range(0, self.num_devices, size))

    def _each(self, name: str) -> tuple[int, ...]:
        value: Any = getattr(self, name)
        return value if isinstance(value, tuple) else (value,) * self.num_devices
