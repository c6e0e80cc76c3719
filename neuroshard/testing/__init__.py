"""Test classes that every searcher and cost model must pass, and small tasks and models with known results."""

from neuroshard.testing.conformance import (
    CommModelConformance,
    ComputeModelConformance,
    PhysicalCommConformance,
    PhysicalComputeConformance,
    SearcherConformance,
    SumModelConformance,
)
from neuroshard.testing.toys import (
    ONCE,
    LinearComm,
    LinearCompute,
    OpaqueCompute,
    constrained_task,
    linear_models,
    random_models,
    sequence_task,
    shared_task,
    toy_tables,
    toy_task,
)

__all__ = [
    "ONCE",
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
    "random_models",
    "sequence_task",
    "shared_task",
    "toy_tables",
    "toy_task",
]
