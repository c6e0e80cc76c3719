"""Costs of partial placements: what an agent sees, and what it is rewarded for."""

import numpy as np
import torch

from neuroshard.cost.loads import Loads
from neuroshard.cost.parts import PARTS
from neuroshard.cost.traffic import Traffic
from neuroshard.models import SumModel
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.search.rl.batch import TaskBatch
from neuroshard.stages.search.rl.encoder import Reduction
from neuroshard.stages.search.space.items import Items

NUM_PARTS = len(PARTS)


def straggler_ms(parts: torch.Tensor) -> torch.Tensor:
    """(B,) plan costs, ms: the straggler's sum of parts (B, D, P)."""
    return parts.sum(dim=-1).amax(dim=-1)


class SimulatorCosts:
    """What the simulator's pre-trained cost models say of placements."""

    def __init__(self, simulator: Simulator) -> None:
        """Keep a simulator with models of the papers' form.

        Raises:
            UserError: the compute model isn't a sum over tables.
        """
        model = simulator.models.compute
        if not isinstance(model, SumModel):
            raise UserError("learned policies need a compute model that sums over tables; these models have another")
        self._simulator = simulator
        self._model = model

    @property
    def reduction(self) -> Reduction:
        """How items become a device: a sum, as in every compute model that learned policies can look at."""
        return Reduction("sum")

    def item_vectors(self, batch: TaskBatch) -> torch.Tensor:
        """(B, I, H) the sum of its tables' vectors."""
        once = {id(items): self._of_task(items) for items in {id(items): items for items in batch.items}.values()}
        return torch.stack([once[id(items)] for items in batch.items])

    def _of_task(self, items: Items) -> torch.Tensor:
        tables = [items.tables(number, item.width) for number, item in enumerate(items.items)]
        starts = np.concatenate([[0], np.cumsum([len(some) for some in tables])[:-1]])
        flat = Loads.of([table for some in tables for table in some], items.task.batch_size)
        return torch.from_numpy(np.add.reduceat(self._model.embed(flat), starts, axis=0))

    def parts(self, batch: TaskBatch, vectors: torch.Tensor, dims: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """(B, D, P) ms of each of P parts (`PARTS`), as the simulator has them.

        Args:
            batch: the tasks.
            vectors: (B, D, H) of the devices.
            dims: (B, D) columns on them.
            count: (B, D) items on them.
        """
        compute = self._model.head(vectors.numpy()) * (count.numpy() > 0)
        columns, task = dims.numpy().astype(np.float64), batch.items[0].task
        if len({some.task.batch_size for some in batch.items}) > 1:
            raise UserError("tasks of one batch must have one batch size")
        traffic = Traffic.of_columns(columns, task.batch_size, task.topology.fast_links)
        forward, backward = self._simulator.communication(traffic, compute)
        return torch.from_numpy(np.stack([compute, forward, backward], axis=-1).astype(np.float32))

    def total(self, vectors: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
        """(B,) plan costs, ms, of devices with such vectors (B, D, H): the sum of parts (B, D, P) of the straggler."""
        return straggler_ms(parts)

    def alone(self, vectors: torch.Tensor) -> torch.Tensor:
        """(B, I) compute ms of every item alone, from the items' vectors (B, I, H)."""
        return torch.from_numpy(self._model.head(vectors.numpy()).astype(np.float32))
