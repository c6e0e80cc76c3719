"""Policies: the base class, DreamShard's and AutoShard's policies, and the episodes in which a policy places tasks."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from neuroshard.models.perceptron import AnyWidths, Width, Widths, perceptron
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.search.rl.batch import TableEncoder, TaskBatch
from neuroshard.stages.search.rl.cost_network import NUM_PARTS
from neuroshard.stages.search.rl.environment import Environment, EpisodeState

Choose = Callable[[torch.Tensor], torch.Tensor]


class Policy(nn.Module):
    """Base class of policies: networks that score each device as the place of the next item, for any number of devices.

    Attributes:
        kind: name of the class in files.
        settings: arguments of the constructor, JSON-ready.
        encoder: encodes tables.
        cost: encodes costs of devices; None for a policy that does not observe costs.
        head: scores a device.
    """

    kind: ClassVar[str]
    settings: dict[str, Any]
    encoder: TableEncoder
    cost: nn.Module | None
    head: nn.Module

    @abstractmethod
    def encode(self, batch: TaskBatch, order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two vectors for each of I items in each of B tasks. The first vector is added to the vector of the
        device on which the item is placed. The second vector is the context, from which the policy chooses this device.
        `order` (B, I) has the indices of the items in the order of placement; the returned vectors are in this order.

        Returns:
            (B, I, H) what each item adds to its device, >= 0; and (B, I, C) what the policy knows when it places the
                item.
        """

    def ordered(self, batch: TaskBatch, order: torch.Tensor) -> torch.Tensor:
        """Return the scaled vectors of the items in the order of placement `order` (B, I), as a tensor (B, I, H). All
        vectors of a task are divided by the same number, so that tasks of all sizes look similar. The number is the
        mean of the H elements of a vector: the sum of the vectors of all items, divided by the number of devices.
        """
        encoded = batch.encode(self.encoder)
        share = encoded.sum(dim=1).mean(dim=-1) / batch.num_devices
        return (encoded / share.clamp(min=1e-6)[:, None, None]).gather(1, order[..., None].expand_as(encoded))

    def scores(self, devices: torch.Tensor, context: torch.Tensor, costs: torch.Tensor) -> torch.Tensor:
        """Return a score for each of D devices, (..., D). A higher score makes it more probable that the policy places
        the next item on the device. `devices` (..., D, H) has a vector for each device. `context` (..., C) is the
        context of the item, as `encode` returns it. `costs` (..., D, P) has the P parts of the predicted cost of each
        device.
        """
        following = context[..., None, :].expand(*devices.shape[:-1], context.shape[-1])
        seen = [devices, following] + ([] if self.cost is None else [torch.relu(self.cost(costs))])
        scores: torch.Tensor = self.head(torch.cat(seen, dim=-1))[..., 0]
        return scores

    def log_probabilities(
        self, devices: torch.Tensor, context: torch.Tensor, costs: torch.Tensor, legal: torch.Tensor
    ) -> torch.Tensor:
        """Return the log probabilities of the devices (..., D): a softmax over the legal devices, or over all devices
        if no device is legal.

        Raises:
            UserError: the scores are not numbers: the weights are damaged, or the training diverged.
        """
        scores = self.scores(devices, context, costs)
        if scores.isnan().any() or scores.isposinf().any():
            raise UserError(
                "policy-scores-not-numbers",
                "the scores of the policy are not numbers",
                limit="the policy is damaged, or the training of the policy diverged",
                remedy="Train the policy again with `neuroshard train-policy`. If the training diverged, set a lower "
                "learner.learning_rate",
            )
        open_to = legal | ~legal.any(dim=-1, keepdim=True)
        return torch.log_softmax(scores.masked_fill(~open_to, -torch.inf), dim=-1)


