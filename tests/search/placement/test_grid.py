"""The compiled placer puts every shard where the plain one does, under every cap."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard.models.simulator import Simulator
from neuroshard.stages.search.placement.grid import _CompiledPlacer, _PlainPlacer
from neuroshard.stages.search.space.base import Base
from neuroshard.stages.search.space.catalog import Catalog, equal_parts, fewest_shards
from neuroshard.testing import linear_models, random_models, toy_task


def _catalog(seed, devices, models):
    """Of tables of 4 to 128 columns, so that devices are full for wide shards before they are for narrow ones."""
    rng, task = np.random.default_rng(seed), toy_task(24, devices, memory_bytes=(3 << 20, 1 << 30)[seed % 2], seed=seed)
    widths = rng.choice([4, 8, 32, 128], len(task.tables)).tolist()
    tables = tuple(table.with_dim(dim) for table, dim in zip(task.tables, widths, strict=True))
    return Catalog.checked(Base.empty(replace(task, tables=tables)), Simulator(models))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("make", [linear_models, random_models])
@pytest.mark.parametrize("parts", [1, 2])
def test_compiled_and_plain_placements_are_equal(seed, make, parts):
    devices = (2, 5)[seed // 2 % 2]
    catalog = _catalog(seed, devices, make(devices))
    mean = catalog.total_given / devices
    caps = np.array([0.9 * mean, mean, 1.1 * mean, 1.5 * mean, catalog.total_given]).astype(np.int64)
    layouts = (fewest_shards(catalog) if parts == 1 else equal_parts(catalog, parts))[None]
    ours, plain = (kind(catalog.model, catalog).place(layouts, caps) for kind in (_CompiledPlacer, _PlainPlacer))
    np.testing.assert_array_equal(ours.alive, plain.alive)
    for found in ("compute_ms", "units"):  # of devices in any order: which of equal ones is the first is rounding
        each = [np.sort(getattr(grid, found)[ours.alive], axis=-1) for grid in (ours, plain)]
        np.testing.assert_allclose(*each, rtol=1e-4, err_msg=found)
    assert not ours.alive[0, 0]  # less than all of them give out
    assert ours.repeated[0, 1:].tolist() == [
        bool(alive and (one == before).all())
        for alive, one, before in zip(ours.alive[0, 1:], ours.devices[0, 1:], ours.devices[0], strict=False)
    ]
