"""Searchers that search with changed cost models, such as models without exchange times. Experiments compare the plans
of these searchers with other plans, to learn how much a part of the cost models contributes to good plans.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from neuroshard.models import CostModels, FreeComm
from neuroshard.models.kernels import KernelModels
from neuroshard.models.simulator import Simulator
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.tasks.task import Task


class ModelChange(ABC):
    """Base class of changes to the cost models that a search uses, such as exchanges that take no time. Experiments use
    such changes to learn how much a part of the cost models contributes to good plans.
    """

    @abstractmethod
    def of(self, models: CostModels) -> CostModels:
        """Return the changed cost models, which the searcher uses instead of `models`."""

    def reads(self) -> tuple[str, ...]:
        """Return the digests (hashes) of the files with cost models that this `ModelChange` loads. The tuple is empty
        if the `ModelChange` loads no files.
        """
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
        """True if the method `searcher` places sequence tables (tables without pooling)."""
        return self.searcher.takes_sequences

    def reads(self) -> tuple[str, ...]:
        """Return the digests (hashes) of the files that the method `searcher` and the change of cost models read."""
        return (*self.searcher.reads(), *self.models.reads())

    def find(self, task: Task, simulator: Simulator) -> Found:
        """Search with the changed cost models, by the method `searcher`, and return the result."""
        return self.searcher.find(task, Simulator(self.models.of(simulator.models)))


@dataclass(frozen=True)
class NoCommunication(ModelChange):
    """A change of the cost models: communication takes no time, so that the search balances compute alone."""

    def of(self, models: CostModels) -> CostModels:
        """Return models with the same compute model and with communication that takes no time."""
        return models.with_forward(FreeComm()).with_backward(FreeComm())


@dataclass(frozen=True)
class SingleTableCosts(ModelChange):
    """A change of the cost models: a device computes its tables one after the other, each table in a separate kernel
    call.
    """

    def of(self, models: CostModels) -> CostModels:
        """Return the cost models with another compute model, which adds up single-table costs. The compute cost of a
        device is the sum over the shards on the device. The summand of a shard is the predicted time of a kernel call
        with only this shard.
        """
        return models.with_compute(KernelModels.one_by_one(models.compute))


@dataclass(frozen=True)
class OtherModels(ModelChange):
    """A change of the cost models: a searcher uses the cost models in `model` instead of the given cost models.

    Attributes:
        model: required: cost models that guide the search, as an installed name (`neuroshard models` lists them) or a
            directory that `neuroshard pretrain` wrote; the models of model= predict the reported cost of the final
            plan.
    """

    model: str

    def of(self, models: CostModels) -> CostModels:
        """Return the cost models that are loaded from `model` (a directory or an installed name). The searcher uses
        these cost models instead of `models`.
        """
        return CostModels.load(self.model)

    def reads(self) -> tuple[str, ...]:
        """Return the digest (hash) of the cost models in `model`, or an empty tuple if these cost models have no
        digest.
        """
        digest = CostModels.load(self.model).digest
        return () if digest is None else (digest,)
