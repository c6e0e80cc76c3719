"""Compiled code puts every shard where asking the model for every device does, under every cap."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard.models.simulator import Simulator
from neuroshard.stages.search.placement.grid import (
    GridSearch,
    GridSettings,
    PlacedLayout,
    _beyond_least,
    _scores,
    _whole_scores,
)
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.catalog import Catalog, equal_shards, fewest_shards
from neuroshard.stages.search.space.sizes import Room, device_loads, devices_with_room, put
from neuroshard.testing import linear_models, random_models, toy_task
from tests.kit.random_models import random_by_widest


def _catalog(seed, devices, models, count=24):
    """Of tables of 4 to 128 columns, so that devices are full for wide shards before they are for narrow ones."""
    memory_bytes = (3 << 20, 1 << 30)[seed % 2]
    rng, task = np.random.default_rng(seed), toy_task(count, devices, memory_bytes=memory_bytes, seed=seed)
    widths = rng.choice([4, 8, 32, 128], len(task.tables)).tolist()
    tables = tuple(table.with_dim(dim) for table, dim in zip(task.tables, widths, strict=True))
    return Catalog.checked(Base.empty(replace(task, tables=tables)), Simulator(models))


def _costs(catalog, contents):
    return catalog.model.predict(device_loads(catalog.items, np.array(contents)))


def _with_base(catalog, seed):
    """With something else on every device already, another amount on each: up to what the mean device computes."""
    devices = catalog.items.task.topology.num_devices
    most = catalog.cost_ms[catalog.whole].sum() / devices
    base = replace(catalog.items.base, compute_ms=np.random.default_rng(seed).uniform(0, most, devices))
    return replace(catalog, items=replace(catalog.items, base=base))


def _added(catalog, contents):
    """What models whose numbers add up say that devices compute by these alone."""
    vectors = catalog.vectors[catalog.first + np.array(contents)][..., catalog.added[0]].sum(axis=1)
    return vectors @ catalog.model.head.weight[catalog.added[0]] * catalog.model.head.scale_ms


def _one_by_one(catalog, shards, cap, costs):
    """Units on each device, (I, D), after each shard went where it costs least; None if a shard does not fit."""
    room, base_ms = Room.empty(catalog, catalog.items.free_bytes), catalog.items.base.compute_ms
    room.free_units[:] = cap
    for item, width in shards.tolist():
        options = np.flatnonzero(devices_with_room(room, item, width)).tolist()
        if not options:
            return None
        after = room.held[:, options].T.copy()
        after[:, item] += width
        put(room, item, width, options[int(np.argmin(costs(catalog, after) + base_ms[options]))])
    return room.held


def _by_widest(devices):
    return replace(random_models(devices), compute=random_by_widest())


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 8))])
@pytest.mark.parametrize("make", [linear_models, random_models, _by_widest])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("beside", [lambda catalog, seed: catalog, _with_base], ids=["nothing", "something"])
def test_shards_go_where_the_model_says_they_cost_least(seed, make, parts, beside):
    devices = (2, 5)[seed // 2 % 2]
    catalog = beside(_catalog(seed, devices, make(devices)), seed)
    mean = catalog.total_given / devices
    caps = np.array([0.9 * mean, mean, 1.1 * mean, 1.5 * mean, catalog.total_given]).astype(np.int64)
    layouts = (fewest_shards(catalog) if parts == 1 else equal_shards(catalog, parts))[None]
    grid = GridSearch(catalog, GridSettings())
    ours = grid.placements(layouts, caps, _whole_scores(catalog))
    for number, cap in enumerate(caps.tolist()):
        held = _one_by_one(catalog, ours.shards[0], cap, _costs)
        assert ours.alive[0, number] == (held is not None)
        if held is not None:  # devices in any order: which of equal ones is the first is rounding
            for found, expected in ((ours.compute_ms, _costs(catalog, held.T)), (ours.units, catalog.given_by(held.T))):
                np.testing.assert_allclose(np.sort(found[0, number]), np.sort(expected), rtol=1e-4)
    assert not ours.alive[0, 0]  # less than all of them give out
    assert ours.repeated[0, 1:].tolist() == [
        bool(alive and (one == before).all())
        for alive, one, before in zip(ours.alive[0, 1:], ours.devices[0, 1:], ours.devices[0], strict=False)
    ]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.parametrize(("scores", "costs"), [(_scores, _added), (_whole_scores, _costs)], ids=["adding", "whole"])
def test_on_many_devices_shards_go_where_what_they_add_by_themselves_is_least(seed, scores, costs):
    """And cost what the model says nevertheless; once more by whole devices."""
    catalog = _with_base(_catalog(seed, 64, _by_widest(64), count=200), seed)
    assert 0 < catalog.added[0].sum() < len(catalog.added[0])
    caps = np.array([1.2 * catalog.total_given / 64, catalog.total_given]).astype(np.int64)
    layout = fewest_shards(catalog)
    grid = GridSearch(catalog, GridSettings())
    ours = grid.placements(layout[None], caps, scores(catalog))
    for number, cap in enumerate(caps.tolist()):
        held = _one_by_one(catalog, ours.shards[0], cap, costs)
        assert ours.alive[0, number] == (held is not None)
        if held is not None:
            placed = PlacedLayout(layout, ours.shards[0], ours.devices[0, number], 0.0)
            np.testing.assert_allclose(_costs(catalog, grid.held(placed).T), ours.compute_ms[0, number], rtol=1e-4)
            np.testing.assert_allclose(np.sort(_costs(catalog, held.T)), np.sort(ours.compute_ms[0, number]), rtol=1e-4)
    assert ours.alive[0, -1]


def test_a_layout_placed_once_more_is_the_cheaper_of_both():
    cheaper = 0
    for seed in range(4):
        catalog = _catalog(seed, 64, _by_widest(64), count=200)
        grid = GridSearch(catalog, GridSettings())
        (placed,) = grid.place(fewest_shards(catalog)[None])
        refined = grid.refined(placed)
        assert refined.cost_ms <= placed.cost_ms
        assert catalog.costs([grid.held(refined)])[0].total_ms == pytest.approx(refined.cost_ms, rel=1e-4)
        assert grid.refined(refined) is refined
        cheaper += refined.cost_ms < placed.cost_ms
    assert cheaper


def test_devices_that_compute_about_equally_much_already_are_placed_on_as_alike_ones():
    assert _beyond_least(np.array([1.0, 1.0005, 1.0])).tolist() == [0, 0, 0]
    assert _beyond_least(np.array([1.0, 1.5, 1.0])).tolist() == [0, 0.5, 0]
    assert _beyond_least(np.zeros(2)).tolist() == [0, 0]
