"""Tasks as tensors for learned policies: `TaskBatch` stacks tasks with equal numbers of items and devices, and
`TableEncoder` is the network that turns the features of a table into a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from neuroshard.cost.loads import Loads
from neuroshard.models.features import FeatureSet
from neuroshard.models.perceptron import perceptron
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import number_of
from neuroshard.stages.search.space.memory_checks import check_total, check_whole
from neuroshard.stages.search.space.search_space import SearchSpace
from neuroshard.tasks.task import Task
from neuroshard.words.placement import Tier

FEATURES = FeatureSet("physical")


@dataclass(frozen=True, eq=False)
class TaskBatch:
    """B tasks as tensors, with I items and D devices each. An item is one table, or up to P
    tables that are kept together.

    Attributes:
        spaces: (B,) the items and shards of each task.
        features: (B, I, P, F) features of the items' tables; zeros for missing tables.
        present: (B, I, P) 1 for a table, 0 for a missing one.
        dims: (B, I) output columns per sample.
        size_bytes: (B, I) int64: bytes are exact.
        allowed: (B, I, D) True if a device may have an item.
        rivals: (B, I, R) items that must not share a device with an item; missing ones are the item itself.
        memory_bytes: (B, D) int64, free bytes of each device.
    """

    spaces: tuple[SearchSpace, ...]
    features: torch.Tensor
    present: torch.Tensor
    dims: torch.Tensor
    size_bytes: torch.Tensor
    allowed: torch.Tensor
    rivals: torch.Tensor
    memory_bytes: torch.Tensor

    @classmethod
    def of(cls, tasks: Sequence[Task], method: str) -> "TaskBatch":
        """Return the batch of these tasks, in the same order. Errors mention the name `method` of the searcher.

        Raises:
            UserError: the tasks have different numbers of items or devices.
            InfeasibleError: a task does not fit into memory, or requires that an item is split.
        """
        spaces = tuple(SearchSpace.of_task(task) for task in tasks)
        shapes = {(len(some.items), some.task.topology.num_devices) for some in spaces}
        if len(shapes) > 1:
            different = ", ".join(
                f"some tasks have {number_of(tables, 'table')} and {number_of(devices, 'device')}"
                for tables, devices in sorted(shapes)
            )
            devices_differ = len({devices for _, devices in shapes}) > 1
            raise UserError(
                "policy-task-shapes-differ",
                different,
                limit="a policy needs tasks with the same number of tables and the same number of devices",
                remedy="Give tasks with the same number of devices"
                if devices_differ
                else "Set tasks.draw.min_tables and tasks.draw.max_tables to the same number",
            )
        for some in spaces:
            check_whole(some, method)
        most_tables = max(len(tables) for some in spaces for tables in some.items)
        rivals = max(int(np.diff(some.shards.rules.rival_first).max()) for some in spaces)
        each = [_tensors(some, most_tables, rivals) for some in spaces]
        return cls(spaces, *(torch.stack(same) for same in zip(*each, strict=True)))

    @property
    def num_items(self) -> int:
        """The number of items in every task of the batch, I."""
        return self.features.shape[1]

    @property
    def num_devices(self) -> int:
        """The number of devices in every task of the batch, D."""
        return self.memory_bytes.shape[1]

    def __len__(self) -> int:
        return len(self.spaces)

    def repeat(self, times: int) -> "TaskBatch":
        """Return the batch with every task repeated `times` times in a row."""
        return self.take(torch.arange(len(self)).repeat_interleave(times))

    def take(self, tasks: torch.Tensor) -> "TaskBatch":
        """Return a batch with the tasks that have these indices (n,); an index may occur several times."""
        spaces = tuple(self.spaces[index] for index in tasks.tolist())
        return TaskBatch(
            spaces, *(getattr(self, field.name)[tasks] for field in fields(self) if field.name != "spaces")
        )

    def encode(self, network: nn.Module) -> torch.Tensor:
        """Return a vector for each item, (B, I, H): the sum of the vectors that `network` returns
        for the tables of the item.
        """
        encoded: torch.Tensor = (network(self.features) * self.present[..., None]).sum(dim=2)
        return encoded


def _tensors(space: SearchSpace, most_tables: int, most_rivals: int) -> list[torch.Tensor]:
    """Return the tensors of one task, in the order of the tensor fields of `TaskBatch`. All items are padded to
    `most_tables` tables and `most_rivals` rivals: items that may not share a device with the item.

    Raises:
        UserError: the task has sequence tables or tables in host memory.
        InfeasibleError: the task does not fit into memory.
    """
    task = space.task
    for table in task.tables:
        if not table.pooled:
            raise UserError(
                "policy-sequence-table",
                f"table {table.name!r} is a sequence table",
                limit="learned policies place only pooled tables",
                remedy="Set searcher=neuroshard",
            )
    if any(assignment.tier is not Tier.DEVICE for assignment in task.tier_assignments):
        raise UserError(
            "policy-host-table",
            "the task has tables in host memory",
            limit="learned policies place only tables in device memory",
            remedy="Set searcher=neuroshard",
        )
    check_total(space)
    every, rules = space.whole_tables(), space.shards.rules
    features = np.zeros((len(every), most_tables, len(FEATURES.columns)), dtype=np.float32)
    present = np.zeros((len(every), most_tables), dtype=np.float32)
    for index, tables in enumerate(every):
        features[index, : len(tables)] = FEATURES(Loads.of(tables, task.batch_size))
        present[index, : len(tables)] = 1
    dims = np.array([sum(table.output_columns for table in tables) for tables in every], dtype=np.float32)
    size_bytes = space.shards.size_bytes[space.shards.whole]
    rivals = np.repeat(np.arange(len(every))[:, None], most_rivals, axis=1)
    for index, (start, end) in enumerate(pairwise(rules.rival_first)):
        rivals[index, : end - start] = rules.rivals[start:end]
    arrays = (features, present, dims, size_bytes, rules.allowed, rivals, space.free_bytes)
    return [torch.from_numpy(array) for array in arrays]


class TableEncoder(nn.Module):
    """The network that turns the features of a table into a vector: a perceptron on normalised
    features, with outputs >= 0.
    """

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        count = len(FEATURES.columns)
        self.register_buffer("mean", torch.zeros(count))
        self.register_buffer("scale", torch.ones(count))
        self.network = perceptron((count, *widths))

    def normalise(self, batch: TaskBatch) -> None:
        """Set the mean and the scale by which features are normalised, from the tables of a batch."""
        tables = batch.features[batch.present > 0]
        self.mean.copy_(tables.mean(dim=0))
        self.scale.copy_(tables.std(dim=0).clamp(min=1e-3))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the vectors (..., H) of tables with features (..., F)."""
        return torch.relu(self.network((features - self.mean) / self.scale))
