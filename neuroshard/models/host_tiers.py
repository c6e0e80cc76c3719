"""Compute costs of tables in host memory, behind a cache on the device or not: arithmetic on a few figures."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from neuroshard.arrays import Float32Array, FloatArray
from neuroshard.loads import Loads
from neuroshard.models.interface import ReluHead, SumModel
from neuroshard.models.kernel_bytes import link_bytes, managed_lookups, memory_bytes
from neuroshard.models.mlp import Tensors
from neuroshard.plans.form import CALLS, Call
from neuroshard.plans.shard import Tier
from neuroshard.schema import parse

_GB = 1e9  # bytes
_MILLION = 1e6  # lookups: a nanosecond each are a millisecond
_Figure = Annotated[float, Meta(ge=0, le=1e9)]


@dataclass(frozen=True)
class HostFigures:
    """The figures of `HostTiers`, none negative."""

    memory_ms_per_gb: _Figure
    link_ms_per_gb: _Figure
    cache_lookup_ns: _Figure
    call_ms: _Figure


@dataclass(frozen=True)
class HostTiers(SumModel):
    """A sum over tables in host memory of what each one's bytes and lookups take, plus a fixed time for the call.

    So a larger share of rows in the cache never costs more.

    Attributes:
        memory_ms_per_gb: of 10^9 bytes through the device's memory.
        link_ms_per_gb: of 10^9 bytes over the link to the host, one way.
        cache_lookup_ns: of a lookup that goes to a cache.
        call_ms: of a call.
    """

    kind: ClassVar[str] = "host_tiers"

    memory_ms_per_gb: float
    link_ms_per_gb: float
    cache_lookup_ns: float
    call_ms: float

    @property
    def calls(self) -> frozenset[Call]:
        """All of tables in host memory."""
        return frozenset(call for call in CALLS if call.tier is not Tier.DEVICE)

    @property
    def head(self) -> ReluHead:
        """The sum of the times, plus the call's."""
        return ReluHead.of_cost(self.call_ms)

    def embed(self, loads: Loads) -> Float32Array:
        """(n, 1) ms of each load."""
        each = np.array([self.memory_ms_per_gb, self.link_ms_per_gb, self.cache_lookup_ns])
        cost_ms: Float32Array = (host_amounts(loads) @ each)[:, None].astype(np.float32)
        return cost_ms

    def scaled(self, factor: float) -> "HostTiers":
        """With all costs times the factor."""
        return HostTiers(**{name: figure * factor for name, figure in asdict(self).items()})

    def settings(self) -> dict[str, Any]:
        """The figures."""
        return asdict(self)

    def tensors(self) -> Tensors:
        """None."""
        return {}

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "HostTiers":  # noqa: ARG003  # as of other kinds
        """The model that gave the settings."""
        return cls(**asdict(parse(settings, HostFigures, "settings")))


def host_amounts(loads: Loads) -> FloatArray:
    """(n, 3) what tables in host memory cost by: 10^9 bytes of device memory and of the link, 10^6 cached lookups."""
    amounts: FloatArray = np.stack(
        [memory_bytes(loads) / _GB, link_bytes(loads) / _GB, managed_lookups(loads) / _MILLION], axis=1
    )
    return amounts
