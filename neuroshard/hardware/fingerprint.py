"""What was measured on: stored with every record and bundle."""

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("neuroshard", "torch", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy")


@dataclass(frozen=True)
class Fingerprint:
    """A machine: `kind` ("cpu" or "cuda"), model name, number of cores or GPUs, the host's memory in bytes."""

    kind: str
    device: str
    count: int
    memory_bytes: int

    def to_json(self) -> dict[str, Any]:
        """The fields, for a manifest or a card."""
        return asdict(self)

    def same_hardware(self, other: dict[str, Any]) -> bool:
        """Whether `other`, as `to_json` gives it, names the same kind and model."""
        return (self.kind, self.device) == (other.get("kind"), other.get("device"))


def fingerprint(kind: str) -> Fingerprint:
    """This machine's, seen as `kind`."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if kind == "cuda":
        import torch  # needed here only; reading a bundle's card needs none

        found = torch.cuda.is_available()
        name = torch.cuda.get_device_name(0) if found else "none"
        return Fingerprint(kind, name, torch.cuda.device_count() if found else 0, memory)
    return Fingerprint(kind, _cpu_model(), os.cpu_count() or 1, memory)


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a timing depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
