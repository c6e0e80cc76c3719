"""Settings of devices and kernels, as values that can be sent between processes; this module does not import torch."""

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
    """The type of device on which kernels and exchanges are measured.

    Attributes:
        kind: cpu | cuda: type of the device that kernels and exchanges are measured on: the CPU or NVIDIA GPUs of this
            machine.
        pin: true binds each measuring process to one CPU core, to reduce noise (processes share cores if there are more
            processes than cores); false lets the operating system choose cores; kind=cuda ignores this setting.
    """

    kind: str
    pin: bool = True

    def __post_init__(self) -> None:
        check_name("hardware kind", self.kind, DEVICE_TYPES)


@dataclass(frozen=True)
@checked
class EmbeddingSettings:
    """Settings of the FBGEMM kernels that are measured.

    Attributes:
        optimizer: sgd | rowwise_adagrad: optimizer with which the measured kernels update the tables: FBGEMM's exact
            SGD, or row-wise Adagrad, which also updates a state per row.
    """

    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        check_name("optimizer", self.optimizer, OPTIMIZERS)


def check_tiers(device_type: str, tiers: Iterable[Tier]) -> None:
    """Raise UserError if tables cannot be measured in these memory tiers on this type of device."""
    for tier in tiers:
        if device_type == "cpu" and tier is not Tier.DEVICE:
            raise UserError(
                "hardware-cpu-lacks-tier",
                f"tables in tier {tier.value!r} cannot be measured with hardware=cpu",
                limit="FBGEMM has this tier on GPUs only",
                remedy="Set hardware=cuda, or keep the tables in tier 'device'",
            )


def no_device() -> UserError:
    """Return the error to raise if the settings require a GPU, but this machine has no GPU."""
    return UserError(
        "hardware-no-gpu",
        "torch finds no CUDA device",
        where="hardware=cuda",
        remedy="Set hardware=cpu, or use a machine with a GPU and install the cuda extra there "
        "(`pip install -e '.[cuda]'` in a checkout of neuroshard)",
    )
