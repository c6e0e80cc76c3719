"""What fits a model: one class for each form of model, chosen in `conf/`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from neuroshard.models import CommModel, SumModel
from neuroshard.models.features import FeatureSet
from neuroshard.plumbing.errors import UserError
from neuroshard.records.samples import Measurement
from neuroshard.stages.pretrain.examples import ComputeTable
from neuroshard.stages.pretrain.networks import checked_widths
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.stages.pretrain.training import TrainingSettings

OnEpoch = Callable[[int, float], None]  # told of every epoch and its loss on the validation set


class ComputeFitter(Protocol):
    """Fits compute models of one form."""

    goes_on_from: ClassVar[Any]  # the kind of model that `start` may be; None begins from nothing

    @property
    def epochs(self) -> int:
        """At most so many are trained."""
        ...

    def fit(self, measured: SplitMeasurements, start: Any, seed: int, on_epoch: OnEpoch) -> SumModel:
        """A model fitted to the training samples, from `start` (a model of the same form) or from nothing (None)."""
        ...


class CommFitter(Protocol):
    """Fits communication models of one form."""

    goes_on_from: ClassVar[Any]  # as for compute models

    @property
    def epochs(self) -> int:
        """At most so many are trained."""
        ...

    def fit(self, measured: SplitMeasurements, direction: int, start: Any, seed: int, on_epoch: OnEpoch) -> CommModel:
        """A model fitted to the training exchanges in one direction; `start` as for compute models."""
        ...


@dataclass(frozen=True)
class HiddenLayers:
    """What fitters of one network have in common.

    Attributes:
        hidden: widths of the network's hidden layers.
        training: how it is fitted.
    """

    hidden: tuple[int, ...]
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def __post_init__(self) -> None:
        checked_widths("hidden", self.hidden)

    @property
    def epochs(self) -> int:
        """At most so many are trained."""
        return self.training.epochs


def check_start(start: Any, fitter: ComputeFitter | CommFitter) -> None:
    """Raise UserError unless `start` is None or a model that the fitter can go on from."""
    if start is None or (fitter.goes_on_from is not None and isinstance(start, fitter.goes_on_from)):
        return
    can = "begins from nothing" if fitter.goes_on_from is None else f"goes on from {fitter.goes_on_from.kind!r} only"
    raise UserError(
        f"init is a model of the kind {start.kind!r}, and {type(fitter).__name__} {can}; "
        "choose the compute_model and comm_model of the bundle, or leave init out"
    )


def compute_tables(measured: SplitMeasurements, features: FeatureSet) -> tuple[ComputeTable, ComputeTable]:
    """Training and validation samples.

    Raises:
        UserError: they are of several batch sizes, which the features don't show.
    """
    if not features.sees_batch_size:
        only_value(batch_sizes(measured.everything), "batch sizes", "choose features=physical")
    return ComputeTable.of(measured.train, features), ComputeTable.of(measured.valid, features)


def only_value(values: Sequence[int], name: str, remedy: str) -> int:
    """The one value that all samples share.

    Raises:
        UserError: there are several.
    """
    different = sorted(set(values))
    if len(different) > 1:
        raise UserError(f"measured at {name} {', '.join(map(str, different))}; {remedy}")
    return different[0]


def batch_sizes(measurements: Sequence[Measurement[Any]]) -> list[int]:
    """(n,) global batch size of every sample."""
    return [measurement.sample.batch_size for measurement in measurements]
