"""Warnings of plans for batches with a different number of samples per feature."""

import pytest
from torchrec.distributed.planner import ParameterConstraints

from neuroshard.torchrec.releases import HAS_DRY_RUN
from tests.kit.messages import check, logged
from tests.kit.torchrec_models import bags, places, planner


def _warned(caplog, sharding_type, device, batch_sizes, devices=4, on_host=2):
    constraints = {
        "a": ParameterConstraints(sharding_types=[sharding_type]),
        "b": ParameterConstraints(batch_sizes=batch_sizes, sharding_types=["table_wise"]),
    }
    settings = {"models": "roofline:h100", "device": device, "constraints": constraints, "data_parallel": True}
    plan = planner(devices, cap=1 << 26, on_host=on_host, **settings).plan(bags("a", "b", rows=1000, dim=256))
    assert places(plan)["a"][0] == sharding_type
    return [message for message in logged(caplog) if message.code == "variable-batches-fail"]


@pytest.mark.parametrize(
    ("sharding_type", "device", "fails"),
    [
        ("data_parallel", "cpu", True),
        ("data_parallel", "cuda", False),
        ("grid_shard", "cuda", not HAS_DRY_RUN),
        ("row_wise", "cpu", False),
        ("row_wise", "cuda", False),
        ("table_wise", "cpu", False),
    ],
)
@pytest.mark.parametrize("batch_sizes", [None, [8]])
def test_planner_warns_of_sharding_types_that_fail_with_variable_batches(
    sharding_type, device, fails, batch_sizes, caplog
):
    """Tables fail whichever features have the other numbers of samples: a batch is one tensor."""
    messages = _warned(caplog, sharding_type, device, batch_sizes)
    assert len(messages) == (1 if fails and batch_sizes else 0)
    for message in messages:
        check(message, "variable-batches-fail", names=["batch_sizes", sharding_type, "(a)"])
