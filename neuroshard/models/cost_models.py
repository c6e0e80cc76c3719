"""The three cost models of one hardware, together."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from neuroshard.errors import UserError, unknown_name
from neuroshard.files import digest_of
from neuroshard.hardware.fingerprint import Fingerprint
from neuroshard.models.interface import CommModel, ComputeModel
from neuroshard.models.trust import Margins, Ranges
from neuroshard.tasks.task import Task

ROOFLINE = "roofline:"


@dataclass(frozen=True)
class CostModels:
    """Cost models of computation, forward and backward communication.

    Attributes:
        batch_size: the only one that they serve, None if they serve any.
        ranges: of what they were fitted to; None if that is unknown.
        margins: how far they may be off; None if that is unknown.
        name: what `load` finds them by: a name, or a bundle's absolute path; None for models made in Python.
        hardware: what was measured; None for arithmetic, and where nobody wrote it down.
        digest: of the bundle that they were loaded from; None for others.
    """

    compute: ComputeModel
    forward: CommModel
    backward: CommModel
    batch_size: int | None
    ranges: Ranges | None = None
    margins: Margins | None = None
    name: str | None = None
    hardware: Fingerprint | None = None
    digest: str | None = None

    @property
    def num_devices(self) -> int | None:
        """Number of devices that the communication models serve; None for any."""
        return self.forward.num_devices

    def check(self, task: Task) -> None:
        """Raise UserError unless the models can cost plans of `task`."""
        if self.num_devices not in (None, task.topology.num_devices):
            raise UserError(
                f"the cost models were made for {self.num_devices} devices, the task has "
                f"{task.topology.num_devices}; collect and pretrain with comm.num_devices=[{task.topology.num_devices}]"
            )
        if self.batch_size not in (None, task.batch_size):
            raise UserError(
                f"the cost models were made for batch size {self.batch_size}, the task has {task.batch_size}; "
                f"set batch_size={self.batch_size}, or collect and pretrain at {task.batch_size}"
            )

    @classmethod
    def load(cls, path: str | Path) -> "CostModels":
        """Models by name or place.

        "roofline:NAME" is arithmetic on a datasheet's bandwidths; the name of a shipped bundle, such as "cpu", is that;
        anything else is a bundle's directory.

        Raises:
            UserError: the bundle is missing, truncated, or made for other features; or there is no such datasheet.
        """
        from neuroshard.models.bundle import load_bundle  # the bundle's file needs this class
        from neuroshard.models.shipped import shipped_path
        from neuroshard.registry import build

        if str(path).startswith(ROOFLINE):
            models: CostModels = build("roofline", str(path).removeprefix(ROOFLINE))
            return replace(models, name=str(path))
        shipped = shipped_path(str(path))
        if shipped is None and not os.path.lexists(path) and Path(path).name == str(path):
            if f"{ROOFLINE}{path}" in known_names():
                raise UserError(f"unknown model {str(path)!r}; did you mean '{ROOFLINE}{path}'?")
            raise unknown_name("model (and no directory is called so)", str(path), known_names())
        name = str(path) if shipped is not None else str(Path(path).absolute())
        bundle = shipped or Path(path)
        loaded, card = load_bundle(bundle)
        return replace(loaded, name=name, hardware=card.hardware, digest=digest_of(bundle / "bundle.json"))


def known_names() -> list[str]:
    """Every name that `CostModels.load` takes: shipped bundles and datasheets."""
    from neuroshard.models.shipped import shipped_names
    from neuroshard.registry import choices

    return [*shipped_names(), *(f"{ROOFLINE}{name}" for name in choices("roofline"))]
