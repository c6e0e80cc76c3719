"""Bandwidths of TorchRec's topology: used by analytic exchange models, ignored with a warning by measured ones."""

import pytest
from torchrec.distributed.planner import ParameterConstraints

from neuroshard import CostModels
from tests.kit.messages import check, logged
from tests.kit.torchrec_models import bags, planned, topology

GIB, CARD = 1024**3 / 1000, 50e6  # bytes per ms: of a GiB/s; of an H100's network card
WIDE = ParameterConstraints(sharding_types=["table_wise"])


def _planned(tmp_path=None, **fields):
    where = topology(4, "cuda", 1 << 32, on_host=2, **fields)
    constraints = dict.fromkeys("abcd", WIDE)
    settings = {"models": "roofline:h100", "batch_size": 16384, "constraints": constraints}
    if tmp_path is not None:
        settings["keep"] = tmp_path / "plan.json"
    return planned(bags(*"abcd", rows=100, dim=128), topology=where, **settings)[0]


def _exchange_ms(**fields):
    return _planned(**fields).last_cost.ms("forward").max()


def test_topology_with_default_bandwidths_changes_no_cost():
    ours = _planned()
    assert ours.last_cost.total_ms == ours._finder.simulator.cost(ours.last_plan.task, ours.last_plan).total_ms
    assert ours._finder.simulator.models == CostModels.load("roofline:h100")


def test_half_the_network_bandwidth_nearly_doubles_exchanges_between_hosts():
    usual, same, half = (_exchange_ms(**its) for its in ({}, {"inter_host_bw": CARD}, {"inter_host_bw": CARD / 2}))
    assert same == pytest.approx(usual)
    assert 1.5 * usual < half < 2 * usual  # each has a fixed time as well


def test_planner_scales_exchanges_by_the_bandwidth_within_hosts():
    fast_network = {"inter_host_bw": 1000 * CARD}
    usual, same, tenth = (_exchange_ms(**fast_network, **its) for its in ({}, _links(900), _links(90)))
    assert same == pytest.approx(usual)
    assert tenth > 1.5 * usual


def _links(gib_per_s):
    return {"intra_host_bw": gib_per_s * GIB}


@pytest.mark.parametrize("name", ["inter_host_bw", "intra_host_bw"])
def test_models_of_measured_exchanges_warn_that_they_ignore_a_bandwidth(name, caplog):
    planned(bags("a"), topology=topology(2, **{name: 1e9}), models="cpu")
    (unused,) = (message for message in logged(caplog) if message.code == "topology-bandwidth-unused")
    check(unused, "topology-bandwidth-unused", where="topology", names=[f"{name}=1e+09"])


def test_kept_plan_is_outdated_if_bandwidths_change(tmp_path, caplog):
    _planned(tmp_path)
    _planned(tmp_path, inter_host_bw=CARD / 2)
    (outdated,) = (message for message in logged(caplog) if message.code == "kept-plan-outdated")
    check(outdated, "kept-plan-outdated", names=["bandwidths"])
