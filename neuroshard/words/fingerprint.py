"""The fingerprint of a machine: a description of the hardware.
Every measurement, and every bundle of cost models, is stored with the fingerprint of the machine that took the
measurements.
"""

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
    """Description of the hardware of a machine: the processor or the GPUs, and the memory of the host.

    Attributes:
        kind: "cpu" or "cuda".
        device: model name of the processor or GPU. Virtual machines may show only the family of a processor.
        count: number of cores or GPUs.
        memory_bytes: memory of the host, in bytes.
        revision: family, model and stepping of a processor; None for GPUs, and if they were not recorded.
    """

    kind: str
    device: str
    count: int
    memory_bytes: int
    revision: str | None = None

    def same_hardware(self, other: dict[str, Any]) -> bool:
        """Return True if this fingerprint and `other`, a fingerprint as a dictionary of fields, may describe the same
        hardware model. The kinds and the device names must be equal. The revisions must be equal too, but only if both
        are recorded.
        """
        both_recorded = self.revision and other.get("revision")
        return (self.kind, self.device) == (other.get("kind"), other.get("device")) and (
            not both_recorded or self.revision == other["revision"]
        )

    def surely(self, other: "Fingerprint") -> bool:
        """Return True if this fingerprint and `other` certainly describe the same hardware model. The kinds, the device
        names and the revisions must be equal. For processors, the revision must also be known.
        """
        identified = self.kind == "cuda" or self.revision is not None
        return identified and (self.kind, self.device, self.revision) == (other.kind, other.device, other.revision)

    def __str__(self) -> str:
        if self.kind == "cuda":
            return f"{self.device}, {number_of(self.count, 'GPU')}"
        which = f"family/model/stepping {self.revision}" if self.revision else "family, model and stepping unknown"
        return f"{self.device} ({which}), {number_of(self.count, 'core')}"


def fingerprint(device_type: str) -> Fingerprint:
    """Return the fingerprint of this machine, a description of the hardware. The fingerprint describes the processor if
    `device_type` is "cpu", and the GPUs if `device_type` is "cuda". If CUDA is not available, a fingerprint of GPUs has
    0 GPUs.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device_type == "cuda":
        import torch  # slow to import: not with this module, which also reads the model cards of bundles

        available = torch.cuda.is_available()
        name = torch.cuda.get_device_name(0) if available else "none"
        return Fingerprint(device_type, name, torch.cuda.device_count() if available else 0, memory)
    info = _cpu_info()
    revision = "/".join(info[name] for name in _REVISION if name in info)
    name = info.get("model name") or platform.processor() or platform.machine()
    return Fingerprint(device_type, name, os.cpu_count() or 1, memory, revision or None)


def _cpu_info() -> dict[str, str]:
    """Return the fields of /proc/cpuinfo for the first core; empty on systems other than Linux."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return {}
    first = info.read_text(encoding="utf-8").split("\n\n")[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def versions() -> dict[str, str]:
    """Return the version of Python, of this package and of each installed package that affects timings, by name."""
    version_of = {"python": platform.python_version(), "neuroshard": __version__}
    for package in _PACKAGES:
        try:
            version_of[package] = version(package)
        except PackageNotFoundError:
            continue
    return version_of


def other_kernels(there: Mapping[str, str]) -> tuple[str, str] | None:
    """Compare the versions of kernel packages on another machine (`there`) with the versions installed here.
    Return two texts, or None if no version differs. Both texts list the packages with different versions: the first
    text with the versions on the other machine, the second text with the versions here.

    `there` has the versions of the other machine, as `versions` returns them. Packages that are not installed on both
    machines are not compared, and patch versions are ignored.
    """
    here = versions()
    both = [package for package in _KERNELS if package in there and package in here]
    other = [package for package in both if there[package].split(".")[:2] != here[package].split(".")[:2]]
    text_there, text_here = (", ".join(f"{package} {place[package]}" for package in other) for place in (there, here))
    return (text_there, text_here) if other else None
