"""Base classes of fitters. A fitter fits one kind of cost model to measurements; files in `conf/` select fitters."""

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

OnEpoch = Callable[[int, float], None]  # receives each epoch and the validation loss


class Fitter:
    """Base class of fitters. Each fitter fits cost models of one class, such as additive models.

    Attributes:
        goes_on_from: the kind of model that this fitter can fine-tune; None if it trains only from scratch.
    """

    goes_on_from: ClassVar[Any] = None

    @property
    def epochs(self) -> int:
        """The maximum number of training epochs; 1 if the fitter solves for the model directly."""
        return 1

    @property
    def further(self) -> Self:
        """A fitter of the same kind, with the settings for fine-tuning a model that was fitted on another machine."""
        return self


class ComputeFitter(Fitter, ABC):
    """Base class of fitters of compute models (of kernel times).
    Each fitter fits models of one class, such as additive models.
    """

    @abstractmethod
    def fit(self, measured: SplitMeasurements, start: Any, seed: int, on_epoch: OnEpoch) -> SumModel:
        """Fit a compute model to the training samples of kernel calls, and return the model. `start` is a model of the
        same kind to fine-tune; None fits a model from scratch.
        """


class CommFitter(Fitter, ABC):
    """Base class of fitters of communication models (of exchanges). Each fitter fits models of one class."""

    @abstractmethod
    def fit(self, measured: SplitMeasurements, direction: int, start: Any, seed: int, on_epoch: OnEpoch) -> CommModel:
        """Fit a communication model to the training samples of exchanges, and return the model. `start` is a model of
        the same kind to fine-tune; None fits a model from scratch.
        `direction` chooses which times of an exchange are used: FORWARD (devices start at different times) or BACKWARD
        (all devices start together).
        """


@dataclass(frozen=True)
@checked
class HiddenLayers(Fitter):
    """Base class of fitters that train one network, with the settings of its hidden layers and of the training.

    Attributes:
        hidden: list of widths of the hidden layers of each fitted network, such as [64,32].
        training: settings of the training.
    """

    hidden: Widths
    training: TrainingSettings = field(default_factory=TrainingSettings)

    @property
    def epochs(self) -> int:
        """The maximum number of training epochs."""
        return self.training.epochs


def compute_tables(measured: SplitMeasurements, features: FeatureSet) -> tuple[ComputeTable, ComputeTable]:
    """Return two `ComputeTable` values: the training samples and the validation samples. Each has the features of the
    tables and the measured kernel times as arrays.

    Raises:
        UserError: the samples have several batch sizes, which the features do not include.
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
    """Check that all samples have the same value, such as the same batch size, and return this value.

    Args:
        values: the value of each sample.
        name: plural name of the values, for the error.
        limit: why there may be only one value, for the error.
        remedy: what to do if there are several values, for the error.

    Raises:
        UserError: there are several different values.
    """
    different = sorted(set(values))
    if len(different) > 1:
        several = ", ".join(map(str, different))
        raise UserError(
            "samples-values-differ", f"the samples have several {name} ({several})", limit=limit, remedy=remedy
        )
    return different[0]
