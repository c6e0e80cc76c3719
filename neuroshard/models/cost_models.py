"""The three cost models of one hardware, together."""

from dataclasses import dataclass
from pathlib import Path

from neuroshard.errors import UserError
from neuroshard.models.interface import CommModel, ComputeModel
from neuroshard.task import Task

_ROOFLINE = "roofline:"


@dataclass(frozen=True)
class CostModels:
    """Cost models of computation, forward and backward communication.

    `batch_size` is the one they were fitted for, None if they serve any.
    """

    compute: ComputeModel
    forward: CommModel
    backward: CommModel
    batch_size: int | None

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
        """The models of the bundle directory at `path`; or "roofline:NAME", arithmetic on a datasheet's bandwidths.

        Raises:
            UserError: the bundle is missing, truncated, or made for other features; or there is no such datasheet.
        """
        from neuroshard.models.bundle import load_bundle  # the bundle's file needs this class

        if str(path).startswith(_ROOFLINE):
            from neuroshard.registry import build  # which needs Hydra: slow to import

            models: CostModels = build("roofline", str(path).removeprefix(_ROOFLINE))
            return models
        return load_bundle(Path(path))[0]
