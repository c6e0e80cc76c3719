"""Predicts the costs of partial placements for learned policies. A policy gets the predicted costs as input, and the
reward of the policy is computed from the predicted costs.

The costs come from the simulator, or from a network that is trained together with the policy (DreamShard, section 3.2).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from neuroshard.cost.cost import PARTS
from neuroshard.cost.loads import Loads, Traffic
from neuroshard.models import SumModel
from neuroshard.models.perceptron import Width, Widths, perceptron
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import sums_of
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import Positive, PositiveCount, Share
from neuroshard.stages.search.rl.batch import TableEncoder, TaskBatch
from neuroshard.stages.search.space.search_space import SearchSpace

NUM_PARTS = len(PARTS)


def straggler_ms(parts: torch.Tensor) -> torch.Tensor:
    """Return the costs of B plans, (B,) ms, from the P parts of the cost of each of D devices, (B, D, P) ms. The cost
    of a plan is the cost of its most expensive device, and the cost of a device is the sum of its parts.
    """
    return parts.sum(dim=-1).amax(dim=-1)


class SimulatorCosts:
    """Predicts the costs of placements by the pre-trained cost models of a simulator."""

    def __init__(self, simulator: Simulator) -> None:
        """Use the cost models of a simulator. The simulator's compute model must be a `SumModel`: a model that adds up
        a vector for each table on a device.

        Raises:
            UserError: the compute model is not a sum over tables.
        """
        model = simulator.models.compute
        if not isinstance(model, SumModel):
            raise UserError(
                "policy-model-without-sum",
                f"the compute model {type(model).__name__!r} is not a sum over tables",
                limit="learned policies need a compute model that is a sum over tables",
                remedy="Set model to cost models with such a compute model, such as model=cpu",
            )
        self._simulator = simulator
        self._model = model

    def item_vectors(self, batch: TaskBatch) -> torch.Tensor:
        """Return a vector for each of I items in each of B tasks, (B, I, H): the sum of the vectors of the tables in
        the item. An item is one table, or several tables that are kept together.
        """
        once = {id(space): self._of_task(space) for space in {id(space): space for space in batch.spaces}.values()}
        return torch.stack([once[id(space)] for space in batch.spaces])

    def _of_task(self, space: SearchSpace) -> torch.Tensor:
        """Return a vector for each of I items of one task, (I, H): the sum of the vectors of the tables in the item. An
        item is one table, or several tables that are kept together.
        """
        tables = space.whole_tables()
        flat = Loads.of([table for some in tables for table in some], space.task.batch_size)
        return torch.from_numpy(sums_of(self._model.embed(flat), np.array([len(some) for some in tables])))

    def parts(self, batch: TaskBatch, vectors: torch.Tensor, dims: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """Predict the cost of each device in three parts (compute time, forward and backward communication), (B, D, 3)
        ms.

        Args:
            batch: the tasks.
            vectors: (B, D, H) sums of the vectors of the items on each device.
            dims: (B, D) columns on each device.
            count: (B, D) items on each device.
        """
        compute = self._model.head(vectors.numpy()) * (count.numpy() > 0)
        columns, task = dims.numpy().astype(np.float64), batch.spaces[0].task
        if len(sizes := {some.task.batch_size for some in batch.spaces}) > 1:
            raise UserError(
                "policy-batch-sizes-differ",
                f"the tasks have several batch sizes ({', '.join(map(str, sorted(sizes)))})",
                limit="a policy needs tasks with the same batch size",
                remedy="Give tasks with the same batch size",
            )
        traffic = Traffic.of_columns(columns, task.batch_size, task.topology.fast_links)
        forward, backward = self._simulator.communication(traffic, compute)
        return torch.from_numpy(np.stack([compute, forward, backward], axis=-1).astype(np.float32))

    def total(self, vectors: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
        """Return the costs of B plans, (B,) ms, from the P parts of the cost of each of D devices, (B, D, P) ms. The
        cost of a plan is the largest sum of parts on any of its devices. The argument `vectors` is not used.
        """
        return straggler_ms(parts)

    def alone(self, vectors: torch.Tensor) -> torch.Tensor:
        """Predict the compute time of every item alone on a device, (B, I) ms, from the items' vectors (B, I, H)."""
        return torch.from_numpy(self._model.head(vectors.numpy()).astype(np.float32))


@dataclass(frozen=True)
@checked
class CostNetworkSettings:
    """Settings of a cost network and of its training.

    Attributes:
        table: list of widths of the layers of the network that encodes one table, such as [128,32]; the last width is
            the size of the encoding.
        head: width of the hidden layer of each output head; the heads predict the compute and communication costs of a
            device, and the plan cost.
        placements: number of new placements that the policy draws and the cost models price in each training round, as
            training data of the cost network; larger values take longer.
        partial_share: fraction of the new placements, from 0 to 1, that are cut off after a random number of tables, so
            that the cost network learns costs of partial plans.
        steps: number of training steps of the cost network in each training round; larger values take longer.
        batch_size: number of placements per training step of the cost network.
        learning_rate: learning rate of the Adam optimizer for the cost network.
    """

    table: Widths = (128, 32)
    head: Width = 64
    placements: PositiveCount = 100
    partial_share: Share = 0.5
    steps: PositiveCount = 300
    batch_size: PositiveCount = 64
    learning_rate: Positive = 5e-4


