"""What a policy is, those of DreamShard and AutoShard, and how one plays."""

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
    """A network that scores the devices for the next item, any number of them.

    Attributes:
        kind: its class's name in files.
        settings: what made it, JSON-ready.
        encoder: what looks at tables.
        cost: what looks at costs of devices; None for a policy that sees none.
        head: what scores a device.
    """

    kind: ClassVar[str]
    settings: dict[str, Any]
    encoder: TableEncoder
    cost: nn.Module | None
    head: nn.Module

    @abstractmethod
    def encode(self, batch: TaskBatch, order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode the items in the order (B, I) of their placement.

        Returns:
            (B, I, H) what each leaves on its device, not negative; (B, I, C) what is known when it is placed.
        """

    def ordered(self, batch: TaskBatch, order: torch.Tensor) -> torch.Tensor:
        """Encode the items in the order (B, I), as multiples of a device's mean share, (B, I, H)."""
        encoded = batch.encode(self.encoder)
        share = encoded.sum(dim=1).mean(dim=-1) / batch.num_devices
        return (encoded / share.clamp(min=1e-6)[:, None, None]).gather(1, order[..., None].expand_as(encoded))

    def scores(self, devices: torch.Tensor, context: torch.Tensor, costs: torch.Tensor) -> torch.Tensor:
        """Compute scores (..., D) of devices (..., D, H) for items with context (..., C), at costs (..., D, P)."""
        following = context[..., None, :].expand(*devices.shape[:-1], context.shape[-1])
        seen = [devices, following] + ([] if self.cost is None else [torch.relu(self.cost(costs))])
        scores: torch.Tensor = self.head(torch.cat(seen, dim=-1))[..., 0]
        return scores

    def log_probabilities(
        self, devices: torch.Tensor, context: torch.Tensor, costs: torch.Tensor, legal: torch.Tensor
    ) -> torch.Tensor:
        """Compute the log probabilities of a softmax over the legal devices, (..., D); over all where none is.

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
    """DreamShard's policy (section 3.3): it scores a device by its tables, the next tables, and its costs so far.

    Representations are multiples of an even share of all tables', so that tasks of any size look alike.

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
        """Encode the items by the table network, and their context by the same."""
        ordered = self.ordered(batch, order)
        return ordered, ordered


class AutoShardPolicy(Policy):
    """AutoShard's (section 4): an LSTM over the tables, scores from each device's tables and compute cost, a critic.

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
        """Encode the items by the table network, and their context by that and the LSTM."""
        ordered = self.ordered(batch, order)
        remembered, _ = self.memory(ordered)
        return ordered, torch.cat([ordered, remembered], dim=-1)

    def scores(self, devices: torch.Tensor, context: torch.Tensor, costs: torch.Tensor) -> torch.Tensor:
        """Score the devices, (..., D); of the costs, compute alone counts."""
        return super().scores(devices, context, costs[..., :1])

    def values(self, devices: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Predict the reward, (...,), from devices (..., D, H) and context (..., C)."""
        seen = torch.cat([devices.mean(dim=-2), devices.amax(dim=-2), context], dim=-1)
        values: torch.Tensor = self.critic(seen)[..., 0]
        return values


@dataclass(frozen=True, eq=False)
class Episodes:
    """What happened: I steps of B episodes.

    Attributes:
        actions: (B, I) devices.
        legal: (B, I, D).
        costs: (B, I, D, P) observed before each step.
        final: the last state.
    """

    actions: torch.Tensor
    legal: torch.Tensor
    costs: torch.Tensor
    final: EpisodeState


def greedy(log_probabilities: torch.Tensor) -> torch.Tensor:
    """Choose the likeliest device of each task, (B,), by log probabilities (B, D)."""
    return log_probabilities.argmax(dim=-1)


def sampling(generator: torch.Generator) -> Choose:
    """Return a function that draws devices by their probabilities."""
    return lambda logs: torch.multinomial(logs.exp(), 1, generator=generator)[:, 0]


@torch.no_grad()
def play(policy: Policy, environment: Environment, choose: Choose) -> Episodes:
    """Play episodes: the policy places all items, one after the other, on the devices that `choose` takes."""
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
    """The steps of finished episodes, as the policy sees them now, with gradients.

    Attributes:
        log_probabilities: (B, I, D).
        chosen: (B, I) those of the actions.
        devices: (B, I, D, H) before each step.
        context: (B, I, C).
    """

    log_probabilities: torch.Tensor
    chosen: torch.Tensor
    devices: torch.Tensor
    context: torch.Tensor

    @property
    def entropy(self) -> torch.Tensor:
        """The entropy of the choice at each step, (B, I) nats."""
        logs = self.log_probabilities.clamp(min=-30)
        return -(logs.exp() * logs).sum(dim=-1)


def replay(policy: Policy, environment: Environment, episodes: Episodes) -> Replayed:
    """Compute what the policy makes of the states and actions of finished episodes, all steps at once."""
    left, context = policy.encode(environment.batch, environment.order)
    chosen = nn.functional.one_hot(episodes.actions, environment.batch.num_devices).float()
    after = (chosen[..., None] * left[:, :, None]).cumsum(dim=1)
    devices = torch.cat([torch.zeros_like(after[:, :1]), after[:, :-1]], dim=1)  # tables on each device before the step
    logs = policy.log_probabilities(devices, context, episodes.costs, episodes.legal)
    return Replayed(logs, logs.gather(-1, episodes.actions[..., None])[..., 0], devices, context)
