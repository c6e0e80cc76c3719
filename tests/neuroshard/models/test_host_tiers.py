"""Costs of tables in host memory, compared with values computed by hand and with a published benchmark."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard import CostModels, Table, Tier, TierAssignment, zipf_reuse
from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.models.datasheets import with_host_tiers
from neuroshard.models.host_tiers import HostLink, HostTiers, link_bytes, managed_lookups, memory_bytes
from neuroshard.models.roofline import RooflineCompute
from neuroshard.plumbing.configs import choices
from neuroshard.testing import OpaqueCompute, random_models, toy_tables
from neuroshard.words.form import CALLS, COLUMN_WISE_CALL, FORMS, Call, Form
from neuroshard.words.placement import ON_DEVICE
from tests.kit.messages import refused
from tests.kit.plans import table
from tests.kit.random_models import random_ensemble, random_form_models, random_regression

IN_HOST = TierAssignment(Tier.UVM)
TABLE = table(rows=10**6, dim=32)
MODEL = RooflineCompute(1000.0, HostLink(20.0, 3.0, 0.1)).of_calls


def _cached(share):
    return TierAssignment(Tier.UVM_CACHING, share)


def _loads(tables, home, batch_size=1000):
    return Loads.of(tables, batch_size).at([home] * len(tables))


def _cost(model, tables, home, batch_size=1000):
    loads = _loads(tables, home, batch_size)
    return model.predict(LoadSets(loads, np.array([len(loads)])))[0]


def test_uvm_cost_and_bytes_equal_those_computed_by_hand():
    """Forward reads a row per lookup over the link, backward the unique rows; other bytes go through device memory."""
    loads = _loads([TABLE], IN_HOST)
    lookups, row = 2000, 128
    assert link_bytes(loads).tolist() == [(lookups + lookups) * row]
    assert memory_bytes(loads).tolist() == [lookups * (16 + row) + 1000 * row]
    assert managed_lookups(loads).tolist() == [0]
    model = RooflineCompute(2.0, HostLink(1.0, 3.0, 0.1)).of_calls
    over_link = lookups * row / (72 / 64) + 2 * lookups * row / (84 / 64)
    threads_ms = 1000 * 0.24e-6 + lookups * (0.071e-6 + 0.134e-6)
    right = 0.109 + threads_ms + (over_link + (lookups * 8 + 2 * 1000 * row) / 2) / 1e6
    assert _cost(model, [TABLE], IN_HOST) == pytest.approx(right)


def test_cache_for_all_rows_adds_only_its_lookups_to_the_cost():
    assert link_bytes(_loads([TABLE], _cached(1.0)))[0] == pytest.approx(0, abs=1)
    more = _cost(MODEL, [TABLE], _cached(1.0)) - _cost(MODEL, [TABLE], ON_DEVICE)
    assert more == pytest.approx(0.16 + 2000 * 3e-6, rel=1e-4)


def test_link_bytes_are_the_rows_that_a_cache_misses():
    """All rows are looked up equally often, once each, so the cache misses the rows that exceed its size."""
    assert link_bytes(_loads([TABLE], _cached(0.25)))[0] == pytest.approx(0.75 * 2000 * 128, rel=0.05)


tables = st.builds(
    lambda rows, dim, pooling, exponent: Table("t", rows, 4 * dim, pooling, zipf_reuse(rows, 512 * pooling, exponent)),
    st.integers(1, 10**8),
    st.integers(1, 64),
    st.floats(0.1, 100),
    st.floats(0, 1.3),
)


@given(st.lists(tables, min_size=1, max_size=4), st.lists(st.floats(1e-3, 1), min_size=1, max_size=5))
def test_cost_never_rises_with_larger_caches_and_is_least_in_device_memory(some, shares):
    homes = [ON_DEVICE, *(_cached(share) for share in sorted({*shares, 1.0}, reverse=True))]
    costs = np.array([_cost(MODEL, some, home, 512) for home in homes])
    assert (np.diff(costs) >= -1e-6 * costs[:-1]).all()
    assert _cost(MODEL, some, IN_HOST, 512) >= costs[0] * (1 - 1e-6)


@pytest.mark.parametrize("home", [_cached(0.1), _cached(1.0), IN_HOST])
def test_more_features_columns_bytes_or_tables_never_cost_less_in_any_tier(home):
    for seed in range(20):
        some = [replace(table, bytes_per_element=2) for table in toy_tables(6, seed, 10**6)]
        before = _cost(MODEL, some, home)
        for change in ({"features": 3}, {"dim": some[0].dim + 32}, {"bytes_per_element": 4}):
            assert _cost(MODEL, [replace(some[0], **change), *some[1:]], home) >= before * (1 - 1e-6)
        assert _cost(MODEL, some[1:], home) <= before


@pytest.mark.parametrize("call", CALLS)
def test_head_of_summed_vectors_equals_the_prediction_of_every_kernel_call(call):
    home = TierAssignment(call.tier, 0.3 if call.tier is Tier.UVM_CACHING else None)
    loads = _loads(toy_tables(6), home)
    loads = replace(loads, form=np.full(6, FORMS.index(call.form)), pooled=np.full(6, call.pooled))
    own, sets = MODEL.of_call(call), LoadSets(loads, np.array([4, 0, 2]))
    vectors = own.embed(loads)
    right = [own.head(vectors[:4].sum(axis=0)), 0, own.head(vectors[4:].sum(axis=0))]
    assert MODEL.predict(sets) == pytest.approx(right, rel=1e-5)
    assert own.head(np.zeros_like(vectors[0])) == pytest.approx(0.269 if call.tier is Tier.UVM_CACHING else 0.109)


def test_cost_of_several_tiers_is_the_sum_of_their_kernel_calls():
    """Each kernel call has its own launch time; the compiled model predicts the same cost."""
    homes = [ON_DEVICE, _cached(0.2), IN_HOST, _cached(0.5), ON_DEVICE]
    loads = Loads.of(toy_tables(5), 1000).at(homes)
    whole = MODEL.device_ms(LoadSets(loads, np.array([5])))[0]
    apart = sum(
        MODEL.predict(LoadSets(loads.take(np.array(its)), np.array([len(its)])))[0] for its in ([0, 4], [1, 3], [2])
    )
    assert whole == pytest.approx(apart)
    compiled = MODEL.of_columns(loads)
    assert compiled.predict(LoadSets(loads, np.array([5])))[0] == pytest.approx(whole, rel=1e-5)


def test_roofline_without_a_host_link_has_calls_in_device_memory_only():
    assert RooflineCompute(1.0).of_calls.calls == {call for call in CALLS if call.tier is Tier.DEVICE}
    assert MODEL.calls == set(CALLS)


@pytest.mark.parametrize("name", choices("roofline"))
def test_datasheet_models_cost_every_tier_and_any_number_of_devices(name):
    models = CostModels.load(f"roofline:{name}")
    assert models.num_devices is None
    assert models.batch_size is None
    model = models.compute
    assert model.calls == set(CALLS)
    some = toy_tables(4, 0, 10**6)
    device, cached, missing, host = (_cost(model, some, h) for h in (ON_DEVICE, _cached(1.0), _cached(0.1), IN_HOST))
    assert device < cached < missing
    assert device < host


FIGURES, TIERS = HostTiers(1, 1, 1, 1).settings(), HostTiers(1, 1, 1, 1)
BEHIND_LINK = with_host_tiers(random_models(), "roofline:h100").compute


@pytest.mark.parametrize(
    ("model", "settings", "code", "names"),
    [
        (TIERS, {"memory_ms_per_gb": 1.0}, "field-missing", ["'link_ms_per_gb'"]),
        (TIERS, FIGURES | {"call_ms": -1.0}, "value-outside-limits", ["call_ms", -1.0]),
        (TIERS, FIGURES | {"cache_lookup_ns": float("nan")}, "value-outside-limits", ["cache_lookup_ns", "nan"]),
        (TIERS, FIGURES | {"more": 1.0}, "unknown-name", ["'more'"]),
        (
            BEHIND_LINK,
            BEHIND_LINK.settings() | {"host": asdict(HostLink(0.0, 1.0, 1.0))},
            "value-outside-limits",
            ["host.link_gb_per_s", 0.0],
        ),
    ],
    ids=["missing", "negative", "no number", "unknown", "a link that carries nothing"],
)
def test_restoring_a_host_tier_model_with_invalid_figures_is_refused(model, settings, code, names):
    with refused(code, where="settings", names=names):
        model.restored(settings, model.tensors())


def test_datasheet_link_is_added_to_fitted_models():
    """Known calls in device memory stay as they were; the same sharding types cost more in host memory."""
    own = random_regression()
    models = replace(random_models(), compute=own)
    both = with_host_tiers(models, "roofline:h100").compute
    assert both.calls == {
        COLUMN_WISE_CALL,
        Call(Form.COLUMN_WISE, tier=Tier.UVM_CACHING),
        Call(Form.COLUMN_WISE, tier=Tier.UVM),
    }
    for some in (toy_tables(1), toy_tables(6, 1, 10**6)):
        on_device = own.predict(LoadSets.of([some], 1000))[0]
        assert _cost(both, some, ON_DEVICE) == on_device
        more = [_cost(both, some, home) - on_device for home in (_cached(1.0), _cached(0.1), IN_HOST)]
        lookups = sum(1000 * table.pooling_factor for table in some)
        assert more[0] == pytest.approx(0.12 + 2.43e-6 * lookups, rel=1e-3)
        assert more[1] > more[0]
        assert more[2] == pytest.approx(link_bytes(_loads(some, IN_HOST)).sum() / 64e6, rel=1e-3)


def test_datasheet_link_adds_nothing_to_the_spread():
    own = random_ensemble()
    both = with_host_tiers(replace(random_models(), compute=own), "roofline:h100").compute
    on_device, behind = (LoadSets.alone(_loads(toy_tables(5), home)) for home in (ON_DEVICE, _cached(0.3)))
    assert (both.spread_ms(behind) == own.spread_ms(on_device)).all()
    assert (own.spread_ms(on_device) > 0).all()
    assert (both.predict(behind) >= own.predict(on_device)).all()


def test_fitted_host_tiers_take_precedence_over_a_datasheet():
    models = random_form_models()
    assert with_host_tiers(models, "roofline:h100").compute.of_call(CALLS[-1]) == models.compute.of_call(CALLS[-1])


def test_only_datasheets_can_supply_a_link():
    with refused("host-tiers-not-datasheet", names=["host_tiers", "cpu", "roofline:h100"]):
        with_host_tiers(random_models(), "cpu")
    with refused("host-tiers-not-sum", names=["host_tiers"]):
        with_host_tiers(replace(random_models(), compute=OpaqueCompute()), "roofline:h100")


def test_scaled_host_tiers_multiply_all_costs():
    loads = LoadSets.alone(_loads(toy_tables(5), _cached(0.3)))
    model = HostTiers(1.0, 20.0, 3.0, 0.1)
    assert model.scaled(2.5).predict(loads) == pytest.approx(2.5 * model.predict(loads), rel=1e-5)
