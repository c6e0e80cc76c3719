"""The three cost models of one hardware, together."""

from dataclasses import dataclass
from pathlib import Path

from neuroshard.errors import UserError
from neuroshard.models.interface import CommModel, ComputeModel
from neuroshard.task import Task


@dataclass(frozen=True)
class CostModels:
    """Cost models of computation, forward and backward communication, and the batch size they were fitted for."""

    compute: ComputeModel
    forward: CommModel
    backward: CommModel
    batch_size: int

    @property
    def num_devices(self) -> int:
        """Number of devices that the communication models serve."""
        return self.forward.num_devices

    def check(self, task: Task) -> None:
        """Raise UserError unless the models can cost plans of `task`."""
        if task.topology.num_devices != self.num_devices:
            raise UserError(
                f"the cost models were made for {self.num_devices} devices, the task has "
                f"{task.topology.num_devices}; collect and pretrain with comm.num_devices={task.topology.num_devices}"
            )
        if task.batch_size != self.batch_size:
            raise UserError(
                f"the cost models were made for batch size {self.batch_size}, the task has {task.batch_size}; "
                f"set batch_size={self.batch_size}, or collect and pretrain at {task.batch_size}"
            )

    @classmethod
    def load(cls, path: str | Path) -> "CostModels":
        """The models of the bundle directory at `path`.

        Raises:
            UserError: it is missing, truncated, or made for other features.
        """
        from neuroshard.models.bundle import load_bundle  # the bundle's file needs this class

        return load_bundle(Path(path))[0]
