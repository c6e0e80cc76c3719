"""Searchers with changed cost models, which measure how much a part of the cost models contributes to plans."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from neuroshard.models import CostModels, FreeComm
from neuroshard.models.kernels import KernelModels
from neuroshard.models.simulator import Simulator
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.tasks.task import Task


class ModelChange(ABC):
    """A change of the cost models that a searcher uses, in place of the cost models of the simulator."""

    @abstractmethod
    def of(self, models: CostModels) -> CostModels:
        """Return the changed cost models, which the searcher uses instead of `models`."""

    def reads(self) -> tuple[str, ...]:
        """List the digests of the files from which this change loads cost models; empty if there are none."""
        return ()


@dataclass(frozen=True)
class WithModels(Searcher):
    """A searcher that searches with changed cost models; the unchanged models predict the reported costs.

    Attributes:
        searcher: searcher that sees the changed cost models.
        models: change of the cost models.
    """

    searcher: Searcher
    models: ModelChange

    @property
    def takes_sequences(self) -> bool:
        """True if the inner searcher places sequence tables."""
        return self.searcher.takes_sequences

    def reads(self) -> tuple[str, ...]:
        """List the digests of the files that the inner searcher and the change read."""
        return (*self.searcher.reads(), *self.models.reads())

    def find(self, task: Task, simulator: Simulator) -> Found:
        """Return the result of the inner searcher, which searches with the changed cost models."""
        return self.searcher.find(task, Simulator(self.models.of(simulator.models)))


@dataclass(frozen=True)
class NoCommunication(ModelChange):
    """Cost models in which communication takes no time, so that the search balances compute alone."""

    def of(self, models: CostModels) -> CostModels:
        """Return models with the same compute model and with communication that takes no time."""
        return models.with_forward(FreeComm()).with_backward(FreeComm())


@dataclass(frozen=True)
class SingleTableCosts(ModelChange):
    """Cost models in which a device computes its tables one after the other, each table in a separate kernel call."""

    def of(self, models: CostModels) -> CostModels:
        """Return the models with another compute cost of a device: the sum of the costs of all tables, each alone."""
        return models.with_compute(KernelModels.one_by_one(models.compute))


@dataclass(frozen=True)
class OtherModels(ModelChange):
    """Cost models of another bundle.

    Attributes:
        model: required: cost models that guide the search, as an installed name (`neuroshard models` lists them) or a
            directory that `neuroshard pretrain` wrote; the models of model= predict the reported cost of the final
            plan.
    """

    model: str

    def of(self, models: CostModels) -> CostModels:
        """Load the cost models of the other bundle; `models` does not matter."""
        return CostModels.load(self.model)

    def reads(self) -> tuple[str, ...]:
        """Return the digest of the other bundle, if the bundle has a digest."""
        digest = CostModels.load(self.model).digest
        return () if digest is None else (digest,)
