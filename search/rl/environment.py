"""The environment of all policies: it places the items (tables, or tables kept together) of many tasks at once. In each
task, the items are placed one by one in descending predicted cost.
"""

from dataclasses import dataclass, replace

import torch

from neuroshard.plans.plan import Plan
from neuroshard.stages.search.rl.batch import TaskBatch
from neuroshard.stages.search.rl.cost_network import PlacementCosts


@dataclass(frozen=True, eq=False)
class EpisodeState:
    """The state of B episodes after some steps. In an episode, the items (tables, or tables kept together) of one task
    are placed one by one.

    Attributes:
        step: number of placed items.
        vectors: (B, D, H) sum of the vectors of the items on each device.
        dims, count: (B, D) columns and items on each device.
        free_bytes: (B, D) free memory of each device.
        held: (B, I, D) True if a device has an item.
        alive: (B,) True if every item so far was placed on a legal device.
    """

    step: int
    vectors: torch.Tensor
    dims: torch.Tensor
    count: torch.Tensor
    free_bytes: torch.Tensor
    held: torch.Tensor
    alive: torch.Tensor


class Environment:
    """A reinforcement-learning environment in which a policy places the items (tables, or tables kept together) of a
    batch of tasks on devices, one item of each task per step. Observations and rewards are computed from predicted
    costs.

    An action is the device of the next item. Memory and constraints make actions illegal. If no action is legal, the
    episode is dead: it continues, so that the batch stays complete, but `alive` is False, and the episode counts for
    nothing.
    """

    def __init__(self, batch: TaskBatch, costs: PlacementCosts, order: torch.Tensor | None = None) -> None:
        """Prepare to place the items of a batch of tasks. The argument `order` (B, I) has the numbers of the items in
        the order of placement. If `order` is None, the items of each task are placed by descending compute time, as
        predicted for each item alone on a device.
        """
        self.batch = batch
        self.costs = costs
        self._vectors = costs.item_vectors(batch)
        alone = costs.alone(self._vectors)
        self.order = torch.argsort(alone, dim=1, descending=True, stable=True) if order is None else order
        # The cost of an equal share of all work makes costs comparable over tasks of any size.
        self._share_ms = (alone.sum(dim=1) / batch.num_devices).clamp(min=1e-6)
        self._rows = torch.arange(len(batch))

    def reset(self) -> EpisodeState:
        """Return the state in which no item is placed."""
        shape = (len(self.batch), self.batch.num_devices)
        return EpisodeState(
            0,
            torch.zeros(*shape, self._vectors.shape[-1]),
            torch.zeros(shape),
            torch.zeros(shape),
            self.batch.memory_bytes,
            torch.zeros(shape[0], self.batch.num_items, shape[1], dtype=torch.bool),
            torch.ones(shape[0], dtype=torch.bool),
        )

    def legal(self, state: EpisodeState) -> torch.Tensor:
        """Return a mask of devices, (B, D): True if the constraints allow the next item on the device, and the device
        has room.
        """
        rows, item = self._rows, self.order[:, state.step]
        rivals = self.batch.rivals[rows, item]  # may contain the item itself, which is not placed yet
        beside_rival = state.held[rows[:, None], rivals].any(dim=1)
        has_room = self.batch.size_bytes[rows, item][:, None] <= state.free_bytes
        return self.batch.allowed[rows, item] & ~beside_rival & has_room

    def observe(self, state: EpisodeState) -> torch.Tensor:
        """Predict the P parts of the cost of each device in a state, (B, D, P), relative to the task's average compute
        time per device. The parts are returned by the method `parts` in ms, and divided by this average, so that the
        costs of small and large tasks are comparable.

        The average is the sum of the predicted compute times of all items of the task, each alone on a device, divided
        by D.
        """
        return self.parts(state) / self._share_ms[:, None, None]

    def parts(self, state: EpisodeState) -> torch.Tensor:
        """Predict the P parts of the cost of each device in a state, (B, D, P) ms. The parts are the compute time, the
        forward communication and the backward communication of the items that are on the device in this state.
        """
        return self.costs.parts(self.batch, state.vectors, state.dims, state.count)

    def total_ms(self, state: EpisodeState) -> torch.Tensor:
        """Predict the cost of each task's plan so far, (B,) ms; the reward of the policy is computed from this cost."""
        return self.costs.total(state.vectors, self.parts(state))

    def step(self, state: EpisodeState, legal: torch.Tensor, device: torch.Tensor) -> EpisodeState:
        """Place the next item of each of B tasks on a device, and return the state after this step. `device` (B,) has
        the number of the chosen device for each task. If the chosen device is not legal, the episode of this task is
        dead from now on.

        `legal` (B, D) is True for the devices that may have the item, as returned by the method `legal`.
        """
        rows, item = self._rows, self.order[:, state.step]
        chosen = torch.zeros_like(state.dims)
        chosen[rows, device] = 1
        free_bytes = state.free_bytes.clone()
        free_bytes[rows, device] -= self.batch.size_bytes[rows, item]
        held = state.held.clone()
        held[rows, item, device] = True
        more = chosen[..., None] * self._vectors[rows, item][:, None]
        return replace(
            state,
            step=state.step + 1,
            vectors=state.vectors + more,
            dims=state.dims + chosen * self.batch.dims[rows, item][:, None],
            count=state.count + chosen,
            free_bytes=free_bytes,
            held=held,
            alive=state.alive & legal[rows, device],
        )

    def plans(self, state: EpisodeState) -> list[Plan | None]:
        """Return the plans in a final state, (B,); None for episodes in which an item had no legal device."""
        return [
            space.plan(held.numpy() * space.shards.full_width[:, None]) if alive else None
            for space, held, alive in zip(self.batch.spaces, state.held, state.alive.tolist(), strict=True)
        ]
