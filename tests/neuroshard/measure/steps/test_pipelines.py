"""Training in every pipeline gives the same weights."""

import pickle

import numpy as np
import pytest

from neuroshard.measure import EmbeddingSettings
from neuroshard.measure.device import CpuDevice
from neuroshard.measure.steps._pipelines import PhaseClock
from neuroshard.measure.steps._step_bench import Trained
from neuroshard.measure.steps.stand_in import drawn_batches, renamed, share_of
from neuroshard.measure.steps.step_samples import PHASES, PIPELINES, StepProtocol
from tests.kit.processes import on_gloo
from tests.kit.step_plans import mixed_plan

SEED = 5
STEPS = 6  # more than there are batches: the first ones come again

pytestmark = pytest.mark.xdist_group("measures")


def _trained(rank, plan, optimizer, folder):
    """Leave the losses, the weights and the ms of each phase of some steps, by pipeline."""
    device, found = CpuDevice(pin=False), {}
    drawn = drawn_batches(renamed(plan).task.tables, plan.task.batch_size, SEED, device.torch_device)
    its = [share_of(batch, rank, 2) for batch in drawn]
    for pipeline in PIPELINES:
        protocol = StepProtocol(dense=(8,), pipeline=pipeline)
        trained = Trained(plan, protocol, PhaseClock(device), device, its, EmbeddingSettings(optimizer), SEED)
        losses = [trained.step().item() for _ in range(STEPS)]
        weights = [one.detach().numpy() for module in trained.sharded for one in module.parameters()]
        found[pipeline] = losses, weights, trained.clock.spent_ms()
    (folder / str(rank)).write_bytes(pickle.dumps(found))


@pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.slow), "rowwise_adagrad"])
def test_training_with_every_pipeline_gives_the_same_weights(tmp_path, optimizer):
    on_gloo(2, _trained, mixed_plan(2), optimizer, tmp_path)
    for rank in range(2):
        found = pickle.loads((tmp_path / str(rank)).read_bytes())
        losses, weights, _ = found["none"]
        assert len(set(losses)) == STEPS
        assert len(weights) > 3
        for others, of_others, spent_ms in found.values():
            assert others == losses
            for one, other in zip(weights, of_others, strict=True):
                np.testing.assert_array_equal(one, other)
            assert dict(zip(PHASES, spent_ms > 0, strict=True)) == dict.fromkeys(PHASES, True)
