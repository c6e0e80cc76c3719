"""The three cost models of one hardware, together."""

from dataclasses import dataclass
from pathlib import Path

from neuroshard.errors import UserError
from neuroshard.models.interface import CommModel, ComputeModel
from neuroshard.models.trust import Margins, Ranges
from neuroshard.task import Task

_ROOFLINE = "roofline:"


@dataclass(frozen=True)
class CostModels:
    """Cost models of computation, forward and backward communication.

    Attributes:
        batch_size: the only one that they serve, None if they serve any.
        ranges: of what they were fitted to; None if that is unknown.
        margins: how far they may be off; None if that is unknown.
    """

    compute: ComputeModel
    forward: CommModel
    backward: CommModel
    batch_size: int | None
    ranges: Ranges | None = None
    margins: Margins | None = None

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

        if str(path).startswith(_ROOFLINE):
            from neuroshard.registry import build  # which needs Hydra: slow to import

            models: CostModels = build("roofline", str(path).removeprefix(_ROOFLINE))
            return models
        return load_bundle(shipped_path(str(path)) or Path(path))[0]
