"""The training of a policy: each round computes the costs of placements,
fits the cost network, and updates the policy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch

from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan, assemble
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import SEEDS, NonNegative, Positive, PositiveCount
from neuroshard.plumbing.threads import torch_threads
from neuroshard.stages.search.rl.agent import Agent
from neuroshard.stages.search.rl.batch import TaskBatch
from neuroshard.stages.search.rl.cost_network import CostNetwork, CostNetworkSettings, MeasuredPlacements, fit
from neuroshard.stages.search.rl.environment import Environment
from neuroshard.stages.search.rl.policy import AutoShardPolicy, Episodes, Policy, play, replay, sampling
from neuroshard.tasks.task import Task


@dataclass(frozen=True)
@checked
class Reinforce:
    """Training by policy gradient on the plan cost, as DreamShard (section 3.3) does.

    The baseline is the mean cost of the task's episodes; advantages are scaled to a standard deviation of 1.

    Attributes:
        entropy: weight of the entropy bonus in the loss; a larger weight makes the policy explore more.
    """

    entropy: NonNegative = 0.001

    def loss(self, policy: Policy, environment: Environment, episodes: Episodes, times: int) -> torch.Tensor:
        """Return the loss of one policy update, a scalar: the policy-gradient loss minus the entropy bonus. `episodes`
        has `times` episodes of each task in a row: with `times` = 2, the episodes are of the tasks 0, 0, 1, 1 and so
        on. The loss compares the cost of each plan with the mean cost of the plans of the same task.
        """
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
class ActorCritic:
    """Training by advantage actor-critic, as in AutoShard (section 4). The reward is the balance of the final plan: the
    shortest compute time of all devices, divided by the longest compute time.

    Attributes:
        entropy: weight of the entropy bonus in the loss; a larger weight makes the policy explore more.
        value: weight of the critic's loss in the total loss of the policy.
    """

    entropy: NonNegative = 0.001
    value: NonNegative = 0.5

    def loss(self, policy: Policy, environment: Environment, episodes: Episodes, times: int) -> torch.Tensor:
        """Return the sum of the losses of the actor and of the critic, minus the entropy bonus, a scalar."""
        critic = cast(AutoShardPolicy, policy)
        alive = episodes.final.alive.float()[:, None]
        compute_ms = environment.parts(episodes.final)[..., 0]
        reward = (compute_ms.amin(dim=1) / compute_ms.amax(dim=1).clamp(min=1e-6))[:, None]
        replayed = replay(policy, environment, episodes)
        values = critic.values(replayed.devices, replayed.context)
        advantage = (reward - values).detach() * alive
        advantage = advantage / advantage.std().clamp(min=1e-6)
        steps = alive.sum().clamp(min=1)
        gain = (replayed.chosen * advantage).sum() / steps
        error = (((values - reward) ** 2) * alive).sum() / steps
        return -gain + self.value * error - self.entropy * replayed.entropy.sum(dim=1).mean()


Algorithm = Reinforce | ActorCritic  # turns episodes into a loss; dead episodes have weight 0


@dataclass(frozen=True)
class RandomOrder:
    """Places items in random order during training, instead of the most expensive items first as in the papers. A
    comparison with the order of the papers shows how much this order contributes.
    """

    def of(self, batch: TaskBatch, generator: torch.Generator) -> torch.Tensor:
        """Return a random order of the I items of each of B tasks in `batch`, as item numbers (B, I). An item is a
        table, a pinned shard, or several tables that are kept together. The order of each task is drawn independently.
        """
        return torch.rand(len(batch), batch.num_items, generator=generator).argsort(dim=1)


@dataclass(frozen=True)
@checked
class Learner:
    """Settings of the training of a policy.

    Attributes:
        policy: makes an untrained policy network.
        algorithm: training algorithm of the policy.
        cost_network: settings of a cost network that is trained together with the policy; None trains the policy on
            costs that the pre-trained cost models predict.
        order: order in which the policy places tables during training; None places the most expensive tables first; for
            random order, set experiment=train-policy_random_order instead.
        rounds: number of training rounds; each round trains the cost network (if any) and the policy, and then
            validates the policy; the best policy is kept, and larger values take longer.
        updates: number of optimizer steps of the policy in each training round; larger values take longer.
        tasks: number of training tasks, drawn at random, in each optimizer step of the policy; larger values take
            longer.
        episodes: number of episodes per task in each optimizer step of the policy; in one episode the policy places all
            tables of the task once; larger values take longer.
        learning_rate: initial learning rate of the Adam optimizer for the policy; the rate decreases to 0 over the
            training rounds.
    """

    policy: Callable[[], Policy]
    algorithm: Algorithm
    cost_network: CostNetworkSettings | None = field(default_factory=CostNetworkSettings)
    order: RandomOrder | None = None
    rounds: PositiveCount = 50
    updates: PositiveCount = 20
    tasks: PositiveCount = 8
    episodes: PositiveCount = 16
    learning_rate: Positive = 1e-3


class Session:
    """One training of a policy: the networks, the optimizers, and the placements that were collected so far. The method
    `round` trains for one round.
    """

    def __init__(self, learner: Learner, tasks: Sequence[Task], simulator: Simulator, seed: int):
        torch.manual_seed(seed)
        self._learner, self._simulator, self._seed = learner, simulator, seed
        self._batch = TaskBatch.of(tasks, "train-policy")
        network = None if learner.cost_network is None else CostNetwork(learner.cost_network)
        self.agent = Agent(learner.policy(), network)
        self.agent.policy.encoder.normalise(self._batch)
        self._optimizers = {"policy": torch.optim.Adam(self.agent.policy.parameters(), lr=learner.learning_rate)}
        if network is not None:
            network.encoder.normalise(self._batch)
            rate = network.settings.learning_rate
            self._optimizers["costs"] = torch.optim.Adam(network.parameters(), lr=rate)
        self._measured: MeasuredPlacements | None = None

    def round(self, number: int, on_update: Callable[[], None]) -> dict[str, float]:
        """Train the policy and the cost network for one round, and return the losses of the round.

        The result depends only on the round's number and on the state after earlier rounds.
        """
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + number) % SEEDS)
        metrics, losses = dict[str, float](), []
        with torch_threads(1):
            if self.agent.network is not None:
                metrics["cost_loss"] = self._fit_costs(self.agent.network, generator)
            for group in self._optimizers["policy"].param_groups:
                group["lr"] = self._learner.learning_rate * (1 - number / self._learner.rounds)
            for _ in range(self._learner.updates):
                losses.append(self._update(generator))
                on_update()
        return metrics | {"policy_loss": float(np.mean(losses))}

    def _update(self, generator: torch.Generator) -> float:
        """Train the policy for one optimizer step; return the loss of this step."""
        learner = self._learner
        some = torch.randint(len(self._batch), (learner.tasks,), generator=generator)
        batch = self._batch.take(some).repeat(learner.episodes)
        environment = Environment(batch, self.agent.costs(self._simulator), self._order(batch, generator))
        episodes = play(self.agent.policy, environment, sampling(generator))
        loss = learner.algorithm.loss(self.agent.policy, environment, episodes, learner.episodes)
        optimizer = self._optimizers["policy"]
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.agent.policy.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    def _order(self, batch: TaskBatch, generator: torch.Generator) -> torch.Tensor | None:
        """Return the order in which training places the items of a batch, (B, I); None for the default order."""
        order = self._learner.order
        return None if order is None else order.of(batch, generator)

    def _fit_costs(self, network: CostNetwork, generator: torch.Generator) -> float:
        """Collect new placements, and train the cost network on all placements so far; return the loss."""
        more = self._collect(network, generator)
        self._measured = more if self._measured is None else self._measured.and_more(more)
        if len(self._measured) == len(more):
            network.scale_ms.fill_(float(more.total.mean()))
        return fit(network, self._optimizers["costs"], self._batch, self._measured, generator)

    def _collect(self, network: CostNetwork, generator: torch.Generator) -> MeasuredPlacements:
        """Let the policy draw random placements of random tasks, and return the placements with the costs that the
        simulator predicts. Some placements are partial: they have only the first few items in the order of placement,
        and not the later items of the task.
        """
        count, items = network.settings.placements, self._batch.num_items
        chosen = torch.randint(len(self._batch), (count,), generator=generator)
        batch = self._batch.take(chosen)
        environment = Environment(batch, network, self._order(batch, generator))
        final = play(self.agent.policy, environment, sampling(generator)).final
        cut = torch.rand(count, generator=generator) < network.settings.partial_share
        steps = torch.where(cut, torch.randint(1, items + 1, (count,), generator=generator), items)
        placed = environment.order.argsort(dim=1) < steps[:, None]
        held = final.held & placed[..., None]
        plans = [_placed_plan(batch, index, held[index]) for index in range(count)]
        costs = [self._simulator.cost(plan.task, plan) for plan in plans]
        parts_ms = [np.stack([cost.compute, cost.forward, cost.backward], axis=-1) for cost in costs]
        return MeasuredPlacements(chosen, held, torch.from_numpy(np.stack(parts_ms).astype(np.float32)))


def _placed_plan(batch: TaskBatch, index: int, held: torch.Tensor) -> Plan:
    """Return a plan for only the items that are already placed, for the task with the number `index` in `batch`. `held`
    (I, D) is True if item i is on device d. An item is one table, or several tables that are kept together. The task of
    the plan has only the tables of the placed items.
    """
    space = batch.spaces[index]
    places = [(table, device) for item, device in held.nonzero().tolist() for table, _ in space.items[item]]
    tables = tuple(space.task.tables[table] for table, _ in places)
    task = replace(space.task, tables=tables, constraints=space.task.constraints.of(tables))
    return assemble(task, [(number, tables[number].dim, device) for number, (_, device) in enumerate(places)])
