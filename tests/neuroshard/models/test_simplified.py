"""Tables computed one after the other, whatever the form of the model that says what each costs."""

import pytest

from neuroshard.cost.loads import LoadSets
from neuroshard.models.simplified import OneByOne
from neuroshard.testing import OpaqueCompute, SumModelConformance, random_models, toy_tables


class TestOneByOneOfSums(SumModelConformance):
    def make(self):
        return OneByOne(random_models().compute)


class TestOneByOneOfAnyForm(SumModelConformance):
    def make(self):
        return OneByOne(OpaqueCompute())


@pytest.mark.parametrize("fused", [random_models().compute, OpaqueCompute()])
def test_a_device_costs_what_its_tables_cost_alone(fused):
    tables = toy_tables(7)
    alone = fused.predict(LoadSets.of([[table] for table in tables], 256))
    (together,) = OneByOne(fused).predict(LoadSets.of([tables], 256))
    assert together == pytest.approx(alone.sum(), rel=1e-5)
