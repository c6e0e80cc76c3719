"""What was measured of candidate plans comes back as it was, of parts of a step that nobody here knows too."""

import json

import numpy as np
import pytest

from neuroshard.cost.cost import PARTS, Cost, Part, When
from neuroshard.stages.search.evaluate.candidate_plan_files import CandidatePlanFiles, MeasuredOnce, Pass
from neuroshard.testing import toy_task
from tests.kit.messages import refused
from tests.kit.plans import whole

PLACES = dict(zip(PARTS, (When.COMPUTE, When.FORWARD, When.BACKWARD), strict=True))


@pytest.fixture
def passes(tmp_path):
    task = toy_task(2, num_devices=2)
    plan = whole(task)
    return CandidatePlanFiles(tmp_path, 0).passes([plan])


def _kept(passes, places):
    cost = Cost(tuple(Part(name, when, np.array([1.0, 2.0])) for name, when in places.items()))
    passes.keep(0, Pass((MeasuredOnce.of(cost),)))
    return json.loads(passes.path(0).read_text())


def _places(passes):
    return {part.name: part.when for part in passes.get(0).plans[0].outcome.parts}


def test_parts_come_back_with_their_places(passes):
    places = PLACES | {"launch": When.INPUT}
    _kept(passes, places)
    assert _places(passes) == places
    assert passes.get(0).plans[0].total_ms == 8.0


def test_parts_without_a_place_are_refused(passes):
    content = _kept(passes, PLACES)
    content["plans"][0]["parts"]["launch"] = [1.0, 2.0]
    passes.path(0).write_text(json.dumps(content))
    with refused("journal-value-wrong", names=[passes.path(0), "1 plan", "2 devices"]):
        passes.get(0)
