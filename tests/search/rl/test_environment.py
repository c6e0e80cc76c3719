"""The environment: legal actions, observations, costs, and the end of episodes."""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

from neuroshard import Constraints, InfeasibleError, Simulator, TableRule, Task, Topology
from neuroshard.plans.plan import assemble
from neuroshard.stages.search.rl.batch import TaskBatch
from neuroshard.stages.search.rl.cost_network import SimulatorCosts
from neuroshard.testing import OpaqueCompute, constrained_task, linear_models, random_models, toy_task
from tests.kit.messages import refused
from tests.search.rl.toys import playground, task


def _random_walk(environment, seed):
    generator, state = torch.Generator().manual_seed(seed), environment.reset()
    for _ in range(environment.batch.num_items):
        legal = environment.legal(state)
        weights = torch.where(legal.any(dim=1, keepdim=True), legal.float(), torch.ones_like(legal.float()))
        state = environment.step(state, legal, torch.multinomial(weights, 1, generator=generator)[:, 0])
    return state


def _played(one, *actions):
    """Return the environment of a task, and its state after these actions."""
    environment = playground([one])
    state = environment.reset()
    for action in actions:
        state = environment.step(state, environment.legal(state), torch.tensor([action]))
    return environment, state


@pytest.mark.parametrize("seed", range(5))
def test_final_costs_of_episodes_equal_costs_of_the_simulator(seed):
    tasks = [toy_task(9, 3, seed=seed), toy_task(9, 3, seed=seed + 50)]
    environment = playground(tasks, partial(random_models, seed=seed))
    state = _random_walk(environment, seed)
    for plan, parts, total in zip(
        environment.plans(state), environment.parts(state), environment.total_ms(state), strict=True
    ):
        cost = Simulator(random_models(3, seed)).cost(plan.task, plan)
        expected = np.stack([cost.compute, cost.forward, cost.backward], axis=-1)
        np.testing.assert_allclose(parts.numpy(), expected, rtol=1e-4, atol=1e-5)
        assert float(total) == pytest.approx(cost.total_ms, rel=1e-4)


def test_environment_refuses_a_device_that_lacks_8_of_2_to_the_56_bytes():
    big, small = toy_task(2).tables
    big = replace(big, rows=(1 << 40) - 1, dim=65532, bytes_per_element=2)
    free = Task((big, small), Topology(2, (1 << 59) - 1), 256)
    one = replace(free, topology=Topology(2, (big.size_bytes - 8, big.size_bytes + small.size_bytes - 8)))
    environment, state = _played(one)
    assert environment.order[0].tolist() == [0, 1]
    assert environment.legal(state).tolist() == [[False, True]]
    environment, state = _played(one, 1)
    assert state.free_bytes.tolist() == [[big.size_bytes - 8, small.size_bytes - 8]]
    assert environment.legal(state).tolist() == [[True, False]]


def test_environment_turns_every_sequence_of_actions_into_its_plan():
    """All 2^3 sequences are played; the cheapest has the heavy table alone, which is the known optimum."""
    one = task([6, 3, 2])
    found = {}
    for actions in product(range(2), repeat=3):
        environment, state = _played(one, *actions)
        (plan,) = environment.plans(state)
        assert plan == assemble(one, [(index, 8, device) for index, device in enumerate(actions)])
        found[actions] = float(environment.total_ms(state))
    assert min(found, key=found.get) in {(0, 1, 1), (1, 0, 0)}


def test_environment_orders_items_by_descending_cost():
    assert playground([task([2, 9, 5]), task([8, 1, 3])]).order.tolist() == [[1, 2, 0], [0, 2, 1]]


def test_actions_beyond_device_memory_are_illegal():
    one = task([3, 2, 1], memory_bytes=2 * 1000 * 8 * 4)
    for actions, legal in (((), [True, True]), ((0,), [True, True]), ((0, 0), [False, True])):
        environment, state = _played(one, *actions)
        assert environment.legal(state).tolist() == [legal]
    environment, dead = _played(one, 0, 0, 0)
    assert environment.plans(dead) == [None]
    environment, alive = _played(one, 0, 0, 1)
    assert environment.plans(alive)[0].fits


@pytest.mark.parametrize("seed", range(0, 12, 2))
def test_random_legal_actions_break_no_constraint(seed):
    try:
        environment = playground([constrained_task(seed)], partial(random_models, seed=seed))
    except InfeasibleError as error:
        assert error.code == "searcher-never-splits"
        return
    for walk in range(8):
        (plan,) = environment.plans(_random_walk(environment, walk))
        assert plan is None or plan.violations == ()


def test_observations_do_not_depend_on_the_scale_of_costs():
    """Observations are relative to the mean cost of a device, so tables ten times as expensive look the same."""
    cheap, expensive = task([1000, 2000, 4000]), task([10_000, 20_000, 40_000])
    seen = [environment.observe(state)[..., 0] for environment, state in (_played(cheap, 0), _played(expensive, 0))]
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-2, atol=1e-3)


def test_environment_refuses_unfit_tasks_and_names_the_mistake():
    with refused("policy-task-shapes-differ", names=[4, 5]):
        TaskBatch.of([toy_task(4), toy_task(5)], "test")
    split = Constraints((TableRule("t0", min_shards=2),))
    with refused("searcher-never-splits", names=["test", "'t0'"], kind=InfeasibleError):
        TaskBatch.of([replace(task([1, 2]), constraints=split)], "test")
    opaque = replace(linear_models(2), compute=OpaqueCompute(), batch_size=None)
    with refused("policy-model-without-sum", names=["OpaqueCompute"]):
        SimulatorCosts(Simulator(opaque))
