"""What fits a model: one class for each kind of model, chosen in `conf/`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from neuroshard.models import CommModel, SumModel
from neuroshard.models.features import FeatureSet
from neuroshard.models.perceptron import Widths
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.pretrain.examples import ComputeTable
from neuroshard.stages.pretrain.measurements import SplitMeasurements
from neuroshard.stages.pretrain.training import TrainingSettings

OnEpoch = Callable[[int, float], None]  # told of every epoch and its loss on the validation set


class Fitter:
    """A fitter of models of one kind.

    Attributes:
        goes_on_from: the kind of model that it goes on from; None: it begins from nothing.
    """

    goes_on_from: ClassVar[Any] = None

    @property
    def epochs(self) -> int:
        """The epochs that are trained at most; 1 where all is solved for at once."""
        return 1

    @property
    def further(self) -> Self:
        """The fitter that goes on from a model of another machine, with settings for that."""
        return self


class ComputeFitter(Fitter, ABC):
    """A fitter of compute models of one kind."""

    @abstractmethod
    def fit(self, measured: SplitMeasurements, start: Any, seed: int, on_epoch: OnEpoch) -> SumModel:
        """Fit a model to the training samples, from `start` (a model of the same kind) or from nothing (None)."""


class CommFitter(Fitter, ABC):
    """A fitter of communication models of one kind."""

    @abstractmethod
    def fit(self, measured: SplitMeasurements, direction: int, start: Any, seed: int, on_epoch: OnEpoch) -> CommModel:
        """Fit a model to the training exchanges in one direction; `start` as for compute models."""


@dataclass(frozen=True)
@checked
class HiddenLayers(Fitter):
    """What fitters of one network have in common.

    Attributes:
        hidden: list of widths of the hidden layers of each fitted network, such as [64,32].
        training: settings of the training.
    """

    hidden: Widths
    training: TrainingSettings = field(default_factory=TrainingSettings)

    @property
    def epochs(self) -> int:
        """The epochs that are trained at most."""
        return self.training.epochs


def compute_tables(measured: SplitMeasurements, features: FeatureSet) -> tuple[ComputeTable, ComputeTable]:
    """Gather training and validation samples as arrays.

    Raises:
        UserError: they are of several batch sizes, which the features don't show.
    """
    if not features.sees_batch_size:
        only_value(
            [m.sample.batch_size for m in measured.everything],
            "batch sizes",
            f"features={features.name} (in compute_model) does not include the batch size, so all samples must have "
            "the same batch size",
            "Set features (in compute_model) to physical or physical_reuse",
        )
    return ComputeTable.of(measured.train, features), ComputeTable.of(measured.valid, features)


def only_value(values: Sequence[int], name: str, limit: str, remedy: str) -> int:
    """Return the value that all samples share.

    Args:
        values: the value of each sample.
        name: plural name of the values, for the error.
        limit: why there may be only one, for the error.
        remedy: what to do if there are several, for the error.

    Raises:
        UserError: there are several.
    """
    different = sorted(set(values))
    if len(different) > 1:
        several = ", ".join(map(str, different))
        raise UserError(
            "samples-values-differ", f"the samples have several {name} ({several})", limit=limit, remedy=remedy
        )
    return different[0]
