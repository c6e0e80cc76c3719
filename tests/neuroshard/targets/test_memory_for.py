"""What memory counts if nobody says: what training takes for systems that train, else the weights alone."""

import pytest

from neuroshard.plumbing.registry import instantiate_config
from neuroshard.tasks.memory import MemoryUse
from tests.kit.hydra_configs import compose_config

TRAINING = MemoryUse("rowwise_adagrad", batches_in_flight=1)


def _memory(*overrides):
    return instantiate_config(compose_config("search", [*overrides]).memory)


@pytest.mark.parametrize("target", ["torchrec", "hugectr", "sok"])
def test_plans_for_systems_that_train_count_training(target):
    assert _memory(f"target={target}") == TRAINING
    assert _memory(f"target={target}", "memory.optimizer=adam") == MemoryUse("adam", batches_in_flight=1)
    assert _memory(f"target={target}", "memory=weights") == MemoryUse()


@pytest.mark.parametrize("overrides", [(), ("target=json",)])
def test_other_plans_count_weights_alone(overrides):
    assert _memory(*overrides) == MemoryUse()
    assert _memory(*overrides, "memory.optimizer=adam") == MemoryUse("adam")
    assert _memory(*overrides, "memory=training") == TRAINING
    assert _memory(*overrides, "memory.pipeline=prefetch") == MemoryUse(pipeline="prefetch")
