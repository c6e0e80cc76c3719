"""The default of `memory`: training memory for targets that train, else weights alone."""

import warnings
from dataclasses import replace

import pytest

from neuroshard import NeuroShardWarning, Simulator, search
from neuroshard.plumbing.registry import instantiate_config
from neuroshard.tasks.memory import MemoryUse
from neuroshard.testing import linear_models, toy_task
from tests.kit.hydra_configs import compose_config
from tests.kit.messages import check

TRAINING = MemoryUse("rowwise_adagrad", batches_in_flight=1)


def _memory(*overrides):
    return instantiate_config(compose_config("search", [*overrides]).memory)


@pytest.mark.parametrize("target", ["torchrec", "hugectr", "sok"])
def test_search_for_a_training_target_counts_training_memory_by_default(target):
    assert _memory(f"target={target}") == TRAINING
    assert _memory(f"target={target}", "memory.optimizer=adam") == MemoryUse("adam", batches_in_flight=1)
    assert _memory(f"target={target}", "memory=weights") == MemoryUse()


@pytest.mark.parametrize("target", ["torchrec", "hugectr", "sok", "json", None])
def test_plans_from_python_warn_if_they_count_weights_alone(target):
    task = toy_task(4, num_devices=2)
    for memory in (MemoryUse(), TRAINING):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            search(replace(task, memory=memory), Simulator(linear_models(2)), "dim_greedy", target=target)
        ours = [one.message for one in caught if isinstance(one.message, NeuroShardWarning)]
        weights_only = [one for it in ours for one in it.messages if one.code == "memory-weights-only"]
        assert len(weights_only) == (memory == MemoryUse() and target not in ("json", None))
        for message in weights_only:
            check(message, "memory-weights-only", where="memory", names=["memory=training"])


@pytest.mark.parametrize("overrides", [(), ("target=json",)])
def test_memory_without_training_setting_counts_weights_alone(overrides):
    assert _memory(*overrides) == MemoryUse()
    assert _memory(*overrides, "memory.optimizer=adam") == MemoryUse("adam")
    assert _memory(*overrides, "memory=training") == TRAINING
    assert _memory(*overrides, "memory.pipeline=prefetch") == MemoryUse(pipeline="prefetch")
