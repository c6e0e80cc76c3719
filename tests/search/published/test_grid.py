"""Under every cap, compiled code places every shard on the device that the model costs least."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard.models.simulator import Simulator
from neuroshard.stages.search.local.starts import equal_splits
from neuroshard.stages.search.published.device_room import DeviceRoom
from neuroshard.stages.search.published.grid import GridSearch, GridSettings, PlacedSplits, _above_least
from neuroshard.stages.search.published.shard_table import always_added, fewest_shards
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.fixed_load import FixedLoad
from neuroshard.stages.search.space.room import devices_with_room, put
from neuroshard.testing import linear_models, random_models, toy_task
from tests.kit.random_models import random_by_widest


def _space(seed, devices, models, count=24):
    """Make a space of tables of 4 to 128 columns, so that full devices may still have memory for narrow shards."""
    memory_bytes = (3 << 20, 1 << 30)[seed % 2]
    rng, task = np.random.default_rng(seed), toy_task(count, devices, memory_bytes=memory_bytes, seed=seed)
    widths = rng.choice([4, 8, 32, 128], len(task.tables)).tolist()
    tables = tuple(table.with_dim(dim) for table, dim in zip(task.tables, widths, strict=True))
    return CostedSpace.checked(FixedLoad.empty(replace(task, tables=tables)), Simulator(models))


def _costs(space, contents):
    return space.model.predict(space.device_loads(np.array(contents).T))


def _with_fixed_load(space, seed):
    """Add a fixed load to every device, of a different amount each, up to the mean compute of devices."""
    devices = space.task.topology.num_devices
    most = space.shards.cost_ms[space.shards.whole].sum() / devices
    return replace(space, fixed=replace(space.fixed, compute_ms=np.random.default_rng(seed).uniform(0, most, devices)))


def _added(space, contents):
    """Return the ms of devices by the entries of the model that simply add up."""
    adding, _ = always_added(space.shards.vectors, space.model.head)
    vectors = space.shards.vectors[space.shards.first + np.array(contents)][..., adding].sum(axis=1)
    return vectors @ space.model.head.weight[adding] * space.model.head.scale_ms


def _one_by_one(space, shards, cap, costs):
    """Return the units (I, D) after placing each shard where it costs least; None if a shard does not fit."""
    room, fixed_ms = DeviceRoom.empty(space.shards, space.free_bytes), space.fixed.compute_ms
    room.free_units[:] = cap
    for item, width in shards.tolist():
        options = np.flatnonzero(devices_with_room(space.shards, room, item, width)).tolist()
        if not options:
            return None
        after = room.widths[:, options].T.copy()
        after[:, item] += width
        put(space.shards, room, item, width, options[int(np.argmin(costs(space, after) + fixed_ms[options]))])
    return room.widths


def _by_widest(devices):
    return replace(random_models(devices), compute=random_by_widest())


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 8))])
@pytest.mark.parametrize("make", [linear_models, random_models, _by_widest])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("beside", [lambda space, seed: space, _with_fixed_load], ids=["nothing", "something"])
def test_shards_go_to_the_device_with_the_lowest_model_cost(seed, make, parts, beside):
    devices = (2, 5)[seed // 2 % 2]
    space = beside(_space(seed, devices, make(devices)), seed)
    mean = space.shards.total_sent_units / devices
    caps = np.array([0.9 * mean, mean, 1.1 * mean, 1.5 * mean, space.shards.total_sent_units]).astype(np.int64)
    layouts = (fewest_shards(space.shards) if parts == 1 else equal_splits(space.shards, parts))[None]
    grid = GridSearch(space.problem, GridSettings())
    ours = grid.placements(layouts, caps, *grid.by_whole)
    for number, cap in enumerate(caps.tolist()):
        held = _one_by_one(space, ours.shards[0], cap, _costs)
        assert ours.fits[0, number] == (held is not None)
        if held is not None:  # devices in any order: which of equal ones is the first is rounding
            for found, expected in (
                (ours.compute_ms, _costs(space, held.T)),
                (ours.sent_units, space.shards.device_units(held)),
            ):
                np.testing.assert_allclose(np.sort(found[0, number]), np.sort(expected), rtol=1e-4)
    assert not ours.fits[0, 0]  # less than all of them give out
    assert ours.repeated[0, 1:].tolist() == [
        bool(alive and (one == before).all())
        for alive, one, before in zip(ours.fits[0, 1:], ours.devices[0, 1:], ours.devices[0], strict=False)
    ]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.parametrize(("scores", "costs"), [("by_added", _added), ("by_whole", _costs)])
def test_grid_on_many_devices_places_shards_by_added_or_whole_cost(seed, scores, costs):
    """Placement may use the added cost of a shard or whole device costs; the model predicts the final costs."""
    space = _with_fixed_load(_space(seed, 64, _by_widest(64), count=200), seed)
    caps = np.array([1.2 * space.shards.total_sent_units / 64, space.shards.total_sent_units]).astype(np.int64)
    layout = fewest_shards(space.shards)
    grid = GridSearch(space.problem, GridSettings())
    assert 0 < grid.by_added[1].counted < len(space.model.head.bias)
    ours = grid.placements(layout[None], caps, *getattr(grid, scores))
    for number, cap in enumerate(caps.tolist()):
        held = _one_by_one(space, ours.shards[0], cap, costs)
        assert ours.fits[0, number] == (held is not None)
        if held is not None:
            placed = PlacedSplits(layout, ours.shards[0], ours.devices[0, number], 0.0)
            np.testing.assert_allclose(_costs(space, grid.widths(placed).T), ours.compute_ms[0, number], rtol=1e-4)
            np.testing.assert_allclose(np.sort(_costs(space, held.T)), np.sort(ours.compute_ms[0, number]), rtol=1e-4)
    assert ours.fits[0, -1]


def test_refined_grid_placement_costs_no_more_than_the_first_placement():
    cheaper = 0
    for seed in range(4):
        space = _space(seed, 64, _by_widest(64), count=200)
        grid = GridSearch(space.problem, GridSettings())
        (placed,) = grid.place(fewest_shards(space.shards)[None])
        refined = grid.refined(placed)
        assert refined.cost_ms <= placed.cost_ms
        assert space.costs([grid.widths(refined)])[0].total_ms == pytest.approx(refined.cost_ms, rel=1e-4)
        assert grid.refined(refined) is refined
        cheaper += refined.cost_ms < placed.cost_ms
    assert cheaper


def test_above_least_takes_compute_times_within_a_thousandth_for_equal():
    assert _above_least(np.array([1.0, 1.0005, 1.0])).tolist() == [0, 0, 0]
    assert _above_least(np.array([1.0, 1.5, 1.0])).tolist() == [0, 0.5, 0]
    assert _above_least(np.zeros(2)).tolist() == [0, 0]