class CostNetwork(nn.Module):
    """DreamShard's cost network, which predicts the costs of devices and of plans. The vector of a device is the sum of
    the vectors of the tables on the device. The vector of a plan is the maximum of the vectors of the devices, entry by
    entry.

    There is one head for each part of a device's cost, and one for the plan's cost. The heads of a device's parts also
    see the representation of the whole plan, because waiting depends on the other devices.
    """

    scale_ms: torch.Tensor

    def __init__(self, settings: CostNetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = TableEncoder(tuple(settings.table))
        width = settings.table[-1]
        self.heads = nn.ModuleList(perceptron((2 * width, settings.head, 1)) for _ in range(NUM_PARTS))
        self.total_head = perceptron((width, settings.head, 1))
        self.register_buffer("scale_ms", torch.ones(()))

    @torch.no_grad()
    def item_vectors(self, batch: TaskBatch) -> torch.Tensor:
        """Return a vector for each item, (B, I, H), from the network that encodes tables."""
        return batch.encode(self.encoder)

    @torch.no_grad()
    def parts(self, batch: TaskBatch, vectors: torch.Tensor, dims: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """Predict the parts of the cost of each of D devices in each of B plans, (B, D, P) ms. The P = 3 parts are the
        compute time, the forward communication and the backward communication. The predicted values are at least 0; the
        compute time of an empty device is 0.
        """
        parts = self._parts(vectors, self._of_plan(vectors)).clamp(min=0) * self.scale_ms
        parts[..., 0] *= count > 0
        return parts

    @torch.no_grad()
    def total(self, vectors: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
        """Predict the costs of B plans, (B,) ms, from the vectors of the devices. The network has a separate head (a
        small network at its end) for these costs. The argument `parts` is not used.
        """
        return self._total(vectors).clamp(min=0) * self.scale_ms

    @torch.no_grad()
    def alone(self, vectors: torch.Tensor) -> torch.Tensor:
        """Predict the compute time of every item, (B, I) ms, for a plan with one device that has only this item."""
        return self._parts(vectors[:, :, None], vectors)[:, :, 0, 0].clamp(min=0) * self.scale_ms

    def predict(self, batch: TaskBatch, held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Predict the costs of B placements, with gradients for training. The mask `held` (B, I, D) is True if an item
        is on a device. Return two tensors: the P parts of the cost of each device, (B, D, P), and the cost of each
        plan, (B,). All costs are in multiples of `scale_ms`.
        """
        encoded = batch.encode(self.encoder)
        vectors = (held.float()[..., None] * encoded[:, :, None]).sum(dim=1)
        return self._parts(vectors, self._of_plan(vectors)), self._total(vectors)

    def _parts(self, vectors: torch.Tensor, plan: torch.Tensor) -> torch.Tensor:
        """Predict the parts of each device's cost, (..., D, P), from the vectors of the devices (..., D, H)
        and of the plan (..., H).
        """
        seen = torch.cat([vectors, plan[..., None, :].expand_as(vectors)], dim=-1)
        return torch.cat([head(seen) for head in self.heads], dim=-1)

    def _total(self, vectors: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.total_head(self._of_plan(vectors))[..., 0]
        return total

    def _of_plan(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return a vector for each plan, (..., H): the maximum, entry by entry, of the vectors of the plan's D devices.
        These are given as `vectors` (..., D, H).
        """
        return vectors.amax(dim=-2)


PlacementCosts = SimulatorCosts | CostNetwork  # both predict costs of devices from one vector per item


@dataclass(frozen=True, eq=False)
class MeasuredPlacements:
    """N placements of training tasks, with costs: the training data of the cost network.

    Attributes:
        task: (N,) number of the training task.
        held: (N, I, D) True if a device has an item.
        parts: (N, D, P) ms.
    """

    task: torch.Tensor
    held: torch.Tensor
    parts: torch.Tensor

    @property
    def total(self) -> torch.Tensor:
        """The costs of the N plans, (N,) ms: the cost of the slowest device of each plan."""
        return straggler_ms(self.parts)

    def __len__(self) -> int:
        return len(self.task)

    def and_more(self, other: "MeasuredPlacements") -> "MeasuredPlacements":
        """Return these placements followed by the placements in `other`."""
        pairs = ((self.task, other.task), (self.held, other.held), (self.parts, other.parts))
        return MeasuredPlacements(*(torch.cat(pair) for pair in pairs))


def fit(
    network: CostNetwork,
    optimizer: torch.optim.Optimizer,
    batch: TaskBatch,
    measured: MeasuredPlacements,
    generator: torch.Generator,
) -> float:
    """Train the cost network on the placements in `measured`, and return the mean loss (squared error) of the last 50
    training steps. Each step draws random placements from `measured`. `batch` has the tasks to which the placements
    belong.
    """
    losses = []
    for _ in range(network.settings.steps):
        chosen = torch.randint(len(measured), (network.settings.batch_size,), generator=generator)
        parts, total = network.predict(batch.take(measured.task[chosen]), measured.held[chosen])
        wanted, wanted_total = measured.parts[chosen] / network.scale_ms, measured.total[chosen] / network.scale_ms
        loss = ((parts - wanted) ** 2).mean() + ((total - wanted_total) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses[-50:]) / len(losses[-50:])
