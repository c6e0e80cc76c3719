"""Lower bounds of the score that a shard adds to a device, by which searches skip devices."""

import numpy as np
import pytest

from neuroshard import CostModels, Simulator
from neuroshard.models.kernels import KernelModels
from neuroshard.stages.search.published.shard_table import always_added
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.search_space import SearchSpace
from neuroshard.testing import LinearCompute, random_models, toy_task
from tests.kit.random_models import random_by_widest, random_ensemble

ROOFLINE = CostModels.load("roofline:h100").compute


@pytest.mark.parametrize(
    ("model", "falls"),
    [
        (random_ensemble().members[0], False),
        (random_by_widest(), True),
        (random_models().compute, True),
        (LinearCompute(), False),
        (ROOFLINE, True),
    ],
)
def test_least_score_is_a_lower_bound_of_the_cost_that_a_shard_adds(model, falls):
    """Shards are added to random sums of other shards; entries that always count add a constant amount."""
    rng = np.random.default_rng(0)
    space = CostedSpace.costed(SearchSpace.of_task(toy_task(12)), Simulator(random_models()), KernelModels.of(model))
    head, least = model.head, space.shards.least_score
    adding, added_score = always_added(space.shards.vectors, head)
    for _ in range(300):
        held = space.shards.first + rng.integers(0, space.shards.full_width + 1) * (rng.random(12) < rng.random())
        sums = space.shards.vectors[held[:-1]].sum(axis=0, dtype=np.float64) + head.bias
        after = sums + space.shards.vectors[held[-1]]
        each = (np.maximum(after, 0) - np.maximum(sums, 0)) * head.weight
        assert each[adding].sum() == pytest.approx(added_score[held[-1]], rel=1e-4, abs=1e-4)
        assert each.sum() >= least[held[-1]] - 1e-4 * np.abs(head.weight).sum()
    assert (least.min() < 0) == falls
    assert least[space.shards.first] == pytest.approx(min(least.min(), 0))
