"""Parts of catalogs, beside those that are made anew."""

from dataclasses import fields

import numpy as np
import pytest

import neuroshard as ns
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.feasibility import device_memory
from neuroshard.stages.search.space.form_catalog import part_of_catalog
from neuroshard.stages.search.space.forms import COLUMNS, allowed_forms, known_calls, leaders, part_of
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.testing import OpaqueCompute, constrained_task

MODELS = (ns.CostModels.load("roofline:h100").compute, OpaqueCompute())


@pytest.mark.parametrize("model", MODELS, ids=["sum", "other"])
def test_a_part_is_as_if_made_anew(model):
    rng, pinned, apart = np.random.default_rng(0), 0, 0
    for seed in range(10):
        task = constrained_task(seed)
        bound = ~np.delete(allowed_forms(task, known_calls(ns.CostModels.load("roofline:h100"))), COLUMNS, 1)
        stay = (rng.uniform(size=len(task.tables)) < 0.5)[leaders(task)]  # tables kept together change form together
        tables = np.flatnonzero(bound.all(axis=1) | stay)
        free = device_memory(task) - rng.integers(0, 100, size=task.topology.num_devices)
        part = part_of_catalog(Catalog.costed(Sizes.of(Items.of(task)), model), tables, free)
        anew = Catalog.costed(Sizes.of(Items.of(part_of(task, tables.tolist(), free))), model)
        assert part.items.task == anew.items.task
        assert part.items.items == anew.items.items
        for one, other in zip(part.items.limits, anew.items.limits, strict=True):
            np.testing.assert_array_equal(one, other)
        for field in fields(Catalog):
            if field.name != "items":
                np.testing.assert_array_equal(getattr(part, field.name), getattr(anew, field.name), field.name)
        pinned += bool(task.constraints.pinned)
        apart += len(part.items.limits.rivals) > 0
    assert min(pinned, apart) > 0
