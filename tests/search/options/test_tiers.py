"""Choice of tiers: the cheapest tiers that fit."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuroshard.stages.search.options.tiers import TierOptions
from neuroshard.words.placement import ON_DEVICE, Tier, TierAssignment

HOMES = (
    ON_DEVICE,
    TierAssignment(Tier.UVM_CACHING, 0.1),
    TierAssignment(Tier.UVM_CACHING, 0.5),
    TierAssignment(Tier.UVM),
)


def _options(size, cost):
    """Make options of tables that take (T, 1) bytes in any tier."""
    device = np.floor(size * np.array([1.0, 0.1, 0.5, 0.0])).astype(np.int64)
    return TierOptions(HOMES, cost, device, np.where(np.arange(4) == 0, 0, size))


ALIKE = _options(np.full((3, 1), 10), np.array([[1.0, 4.0, 3.0, 9.0]] * 3))


@st.composite
def options(draw):
    """Draw tables whose cheaper tiers most often take more device memory."""
    count = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    size = rng.integers(1, 1000, count)[:, None]
    cost = rng.random((count, 1)) * np.array([1.0, 8.0, 5.0, 20.0]) * rng.uniform(0.8, 1.2, (count, 4))
    cost[rng.random((count, 4)) < 0.1] = np.inf
    cost[np.isinf(cost).all(axis=1), 0] = 1.0
    return _options(size, cost)


def _sums(given_options, chosen):
    rows = np.arange(len(chosen))
    return tuple(
        values[rows, list(chosen)].sum()
        for values in (given_options.cost_ms, given_options.device_bytes, given_options.host_bytes)
    )


def _best(given_options, device, host):
    """Return the least cost of all choices that fit."""
    every = (_sums(given_options, some) for some in product(range(4), repeat=len(given_options.cost_ms)))
    return min((cost for cost, on_device, on_host in every if on_device <= device and on_host <= host), default=np.inf)


@given(options(), st.floats(0, 1.2), st.none() | st.floats(0, 1))
@settings(max_examples=300)
def test_cheapest_tiers_fit_both_memories_and_are_found_if_hosts_have_plenty(some, device_share, host_share):
    room = int(device_share * some.device_bytes[:, 0].sum())
    host = int(some.host_bytes.sum() if host_share is None else host_share * some.host_bytes[:, 1].sum())
    chosen = some.cheapest(room, host)
    assert host_share is not None or (chosen is None) == np.isinf(_best(some, room, host))
    if chosen is not None:
        cost, device, on_host = _sums(some, chosen)
        assert np.isfinite(cost)
        assert device <= room
        assert on_host <= host


@pytest.mark.parametrize("tasks", [20, pytest.param(40, marks=pytest.mark.slow)])
def test_cheapest_tiers_cost_little_more_than_the_best_choice(tasks):
    """The choice wastes a part of the bytes of one table, which is little with many tables."""
    rng, gaps = np.random.default_rng(0), []
    for _ in range(tasks):
        size = rng.integers(50, 1000, 6)[:, None]
        cost = rng.random((6, 1)) * np.array([1.0, 8.0, 5.0, 20.0]) * rng.uniform(0.9, 1.1, (6, 4))
        some = _options(size, cost)
        room, plenty = int(rng.uniform(0.2, 0.9) * size.sum()), int(size.sum())
        gaps.append(_sums(some, some.cheapest(room, plenty))[0] / _best(some, room, plenty) - 1)
    assert np.mean(gaps) < 0.15
    assert np.median(gaps) < 0.1


def test_cheapest_tiers_are_on_devices_if_all_tables_fit():
    assert ALIKE.cheapest(30, 0).tolist() == [0, 0, 0]
    assert ALIKE.cheapest(29, 30).tolist().count(0) == 2


@pytest.mark.parametrize("host", [10, 20, 30])
def test_cheapest_tiers_stay_within_host_memory(host):
    chosen = ALIKE.cheapest(30 - host + 10, host)
    assert chosen is not None
    assert _sums(ALIKE, chosen)[2] <= host


def test_cheapest_tiers_are_none_if_device_and_host_memory_are_too_small():
    assert ALIKE.cheapest(15, 10) is None
