from neuroshard.testing import (
    CommModelConformance,
    ComputeModelConformance,
    LinearComm,
    LinearCompute,
    random_models,
)


class TestNeuralCompute(ComputeModelConformance):
    def make(self):
        return random_models().compute


class TestLinearCompute(ComputeModelConformance):
    def make(self):
        return LinearCompute()


class TestNeuralComm(CommModelConformance):
    def make(self):
        return random_models().forward


class TestLinearComm(CommModelConformance):
    def make(self):
        return LinearComm(4)
