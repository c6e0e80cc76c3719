"""Tasks and learners that are small enough for seconds of training."""

from functools import partial

from neuroshard import Simulator
from neuroshard.stages.search.rl.batch import TaskBatch
from neuroshard.stages.search.rl.cost_network import CostNetworkSettings, SimulatorCosts
from neuroshard.stages.search.rl.environment import Environment
from neuroshard.stages.search.rl.learner import ActorCritic, Learner, Reinforce
from neuroshard.stages.search.rl.policy import AutoShardPolicy, DreamShardPolicy
from neuroshard.testing import linear_models
from tests.kit.tasks import plain_task

SMALL = {"table": [16, 8], "cost": [8], "head": 16}
NETWORK = CostNetworkSettings(table=(16, 8), head=16, placements=24, steps=40, batch_size=16, learning_rate=3e-3)


def task(lookups, memory_bytes=1 << 30):
    """Make a task of two devices and tables of 8 columns with these pooling factors."""
    return plain_task(8, lookups=lookups, memory_bytes=memory_bytes)


def playground(tasks, models_of=linear_models):
    """Make the environment of tasks, with models for their number of devices."""
    costs = SimulatorCosts(Simulator(models_of(tasks[0].topology.num_devices)))
    return Environment(TaskBatch.of(tasks, "test"), costs)


def dreamshard(cost_network=None, **settings):
    fewer = {"rounds": 4, "updates": 4, "tasks": 2, "episodes": 8, "learning_rate": 0.01} | settings
    return Learner(partial(DreamShardPolicy, **SMALL), Reinforce(), cost_network, **fewer)


def autoshard(cost_network=None, **settings):
    fewer = {"rounds": 4, "updates": 4, "tasks": 2, "episodes": 8, "learning_rate": 0.01} | settings
    return Learner(partial(AutoShardPolicy, memory=8, **SMALL), ActorCritic(), cost_network, **fewer)
