"""What a policy is trained for."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import cast

import torch

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import NonNegative
from neuroshard.stages.search.rl.autoshard import AutoShardPolicy
from neuroshard.stages.search.rl.environment import Environment
from neuroshard.stages.search.rl.policy import Episodes, Policy, replay


class Algorithm(ABC):
    """From episodes to a loss. Dead episodes count for nothing: memory is no matter of reward."""

    @abstractmethod
    def loss(self, policy: Policy, environment: Environment, episodes: Episodes, times: int) -> torch.Tensor:
        """A scalar; the batch holds every task `times` times in a row."""


@dataclass(frozen=True)
@checked
class Reinforce(Algorithm):
    """Policy gradient on the plan cost (DreamShard, section 3.3).

    The baseline is the mean cost of the same task's other episodes; advantages are brought to deviation 1.

    Attributes:
        entropy: weight of the entropy bonus: keeps it trying.
    """

    entropy: NonNegative = 0.001

    def loss(self, policy: Policy, environment: Environment, episodes: Episodes, times: int) -> torch.Tensor:
        """The policy gradient's loss, less the bonus for entropy; a scalar."""
        alive = episodes.final.alive.float().view(-1, times)
        cost = environment.total_ms(episodes.final).view(-1, times)
        baseline = (cost * alive).sum(dim=1, keepdim=True) / alive.sum(dim=1, keepdim=True).clamp(min=1)
        advantage = (alive * (baseline - cost) / baseline.clamp(min=1e-6)).flatten()
        advantage = advantage / advantage.std().clamp(min=1e-6)
        replayed = replay(policy, environment, episodes)
        gain = (replayed.chosen.sum(dim=1) * advantage).sum() / alive.sum().clamp(min=1)
        return -gain - self.entropy * replayed.entropy.sum(dim=1).mean()


@dataclass(frozen=True)
@checked
class ActorCritic(Algorithm):
    """Advantage actor-critic on the balance of the shards' compute costs, min / max, at the end (AutoShard, section 4).

    Attributes:
        entropy: weight of the entropy bonus: keeps it trying.
        value: weight of the critic's loss.
    """

    entropy: NonNegative = 0.001
    value: NonNegative = 0.5

    def loss(self, policy: Policy, environment: Environment, episodes: Episodes, times: int) -> torch.Tensor:
        """The actor's loss and the critic's, less the bonus for entropy; a scalar."""
        critic = cast(AutoShardPolicy, policy)
        alive = episodes.final.alive.float()[:, None]
        reward = balance(environment.parts(episodes.final)[..., 0])[:, None]
        replayed = replay(policy, environment, episodes)
        values = critic.values(replayed.devices, replayed.context)
        advantage = (reward - values).detach() * alive
        advantage = advantage / advantage.std().clamp(min=1e-6)
        steps = alive.sum().clamp(min=1)
        gain = (replayed.chosen * advantage).sum() / steps
        error = (((values - reward) ** 2) * alive).sum() / steps
        return -gain + self.value * error - self.entropy * replayed.entropy.sum(dim=1).mean()


def balance(compute_ms: torch.Tensor) -> torch.Tensor:
    """(B,) the cheapest device's cost over the most expensive one's, of (B, D)."""
    return compute_ms.amin(dim=1) / compute_ms.amax(dim=1).clamp(min=1e-6)
