"""A searcher that sees less than the simulator that judges it: what a part of the cost models is worth."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from neuroshard.models import CostModels, FreeComm
from neuroshard.models.kernels import KernelModels
from neuroshard.models.simulator import Simulator
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.tasks.task import Task


class ModelChange(ABC):
    """Other cost models in place of the simulator's."""

    @abstractmethod
    def of(self, models: CostModels) -> CostModels:
        """Return the cost models that the searcher gets to see, instead of `models`."""

    def reads(self) -> tuple[str, ...]:
        """List the digests of the files that the change reads."""
        return ()


@dataclass(frozen=True)
class WithModels(Searcher):
    """A searcher that searches with changed cost models; its plans are judged by the unchanged ones.

    Attributes:
        searcher: searcher that sees the changed cost models.
        models: change of the cost models.
    """

    searcher: Searcher
    models: ModelChange

    @property
    def takes_sequences(self) -> bool:
        """True if the searcher inside places sequence tables."""
        return self.searcher.takes_sequences

    def reads(self) -> tuple[str, ...]:
        """List what the searcher and the change read."""
        return (*self.searcher.reads(), *self.models.reads())

    def find(self, task: Task, simulator: Simulator) -> Found:
        """Find what the searcher finds with the changed models."""
        return self.searcher.find(task, Simulator(self.models.of(simulator.models)))


@dataclass(frozen=True)
class NoCommunication(ModelChange):
    """Models of free communication, so that compute alone is balanced."""

    def of(self, models: CostModels) -> CostModels:
        """Keep the compute model, with communication that costs nothing."""
        return models.with_forward(FreeComm()).with_backward(FreeComm())


@dataclass(frozen=True)
class SingleTableCosts(ModelChange):
    """Models of devices that compute as long as their tables would one after the other, each in a kernel of its own."""

    def of(self, models: CostModels) -> CostModels:
        """Keep the models, but for a device's compute cost: the sum of its tables', each alone."""
        return models.with_compute(KernelModels.one_by_one(models.compute))


@dataclass(frozen=True)
class OtherModels(ModelChange):
    """Another bundle's models.

    Attributes:
        model: required: cost models that guide the search, as an installed name (`neuroshard models` lists them) or a
            directory that `neuroshard pretrain` wrote; the models of model= predict the reported cost of the final
            plan.
    """

    model: str

    def of(self, models: CostModels) -> CostModels:
        """Load the other bundle's models, whatever `models` are."""
        return CostModels.load(self.model)

    def reads(self) -> tuple[str, ...]:
        """Return the digest of the other bundle, if it has one."""
        digest = CostModels.load(self.model).digest
        return () if digest is None else (digest,)
