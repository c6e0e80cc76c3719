"""The machine of a measurement, which is stored with every record and bundle."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.version import __version__

_REVISION = ("cpu family", "model", "stepping")
_KERNELS = ("torch", "fbgemm-gpu", "fbgemm-gpu-cpu")
_PACKAGES = (*_KERNELS, "numpy")


@dataclass(frozen=True)
class Fingerprint:
    """The hardware of a machine.

    Attributes:
        kind: "cpu" or "cuda".
        device: name of the model. Virtual machines may show only the family of a processor.
        count: cores or GPUs.
        memory_bytes: of the host.
        revision: family, model and stepping of a processor; None for GPUs, and if it was not recorded.
    """

    kind: str
    device: str
    count: int
    memory_bytes: int
    revision: str | None = None

    def same_hardware(self, other: dict[str, Any]) -> bool:
        """Return True if `other`, the fields in a manifest, may be the same type and model, as far as is known."""
        known = self.revision and other.get("revision")
        return (self.kind, self.device) == (other.get("kind"), other.get("device")) and (
            not known or self.revision == other["revision"]
        )

    def surely(self, other: "Fingerprint") -> bool:
        """Return True if `other` certainly is the same type and model."""
        known = self.kind == "cuda" or self.revision is not None
        return known and (self.kind, self.device, self.revision) == (other.kind, other.device, other.revision)

    def __str__(self) -> str:
        if self.kind == "cuda":
            return f"{self.device}, {number_of(self.count, 'GPU')}"
        which = f"family/model/stepping {self.revision}" if self.revision else "family, model and stepping unknown"
        return f"{self.device} ({which}), {number_of(self.count, 'core')}"


def fingerprint(device_type: str) -> Fingerprint:
    """Return the fingerprint of this machine as a "cpu", or as "cuda" with a count of 0 if there is no GPU."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device_type == "cuda":
        import torch  # needed here only; reading a bundle's card needs none

        available = torch.cuda.is_available()
        name = torch.cuda.get_device_name(0) if available else "none"
        return Fingerprint(device_type, name, torch.cuda.device_count() if available else 0, memory)
    info = _cpu_info()
    revision = "/".join(info[name] for name in _REVISION if name in info)
    name = info.get("model name") or platform.processor() or platform.machine()
    return Fingerprint(device_type, name, os.cpu_count() or 1, memory, revision or None)


def _cpu_info() -> dict[str, str]:
    """Read what Linux says of the first core; nothing elsewhere."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return {}
    first = info.read_text(encoding="utf-8").split("\n\n")[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def versions() -> dict[str, str]:
    """Look up the versions of Python and of the packages that a timing depends on."""
    version_of = {"python": platform.python_version(), "neuroshard": __version__}
    for package in _PACKAGES:
        try:
            version_of[package] = version(package)
        except PackageNotFoundError:
            continue
    return version_of


def other_kernels(there: Mapping[str, str]) -> tuple[str, str] | None:
    """Return packages with kernels whose versions differ there and here, apart from patch versions, as text for each.

    `there` has versions as `versions` returns them. Packages that are not installed in both places are not compared;
    None if no version differs.
    """
    here = versions()
    both = [package for package in _KERNELS if package in there and package in here]
    other = [package for package in both if there[package].split(".")[:2] != here[package].split(".")[:2]]
    told, told_here = (", ".join(f"{package} {its[package]}" for package in other) for its in (there, here))
    return (told, told_here) if other else None
