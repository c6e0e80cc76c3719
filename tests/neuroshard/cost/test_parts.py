"""The timeline that parts make: who waits for whom, what counts, and parts of one's own."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from neuroshard.cost.cost import Step, When, Work
from neuroshard.models import Card, CostModels, save_bundle
from neuroshard.models.interface import PartModel
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import assemble
from neuroshard.plumbing.errors import UserError
from neuroshard.testing import toy_task


def _waits(ready):
    return ready.max(axis=-1, keepdims=True) - ready + 2.0, np.ones_like(ready)


def _took(*ms):
    return lambda ready: (np.array(ms), np.arange(1.0, len(ms) + 1))


def test_parts_follow_one_another_by_their_places_and_stand_as_listed():
    works = [
        Work("compute", When.COMPUTE, _took(1.0, 4.0)),
        Work("forward", When.FORWARD, _waits),
        Work("backward", When.BACKWARD, _took(3.0, 1.0)),
        Work("shown", When.INPUT, _took(9.0, 9.0), counts=False),
    ]
    step = Step.of(works, (2,))
    assert [part.name for part in step.parts] == ["compute", "forward", "backward", "shown"]
    assert step.ready_ms.tolist() == [4.0, 5.0]
    assert step.forward.tolist() == [3.0, 2.0]
    assert step.device_ms.tolist() == [7.0, 7.0]
    np.testing.assert_allclose(step.margin, np.sqrt([2**2 + 2**2 + 1] * 2))  # those of the last to come, and forward


@dataclass(frozen=True)
class _Launch(PartModel):
    name, when = "launch", When.INPUT
    launch_ms: tuple[float, ...]

    def ms(self, called, traffic, ready_ms):
        return np.broadcast_to(np.array(self.launch_ms), ready_ms.shape)


def test_a_part_of_ones_own_counts_and_is_waited_for(tmp_path):
    models, task = CostModels.load("roofline:h100"), toy_task(4)
    plan = assemble(task, [(i, table.dim, i) for i, table in enumerate(task.tables)])
    own = replace(models, more=(_Launch((0.5, 0.0, 0.0, 0.0)),))
    before, after = (Simulator(its).cost(task, plan) for its in (models, own))
    assert after.ms("launch").tolist() == [0.5, 0.0, 0.0, 0.0]
    np.testing.assert_allclose(after.ready_ms, before.ready_ms + after.ms("launch"))
    assert after.total_ms >= before.total_ms
    assert "launch 0.500 = " in str(after)
    simulator = Simulator(own)
    again = simulator.step(simulator.called(plan.device_loads, 4), plan.traffic, after.compute[None])
    assert (again.device_ms[0] == after.device_ms).all()
    with pytest.raises(UserError, match="bundles don't hold parts of a step such as launch"):
        save_bundle(tmp_path, own, Card())
