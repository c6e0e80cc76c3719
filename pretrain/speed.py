"""Communication models of another machine that are as fast as it is, and else as they were."""

from dataclasses import dataclass
from typing import Any, ClassVar

from neuroshard.errors import UserError
from neuroshard.models import CommModel
from neuroshard.models.set_comm import SetComm
from neuroshard.stages.pretrain.fitting import OnEpoch, check_start
from neuroshard.stages.pretrain.ratios import transfer_ratio
from neuroshard.stages.pretrain.scaled import scaled_comm
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements


@dataclass(frozen=True)
class Speed:
    """Multiplies the transfers of a model by one factor, the median of measured over predicted."""

    goes_on_from: ClassVar[Any] = SetComm

    @property
    def epochs(self) -> int:
        """1: nothing is tried twice."""
        return 1

    def fit(self, measured: SplitMeasurements, direction: int, start: Any, seed: int, on_epoch: OnEpoch) -> CommModel:
        """The model `start` at the speed of the training exchanges of two devices or more; nothing is random.

        Raises:
            UserError: there is no start, or it is of another form.
        """
        check_start(start, self)
        if start is None:
            raise UserError(
                "comm_model=speed multiplies models that there are, and init has none of some exchanges that were "
                "measured: choose comm_model=set"
            )
        train = [m for m in measured.train if m.sample.num_devices > 1]
        return scaled_comm(start, transfer_ratio(start, train, direction))
