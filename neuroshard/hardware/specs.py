"""What to measure on and with: values that cross processes, made without importing torch."""

from collections.abc import Iterable
from dataclasses import dataclass

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError, check_name
from neuroshard.words.placement import Tier

DEVICE_TYPES = ("cpu", "cuda")
OPTIMIZERS = ("sgd", "rowwise_adagrad")


@dataclass(frozen=True)
@checked
class DeviceSpec:
    """A type of device; on CPU, `pin` keeps each worker on one core.

    Attributes:
        kind: cpu | cuda.
        pin: keep each process on a core of its own.
    """

    kind: str
    pin: bool = True

    def __post_init__(self) -> None:
        check_name("hardware kind", self.kind, DEVICE_TYPES)


@dataclass(frozen=True)
@checked
class EmbeddingSettings:
    """Settings of the fused kernel.

    Attributes:
        optimizer: sgd | rowwise_adagrad: optimizer of the fused kernel; sgd is FBGEMM's exact SGD.
    """

    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        check_name("optimizer", self.optimizer, OPTIMIZERS)


def check_tiers(device_type: str, tiers: Iterable[Tier]) -> None:
    """Raise UserError unless tables can be measured in these tiers of memory on that type of device."""
    for tier in tiers:
        if device_type == "cpu" and tier is not Tier.DEVICE:
            raise UserError(
                f"hardware=cpu has no second tier of memory, and tables in tier {tier.value!r} can't be measured "
                "there: FBGEMM keeps caches on GPUs only; take hardware=cuda"
            )


def no_device() -> UserError:
    """Make the error where a GPU is asked for and there is none."""
    return UserError("hardware=cuda: torch finds no CUDA device; use hardware=cpu, or install the cuda extra")
