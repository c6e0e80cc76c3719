"""Exchanges between hosts and over PCIe: the fits, the measured corrections, and hierarchical all-to-alls."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard import CostModels, Simulator, Task, Topology, load_tables, search
from neuroshard.cost.loads import Traffic
from neuroshard.models.network import (
    FITS,
    LARGEST_BYTES,
    Network,
    carried_share,
    errors,
    fitted,
    pcie_errors,
    points,
)
from neuroshard.plans.plan import Plan
from neuroshard.targets.target import target_named
from neuroshard.words.collective import Collective
from neuroshard.words.model_choice import NETWORKS
from tests.kit.messages import refused
from tests.kit.plans import whole

H100 = CostModels.load("roofline:h100")
TASK = Task(load_tables("dlrm_like", num_tables=16, batch_size=4096), Topology(16, "8GiB", devices_per_host=8), 4096)


def exchange_ms(models, collective, size_bytes, devices, host_size=None):
    given = np.zeros((1, devices, len(Collective)))
    given[..., collective] = size_bytes
    return float(models.forward.predict(Traffic(given, np.array([4096]), host_size), np.zeros((1, devices)))[0, 0])


def test_network_figures_equal_the_fit_to_all_published_points():
    assert {kind: dict(figures) for kind, figures in FITS.items()} == fitted(points())


@pytest.mark.parametrize("network", ["infiniband", "roce"])
def test_network_fits_predict_left_out_machines_within_limits(network):
    left_out = [one.left_out for one in errors(network) if one.left_out is not None]
    assert len(left_out) > 10
    assert max(left_out) < 1.31
    assert np.exp(np.mean(np.log(left_out))) < 1.2


def test_pcie_bandwidth_predicts_measured_servers_within_limit():
    assert max(one.measured for one in pcie_errors()) < 1.3


def test_all_to_all_time_between_hosts_equals_the_time_computed_by_hand():
    """Two hosts of 8: half of 8 MB leaves each host, at 0.9 of 50 GB/s, after 42.6 us."""
    fixed, bytes_ms = 0.0426, 4.0 / (0.9 * 50)
    by_hand = fixed + bytes_ms + 0.5 * np.sqrt(fixed * bytes_ms)
    assert exchange_ms(H100, Collective.ALL_TO_ALL, 8e6, 16, 8) == pytest.approx(by_hand)


@given(
    st.sampled_from(NETWORKS),
    st.floats(0.5, 300),
    st.sampled_from([(2, 2), (16, 2), (64, 8), (80, 10)]),
)
def test_network_of_measured_bandwidth_predicts_this_bandwidth(kind, busbw, size):
    ranks, hosts = size
    network = Network(kind, 50.0).measured(busbw, ranks, hosts)
    ms = float(network.ms("all_reduce", np.array([LARGEST_BYTES]), ranks, hosts)[0])
    assert 2 * (ranks - 1) / ranks * LARGEST_BYTES / ms / 1e6 == pytest.approx(busbw, rel=1e-3)


@given(st.sampled_from(NETWORKS), st.sampled_from(["alltoall", "reduce_scatter", "all_gather", "all_reduce"]))
def test_more_bytes_ranks_and_slower_cards_take_longer(kind, collective):
    sizes = 4096.0 * 4.0 ** np.arange(10)
    usual = Network(kind, 50.0).ms(collective, sizes, 16, 2)
    assert (np.diff(usual) > 0).all()
    assert (Network(kind, 25.0).ms(collective, sizes, 16, 2) > usual).all()
    assert Network(kind, 50.0).ms(collective, sizes[:1], 64, 8) > usual[0]


@pytest.mark.parametrize(("ranks", "hosts"), [(16, 2), (32, 4)])
def test_carried_share_equals_the_bytes_that_a_ring_sends_between_hosts(ranks, hosts):
    by_hand = sum(1 for rank in range(ranks) if (rank + 1) % ranks // 8 != rank // 8) / hosts  # borders of each host
    assert carried_share("all_gather", ranks, hosts) == pytest.approx(by_hand * (ranks - 1) / ranks / 8)


@pytest.mark.parametrize("network", NETWORKS)
def test_network_setting_changes_exchanges_between_hosts_only(network):
    models = CostModels.load("roofline:h100", network=network)
    one_host, two_hosts = ((its, Collective.ALL_TO_ALL, 1e6, 8 * hosts, 8) for hosts, its in ((1, models), (2, models)))
    assert exchange_ms(*one_host) == exchange_ms(H100, *one_host[1:])
    assert (exchange_ms(*two_hosts) > exchange_ms(H100, *two_hosts[1:])) == (network not in ("infiniband", "roce"))


def test_busbw_settings_of_host_and_network_change_exchange_times():
    pcie = CostModels.load("roofline:h100_pcie")
    slow = CostModels.load("roofline:h100_pcie", host_busbw_gb_per_s=2)
    fast = CostModels.load("roofline:h100_pcie", host_busbw_gb_per_s=46)
    size, ms = 2.0**29, {}
    for name, models in {"usual": pcie, "slow": slow, "fast": fast}.items():
        ms[name] = exchange_ms(models, Collective.ALL_REDUCE, size, 8)
        assert exchange_ms(models, Collective.ALL_REDUCE, 4.0, 8) == pytest.approx(
            exchange_ms(pcie, Collective.ALL_REDUCE, 4.0, 8), rel=0.1
        )
    assert 2 * 7 / 8 * size / ms["slow"] / 1e6 == pytest.approx(2, rel=0.05)
    assert 2 * 7 / 8 * size / ms["fast"] / 1e6 == pytest.approx(46, rel=0.05)
    assert ms["fast"] < ms["usual"] < ms["slow"]
    worse = CostModels.load("roofline:h100", network_busbw_gb_per_s=20)
    assert exchange_ms(worse, Collective.ALL_TO_ALL, 1e8, 16, 8) > 2 * exchange_ms(
        H100, Collective.ALL_TO_ALL, 1e8, 16, 8
    )


def test_nvlink_bridges_speed_up_exchanges_within_pairs():
    pcie, bridged = (CostModels.load("roofline:h100_pcie", nvlink_bridges=its) for its in (None, True))
    size = 2.0**29
    assert exchange_ms(bridged, Collective.ALL_REDUCE, size, 2) == pytest.approx(size / 116e6, rel=0.02)
    assert exchange_ms(bridged, Collective.ALL_TO_ALL, size, 8) == pytest.approx(
        exchange_ms(pcie, Collective.ALL_TO_ALL, size * 6 / 7, 8)
    )


@pytest.mark.parametrize(
    ("name", "settings", "code"),
    [
        ("cpu", {"network": "efa"}, "models-ignore-links"),
        ("cpu", {"host_busbw_gb_per_s": 3.0}, "models-ignore-links"),
        ("roofline:h100", {"nvlink_bridges": True}, "bridges-not-pcie"),
        ("roofline:h100", {"network": "token_ring"}, "unknown-name"),
    ],
)
def test_models_refuse_link_settings_that_they_do_not_have(name, settings, code):
    with refused(code):
        CostModels.load(name, **settings)


@pytest.mark.parametrize("name", ["h100", "roofline:b200"])
def test_plan_file_stores_link_settings_and_loads_models_with_them(tmp_path, name):
    links = {"network": "efa", "network_gb_per_s": 50.0, "network_busbw_gb_per_s": 30.0}
    models = CostModels.load(name, **links, exchange_dtype="fp16")
    plan = Simulator(models).predicted(whole(TASK))
    plan.save(tmp_path / "plan.json")
    choice = Plan.load(tmp_path / "plan.json").prediction.models
    assert choice.links == links
    again = Simulator(CostModels.of(choice)).cost(TASK, plan).total_ms
    assert again == plan.prediction.cost_ms != Simulator(CostModels.load(name)).cost(TASK, plan).total_ms


def test_hierarchical_exchange_speeds_up_only_hugectr_and_only_between_hosts():
    both = [(target_named(name).costed(H100), name) for name in ("hugectr", "sok", "json", None)]
    ms = {name: exchange_ms(models, Collective.ALL_TO_ALL, 1e6, 64, 8) for models, name in both}
    assert ms["hugectr"] < ms["sok"] == ms["json"] == ms[None]
    plain = replace(H100.forward, links=replace(H100.forward.links, hierarchical=True))
    within = replace(H100, forward=plain)
    assert exchange_ms(within, Collective.ALL_TO_ALL, 1e6, 8, 8) == exchange_ms(H100, Collective.ALL_TO_ALL, 1e6, 8, 8)


@pytest.mark.parametrize(
    ("network", "hosts", "size_bytes", "words"),
    [("infiniband", 2, 1e6, "interpolated"), ("infiniband", 32, 1e6, "extrapolated"), ("efa", 8, 1e6, "extrapolated"),
     ("infiniband", 2, 4e9, "extrapolated"), ("slingshot", 32, 1e6, "interpolated")],
)  # fmt: skip
def test_exchange_coverage_depends_on_network_hosts_and_bytes(network, hosts, size_bytes, words):
    sizes = np.full((1, 8 * hosts, 1), size_bytes)
    traffic = Traffic(sizes, np.array([4096]), 8)
    assert words in str(CostModels.load("roofline:h100", network=network).forward.coverage(traffic))


def test_coverage_of_a_typical_server_is_interpolated_once_its_bandwidth_is_given():
    traffic = Traffic(np.full((1, 8, 1), 1e6), np.array([4096]), 8)
    guess, known = (
        str(CostModels.load("roofline:l40s", **its).forward.coverage(traffic))
        for its in ({}, {"host_busbw_gb_per_s": 9.0})
    )
    assert "2 to 46 GB/s" in guess
    assert "interpolated" in known


def test_coverage_of_scaled_links_does_not_name_a_typical_server():
    traffic = Traffic(np.full((1, 8, 1), 1e6), np.array([4096]), 8)
    said = str(replace(H100.forward, speed=2.0).coverage(traffic))
    assert "scaled" in said
    assert "PCIe" not in said


@pytest.mark.slow
def test_predicted_costs_are_below_published_steps_of_hugectr_and_in_their_order():
    """DLRM-DCNv2 at batch 55,296 on 8 GPUs, HugeCTR (MLPerf Training v3.1 and v4.0)."""
    steps_ms = {"b200": 2.18, "h200": 3.30, "h100": 3.53, "a100": 7.15, "l40s": 20.29}
    memory = {"b200": 180, "h200": 141, "h100": 80, "a100": 80, "l40s": 48}
    costs_ms = {}
    for name in steps_ms:
        task = Task(load_tables("criteo", batch_size=55296), Topology(8, f"{memory[name]}GiB"), 55296)
        simulator = Simulator(CostModels.load(f"roofline:{name}", exchange_dtype="fp16"))
        costs_ms[name] = search(task, simulator, target="hugectr").prediction.cost_ms
    assert all(costs_ms[name] < steps_ms[name] for name in steps_ms)
    assert sorted(costs_ms, key=costs_ms.get) == sorted(steps_ms, key=steps_ms.get)
