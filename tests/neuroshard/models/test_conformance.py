from neuroshard.testing import (
    CommModelConformance,
    ComputeModelConformance,
    LinearComm,
    LinearCompute,
    OpaqueCompute,
    SumModelConformance,
    random_models,
)


class TestNeuralCompute(SumModelConformance):
    def make(self):
        return random_models().compute


class TestLinearCompute(SumModelConformance):
    def make(self):
        return LinearCompute()


class TestOpaqueCompute(ComputeModelConformance):
    def make(self):
        return OpaqueCompute()


class TestNeuralComm(CommModelConformance):
    def make(self):
        return random_models().forward


class TestLinearComm(CommModelConformance):
    def make(self):
        return LinearComm(4)