class DreamShardPolicy(Policy):
    """DreamShard's policy (section 3.3). The score of a device depends on the tables that are on the device so far, on
    the predicted costs of the device, and on the item (a table, or several tables kept together) to be placed next.

    Representations are multiples of an equal share of all tables, so that tasks of all sizes look similar.

    Args:
        table: list of widths of the layers of the network that encodes one table, such as [128,32]; the last width is
            the size of the encoding.
        cost: list of widths of the layers through which the policy sees the predicted cost of each device, from the
            tables placed so far, such as [64,32]; [] hides these costs from the policy.
        head: width of the hidden layer of the network that scores the devices for the next table.
    """

    kind = "dreamshard"

    @checked
    def __init__(self, table: Widths = (128, 32), cost: AnyWidths = (64, 32), head: Width = 64) -> None:
        super().__init__()
        self.settings = {"table": list(table), "cost": list(cost), "head": head}
        self.encoder = TableEncoder(tuple(table))
        self.cost = perceptron((NUM_PARTS, *cost)) if cost else None
        self.head = perceptron((2 * table[-1] + (cost[-1] if cost else 0), head, 1))

    def encode(self, batch: TaskBatch, order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the context of each item, and the vector that each item adds to a device, as `Policy.encode` does. In
        DreamShard's policy the two are equal, so both results are the same tensor: (B, I, H) for I items in each of B
        tasks.
        """
        ordered = self.ordered(batch, order)
        return ordered, ordered


class AutoShardPolicy(Policy):
    """AutoShard's policy (section 4). An LSTM reads the tables of a task. A network scores each device by the tables
    and the predicted compute cost on the device. A critic predicts the reward.

    Args:
        table: list of widths of the layers of the network that encodes one table, such as [128,32]; the last width is
            the size of the encoding. The LSTM and the devices share this output.
        memory: size of the hidden state of the policy's LSTM, which reads all tables of a task.
        cost: list of widths of the layers through which the policy sees the predicted compute cost of each device, from
            the tables placed so far, such as [64,32]; [] hides these costs from the policy.
        head: width of the hidden layers of the network that scores the devices and of the critic.
    """

    kind = "autoshard"

    @checked
    def __init__(
        self, table: Widths = (128, 32), memory: Width = 64, cost: AnyWidths = (64, 32), head: Width = 64
    ) -> None:
        super().__init__()
        self.settings = {"table": list(table), "memory": memory, "cost": list(cost), "head": head}
        self.encoder = TableEncoder(tuple(table))
        self.memory = nn.LSTM(table[-1], memory, batch_first=True)
        self.cost = perceptron((1, *cost)) if cost else None
        context = table[-1] + memory
        self.head = perceptron((table[-1] + context + (cost[-1] if cost else 0), head, 1))
        self.critic = perceptron((2 * table[-1] + context, head, 1))

    def encode(self, batch: TaskBatch, order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two vectors for each of I items in each of B tasks, as `Policy.encode` does: the vector that the item
        adds to a device, (B, I, H), and the context of the item, (B, I, C). The context is the first vector,
        concatenated with the output of the LSTM at the item.
        """
        ordered = self.ordered(batch, order)
        remembered, _ = self.memory(ordered)
        return ordered, torch.cat([ordered, remembered], dim=-1)

    def scores(self, devices: torch.Tensor, context: torch.Tensor, costs: torch.Tensor) -> torch.Tensor:
        """Return a score for each of D devices, (..., D), as `Policy.scores` does. `costs` (..., D, P) has P parts of
        the predicted cost of each device. Of these parts, only the first part is used: the compute time.
        """
        return super().scores(devices, context, costs[..., :1])

    def values(self, devices: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Return the rewards that the critic predicts, (...,). The inputs are the vectors of the devices, (..., D, H),
        and the contexts of the items to place next, (..., C).
        """
        seen = torch.cat([devices.mean(dim=-2), devices.amax(dim=-2), context], dim=-1)
        values: torch.Tensor = self.critic(seen)[..., 0]
        return values


@dataclass(frozen=True, eq=False)
class Episodes:
    """The actions and observations of B episodes with I steps each.

    Attributes:
        actions: (B, I) chosen devices.
        legal: (B, I, D) True for legal devices.
        costs: (B, I, D, P) costs observed before each step.
        final: the last state.
    """

    actions: torch.Tensor
    legal: torch.Tensor
    costs: torch.Tensor
    final: EpisodeState


def greedy(log_probabilities: torch.Tensor) -> torch.Tensor:
    """Return the most probable device for the item of each task, (B,), from log probabilities (B, D)."""
    return log_probabilities.argmax(dim=-1)


def sampling(generator: torch.Generator) -> Choose:
    """Return a function that draws a random device for each task from log probabilities."""
    return lambda logs: torch.multinomial(logs.exp(), 1, generator=generator)[:, 0]


@torch.no_grad()
def play(policy: Policy, environment: Environment, choose: Choose) -> Episodes:
    """Play episodes: the policy places all items one by one, on the devices that `choose` returns;
    return the episodes.
    """
    left, context = policy.encode(environment.batch, environment.order)
    state = environment.reset()
    devices = torch.zeros(len(environment.batch), environment.batch.num_devices, left.shape[-1])
    actions, legals, observed = [], [], []
    for step in range(environment.batch.num_items):
        legal, costs = environment.legal(state), environment.observe(state)
        action = choose(policy.log_probabilities(devices, context[:, step], costs, legal))
        chosen = nn.functional.one_hot(action, environment.batch.num_devices)
        devices = devices + chosen[..., None] * left[:, step, None]
        state = environment.step(state, legal, action)
        actions.append(action)
        legals.append(legal)
        observed.append(costs)
    return Episodes(torch.stack(actions, 1), torch.stack(legals, 1), torch.stack(observed, 1), state)


@dataclass(frozen=True, eq=False)
class Replayed:
    """The log probabilities of all devices at each of I steps of B finished episodes. The function `replay` computes
    these probabilities with the current weights of the policy, and gradients flow back to the weights. The vectors of
    devices and items, from which the probabilities were computed, are also included.

    Attributes:
        log_probabilities: (B, I, D) of all devices.
        chosen: (B, I) log probabilities of the actions.
        devices: (B, I, D, H) representations of the devices before each step.
        context: (B, I, C) contexts of the items.
    """

    log_probabilities: torch.Tensor
    chosen: torch.Tensor
    devices: torch.Tensor
    context: torch.Tensor

    @property
    def entropy(self) -> torch.Tensor:
        """The entropy of the choice of a device at each step, (B, I) nats."""
        logs = self.log_probabilities.clamp(min=-30)
        return -(logs.exp() * logs).sum(dim=-1)


def replay(policy: Policy, environment: Environment, episodes: Episodes) -> Replayed:
    """Recompute the log probabilities of all devices at each step of finished episodes, with the present weights of
    `policy`. All steps are computed at once, with gradients, to train the policy on these episodes.
    """
    left, context = policy.encode(environment.batch, environment.order)
    chosen = nn.functional.one_hot(episodes.actions, environment.batch.num_devices).float()
    after = (chosen[..., None] * left[:, :, None]).cumsum(dim=1)
    devices = torch.cat([torch.zeros_like(after[:, :1]), after[:, :-1]], dim=1)  # tables on each device before the step
    logs = policy.log_probabilities(devices, context, episodes.costs, episodes.legal)
    return Replayed(logs, logs.gather(-1, episodes.actions[..., None])[..., 0], devices, context)
