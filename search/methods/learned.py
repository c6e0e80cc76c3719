"""A searcher that places tables by a trained policy: a neural network that chooses the device of each table."""

from dataclasses import dataclass
from functools import cached_property

import torch

from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.schema import Count, Seed
from neuroshard.plumbing.threads import torch_threads
from neuroshard.searching.searcher import Found, Searcher, within_hosts
from neuroshard.stages.search.methods.acceptance import cheapest
from neuroshard.stages.search.rl.agent import Agent, agent_digest, load_agent
from neuroshard.stages.search.rl.batch import TaskBatch
from neuroshard.stages.search.rl.environment import Environment
from neuroshard.stages.search.rl.policy import greedy, play, sampling
from neuroshard.tasks.task import Task


@dataclass(frozen=True)
@checked
class PolicySearch(Searcher):
    """Places whole tables one after the other. A trained policy (a neural network) chooses the device of each table.

    Attributes:
        policy: trained policy that places the tables: dreamshard or autoshard (both installed), or a directory that
            `neuroshard train-policy` wrote.
        samples: number of random plans drawn from the policy in addition to the most probable plan; the plan with the
            lowest predicted cost is used; larger values take longer, and 0 (as in the papers) draws none.
        seed: seed of the random plans; the same seed gives the same plan.
    """

    policy: str
    samples: Count = 0
    seed: Seed = 0

    @cached_property
    def _agent(self) -> Agent:
        return load_agent(self.policy)

    @property
    def takes_sequences(self) -> bool:
        """False: policies place pooled tables only."""
        return False

    def reads(self) -> tuple[str, ...]:
        """Return the digest (hash) of the files of the policy."""
        return (agent_digest(self.policy),)

    @within_hosts
    def find(self, task: Task, simulator: Simulator) -> Found:
        """Return the plan with the lowest predicted cost among all plans that the policy makes. The policy makes
        1 + `samples` plans: the most probable plan, and `samples` plans that are drawn at random.

        Raises:
            InfeasibleError: every plan leaves out a table that no device has room for.
            UserError: there is no such policy, or the policy cannot read models of this kind.
        """
        simulator.models.check(task)
        with torch_threads(1):
            plans = self._plans(task, simulator)
        found = [plan for plan in plans if plan is not None]
        if not found:
            raise InfeasibleError(
                "policy-search-stuck",
                "the policy found no device for one of the tables",
                where=f"policy {self.policy}",
                limit="no device that may hold the table has enough memory left",
                remedy="Do one of these: give each device more memory (topology.memory_bytes); set "
                "searcher.samples=32, to try more plans; or set searcher=neuroshard, which can split tables",
            )
        return Found(found[cheapest(simulator.costs(task, found))])

    def _plans(self, task: Task, simulator: Simulator) -> list[Plan | None]:
        """Return 1 + `samples` plans of the policy: the most probable plan, then the plans drawn at random.
        An entry is None if the policy found no device for one of the tables.
        """
        agent = self._agent
        batch = TaskBatch.of([task], f"policy {self.policy}")
        environment = Environment(batch, agent.costs(simulator))
        plans = environment.plans(play(agent.policy, environment, greedy).final)
        if self.samples:
            drawn = Environment(batch.repeat(self.samples), agent.costs(simulator))
            generator = torch.Generator().manual_seed(self.seed)
            plans += drawn.plans(play(agent.policy, drawn, sampling(generator)).final)
        return plans
