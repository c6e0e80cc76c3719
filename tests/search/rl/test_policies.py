"""Policies and cost networks: invariances, and equal results of playing and replaying."""

from functools import partial

import pytest
import torch

from neuroshard.stages.search.rl.batch import TaskBatch
from neuroshard.stages.search.rl.cost_network import CostNetwork
from neuroshard.stages.search.rl.environment import Environment
from neuroshard.stages.search.rl.policy import AutoShardPolicy, DreamShardPolicy, Policy, greedy, play, replay, sampling
from neuroshard.testing import random_models, toy_task
from tests.kit.messages import refused
from tests.search.rl.toys import NETWORK, SMALL, playground

POLICIES = {
    "dreamshard": partial(DreamShardPolicy, **SMALL),
    "without cost features": partial(DreamShardPolicy, **(SMALL | {"cost": []})),
    "autoshard": partial(AutoShardPolicy, memory=8, **SMALL),
}


def _policy(name, environment):
    torch.manual_seed(0)
    policy = POLICIES[name]()
    policy.encoder.normalise(environment.batch)
    return policy


@pytest.mark.parametrize("name", POLICIES)
def test_replay_gives_the_log_probabilities_of_playing(name):
    environment = playground([toy_task(7, 3, seed=1), toy_task(7, 3, seed=2)], random_models)
    policy = _policy(name, environment)
    seen = []

    def choose(logs):
        seen.append(logs)
        return sampling(torch.Generator().manual_seed(len(seen)))(logs)

    episodes = play(policy, environment, choose)
    replayed = replay(policy, environment, episodes)
    torch.testing.assert_close(replayed.log_probabilities, torch.stack(seen, dim=1), rtol=1e-4, atol=1e-4)
    assert replayed.chosen.shape == (2, 7)
    assert (replayed.entropy >= 0).all()


@pytest.mark.parametrize("name", POLICIES)
def test_policies_place_any_number_of_tables_and_devices(name):
    first = playground([toy_task(5, 2)], random_models)
    policy = _policy(name, first)
    for tables, devices in ((5, 2), (11, 4), (3, 8)):
        environment = playground([toy_task(tables, devices)], random_models)
        (plan,) = environment.plans(play(policy, environment, greedy).final)
        assert plan.fits


@pytest.mark.parametrize("name", POLICIES)
def test_device_scores_follow_a_permutation_of_devices(name):
    """A permutation of devices permutes the scores of devices."""
    policy = _policy(name, playground([toy_task(5, 4)], random_models))
    order = torch.tensor([2, 0, 3, 1])
    devices, costs = torch.rand(3, 4, 8), torch.rand(3, 4, 3)
    context = torch.rand(3, policy.encode(TaskBatch.of([toy_task(5, 4)], "test"), torch.arange(5)[None])[1].shape[-1])
    scores = policy.scores(devices, context, costs)
    torch.testing.assert_close(policy.scores(devices[:, order], context, costs[:, order]), scores[:, order])


def test_environment_costs_equal_those_that_the_cost_network_predicts_at_once():
    """The environment adds up states step by step; `predict` computes them at once."""
    torch.manual_seed(0)
    network = CostNetwork(NETWORK)
    batch = TaskBatch.of([toy_task(6, 3, seed=1), toy_task(6, 3, seed=2)], "test")
    network.encoder.normalise(batch)
    environment = Environment(batch, network)
    policy = _policy("dreamshard", environment)
    state = play(policy, environment, sampling(torch.Generator().manual_seed(0))).final
    parts, total = network.predict(batch, state.held)
    parts = parts.clamp(min=0)
    parts[..., 0] *= state.count > 0
    torch.testing.assert_close(environment.parts(state), parts)
    torch.testing.assert_close(environment.total_ms(state), total.clamp(min=0))


def test_cost_of_a_table_alone_ignores_other_tables():
    network = CostNetwork(NETWORK)
    both = TaskBatch.of([toy_task(6, 3, seed=1)], "test")
    single = TaskBatch.of([toy_task(6, 1, seed=1)], "test")
    expected = network.predict(single.repeat(6), torch.eye(6, dtype=torch.bool)[..., None])[0][:, 0, 0].clamp(min=0)
    torch.testing.assert_close(network.alone(network.item_vectors(both))[0], expected)


def test_policy_with_nan_scores_is_refused():
    class Broken(Policy):
        def scores(self, devices, context, costs):
            return torch.full((1, 2), float("nan"))

    legal = torch.ones(1, 2, dtype=torch.bool)
    with refused("policy-scores-not-numbers"):
        Policy.log_probabilities(Broken.__new__(Broken), None, None, None, legal)
