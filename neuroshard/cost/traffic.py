"""What devices exchange in a step: what communication models are asked with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.cost.loads import LoadSets
from neuroshard.plumbing.arrays import FloatArray, IntArray
from neuroshard.words.collective import ELEMENT_BYTES, Collective


@dataclass(frozen=True, eq=False)
class Traffic:
    """B exchanges between D devices each.

    Attributes:
        size_bytes: (B, D, C) that each device puts into every collective for all samples of a batch, what it would
            send to itself included; of the first C collectives only: there is nothing of the others.
        batch_size: (B,) samples over all devices.
        host_size: devices that share a host, or a domain of fast links of several; None where one has all, or nothing
            is exchanged by hosts.
    """

    size_bytes: FloatArray
    batch_size: IntArray
    host_size: int | None = None

    @classmethod
    def of_columns(
        cls, dims: FloatArray | IntArray, batch_size: int | IntArray, host_size: int | None = None
    ) -> "Traffic":
        """Of column shards: (B, D) columns that a sample gets of each device, at a global batch size, for all or (B,).

        Of all-to-alls alone, without the input: what costs of columns hang on, and quick to make.
        """
        sizes = np.broadcast_to(np.asarray(batch_size, dtype=np.int64), len(dims))
        return cls((dims * (ELEMENT_BYTES * sizes.astype(np.float64))[:, None])[..., None], sizes, host_size)

    @classmethod
    def of(
        cls, device_loads: LoadSets, given: FloatArray, num_devices: int, batch_size: int, host_size: int | None
    ) -> "Traffic":
        """Of B plans, with the loads of their devices, (B D) sets, one plan after the other.

        At a global batch size, on hosts of so many devices; each load makes its device put `given` (n, C) bytes into
        every collective.
        """
        size_bytes = np.stack([device_loads.totals(given[:, collective]) for collective in Collective], axis=-1)
        plans = len(device_loads) // num_devices
        return cls(size_bytes.reshape(plans, num_devices, -1), np.full(plans, batch_size), host_size)

    @classmethod
    def joined(cls, parts: Sequence["Traffic"]) -> "Traffic":
        """The exchanges of all parts, in order: of the same devices and collectives."""
        size_bytes = np.concatenate([part.size_bytes for part in parts])
        return cls(size_bytes, np.concatenate([part.batch_size for part in parts]), parts[0].host_size)

    def __len__(self) -> int:
        return len(self.size_bytes)

    @property
    def num_devices(self) -> int:
        """Return D, the number of devices that take part."""
        return int(self.size_bytes.shape[1])

    @property
    def held(self) -> tuple[Collective, ...]:
        """The collectives of which there may be anything."""
        return tuple(Collective)[: self.size_bytes.shape[2]]

    def given(self, collective: Collective) -> FloatArray:
        """(B, D) bytes that each device puts into a collective."""
        if collective < self.size_bytes.shape[2]:
            return self.size_bytes[..., collective]
        return np.zeros(self.size_bytes.shape[:2])

    def alone(self, collective: Collective) -> "Traffic":
        """The collective by itself, as if it were an all-to-all: (B G, M, 1), each group's exchange after the other.

        Within `groups` (G, M); of the input, what a device puts in is what comes to it.
        """
        groups = self.groups(collective)
        size_bytes = self.given(collective)[:, groups].reshape(-1, groups.shape[1], 1)
        host_size = self.host_size if len(groups) == 1 else None
        return Traffic(size_bytes, np.repeat(self.batch_size, len(groups)), host_size)

    def groups(self, collective: Collective) -> IntArray:
        """(G, M) devices that take part in one exchange with each other: all, or those of a host or a place on it."""
        ranks, host = np.arange(self.num_devices), self.host_size or self.num_devices
        if collective is Collective.HOST_REDUCE_SCATTER:
            return ranks.reshape(-1, host)
        return ranks.reshape(-1, host).T if collective is Collective.HOST_ALL_TO_ALL else ranks[None]

    def with_columns(self, dims: FloatArray) -> "Traffic":
        """With all-to-alls of (B, D) columns on each device instead; of one exchange (B = 1), as many as there are."""
        size_bytes = np.repeat(self.size_bytes, len(dims) // len(self), axis=0)
        batch_size = np.repeat(self.batch_size, len(dims) // len(self))
        size_bytes[..., Collective.ALL_TO_ALL] = dims * (ELEMENT_BYTES * batch_size.astype(np.float64))[:, None]
        return replace(self, size_bytes=size_bytes, batch_size=batch_size)

    @property
    def forward(self) -> "Traffic":
        """What of it there is on the way forward: copies exchange nothing then."""
        if self.size_bytes.shape[2] <= Collective.ALL_REDUCE:
            return self
        size_bytes = self.size_bytes.copy()
        size_bytes[..., Collective.ALL_REDUCE] = 0
        return replace(self, size_bytes=size_bytes)

    @property
    def columns(self) -> FloatArray:
        """(B, D) columns that a sample gets of each device."""
        pooled = self.given(Collective.ALL_TO_ALL)
        columns: FloatArray = pooled / (ELEMENT_BYTES * self.batch_size.astype(np.float64))[:, None]
        return columns
