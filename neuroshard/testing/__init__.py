"""The kit that every searcher and cost model must pass, and small models with known answers to test with."""

from neuroshard.testing.conformance import (
    CommModelConformance,
    ComputeModelConformance,
    PhysicalCommConformance,
    PhysicalComputeConformance,
    SearcherConformance,
    SumModelConformance,
)
from neuroshard.testing.patience import PATIENCE_S
from neuroshard.testing.toys import (
    LinearComm,
    LinearCompute,
    OpaqueCompute,
    constrained_task,
    linear_models,
    random_by_collective,
    random_by_form,
    random_ensemble,
    random_form_models,
    random_models,
    random_regression,
    random_set_comm,
    shared_task,
    toy_tables,
    toy_task,
)

__all__ = [
    "PATIENCE_S",
    "CommModelConformance",
    "ComputeModelConformance",
    "LinearComm",
    "LinearCompute",
    "OpaqueCompute",
    "PhysicalCommConformance",
    "PhysicalComputeConformance",
    "SearcherConformance",
    "SumModelConformance",
    "constrained_task",
    "linear_models",
    "random_by_collective",
    "random_by_form",
    "random_ensemble",
    "random_form_models",
    "random_models",
    "random_regression",
    "random_set_comm",
    "shared_task",
    "toy_tables",
    "toy_task",
]
