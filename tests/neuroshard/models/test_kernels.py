"""Models of kernel calls: several calls of a device as one sum, and tables computed one after the other."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.models import CostModels, ReluHead, SumModel
from neuroshard.models.kernels import KernelModels
from neuroshard.plumbing.grouping import grouped
from neuroshard.testing import (
    LinearCompute,
    OpaqueCompute,
    SumModelConformance,
    random_models,
    sequence_task,
    toy_tables,
)
from neuroshard.words.form import COLUMN_WISE_CALL, Call, Form
from tests.kit.devices import MADE_UP
from tests.kit.random_models import random_by_form

TABLES = sequence_task(14).tables
ALL = Loads.of(TABLES, 256)


class WithOffset(LinearCompute):
    """A call costs something by itself, and its hidden layer gives something for a sum of 0."""

    calls = frozenset({COLUMN_WISE_CALL, Call(Form.COLUMN_WISE, False)})

    @property
    def head(self):
        return ReluHead(np.full(1, 0.3, np.float32), np.ones(1, np.float32), 0.7, 2.0)


class TestConsecutive(SumModelConformance):
    def make(self):
        return random_by_form().of_columns(ALL)

    def _tables(self):
        return TABLES


@pytest.mark.parametrize("model", [random_by_form(), CostModels.load("roofline:h100").compute, WithOffset()])
def test_device_with_two_calls_costs_the_sum_of_both(model):
    rng, pooled, sequences = np.random.default_rng(0), TABLES[1::2], TABLES[::2]
    sets = [pooled[:3], sequences[:2], (), TABLES]
    sets += [tuple(TABLES[i] for i in rng.choice(14, size=n, replace=False)) for n in range(1, 12)]
    together = KernelModels.of(model).of_columns(ALL)
    assert isinstance(together, SumModel)
    calls = [list(grouped(some, lambda its: its.pooled or its.dim).values()) for some in sets]
    expected = [model.predict(LoadSets.of(its, 256)).sum() for its in calls]
    np.testing.assert_allclose(together.predict(LoadSets.of(sets, 256)), expected, rtol=1e-4, atol=1e-6)


def test_single_call_is_predicted_by_its_own_model():
    model = random_by_form()
    assert model.of_columns(Loads.of(TABLES[1::2], 256)) is model.of_call(Call(Form.COLUMN_WISE))
    of_one_width = [replace(its, dim=16) for its in TABLES[::2]]
    assert model.of_columns(Loads.of(of_one_width, 256)) is model.of_call(Call(Form.COLUMN_WISE, False))


@pytest.mark.parametrize("model", [random_by_form(), CostModels.load("roofline:h100").compute])
def test_tables_of_two_data_types_are_looked_up_by_two_kernels(model):
    full = TABLES[1::2]
    half = tuple(replace(its, bytes_per_element=2) for its in full)
    together = model.of_columns(Loads.of(full + half, 256))
    own_ms = model.predict(LoadSets.of([full, half], 256))
    np.testing.assert_allclose(
        together.predict(LoadSets.of([full + half, full], 256)), [own_ms.sum(), own_ms[0]], rtol=1e-4
    )


@pytest.mark.parametrize(("model", "tables"), [(MADE_UP["gpu"].compute, TABLES), (OpaqueCompute(), TABLES[1::2])])
def test_nearest_sum_model_is_exact_for_evenly_spread_tables(model, tables):
    """Devices have several kernel calls, one after the other."""
    loads = Loads.of(tables, 256)
    near = KernelModels.nearest(model, loads, 2)
    assert near.calls == model.calls
    dealt = LoadSets.of([tables[::2], tables[1::2]], 256)
    assert near.device_ms(dealt).sum() == pytest.approx(model.device_ms(dealt).sum(), rel=1e-5)
    together, share = near.of_columns(loads), near.by_call[COLUMN_WISE_CALL].share
    np.testing.assert_allclose(together.predict(dealt), near.device_ms(dealt), rtol=1e-5)
    alone = LoadSets.of([[table] for table in tables], 256)
    np.testing.assert_allclose(together.predict(alone), share * model.predict(alone), rtol=1e-5)


def test_nearest_returns_sum_models_unchanged():
    model = random_by_form()
    assert KernelModels.nearest(model, ALL, 2) is model
    nothing = KernelModels.nearest(OpaqueCompute(), ALL.take(np.zeros(0, dtype=np.int64)), 2)
    assert nothing.by_call[COLUMN_WISE_CALL].share == 1


@pytest.mark.parametrize("fused", [random_models().compute, OpaqueCompute()])
def test_one_by_one_costs_a_device_as_the_sum_of_its_tables_alone(fused):
    tables = toy_tables(7)
    alone = fused.predict(LoadSets.of([[table] for table in tables], 256))
    (together,) = KernelModels.one_by_one(fused).predict(LoadSets.of([tables], 256))
    assert together == pytest.approx(alone.sum(), rel=1e-5)
