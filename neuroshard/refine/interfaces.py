"""What a refine run is given by stages that it doesn't know: how samples are drawn, and how models learn."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from neuroshard.models import CostModels
from neuroshard.models.trust import Margins
from neuroshard.records.samples import CommSample, ComputeSample, Measurement
from neuroshard.records.splits import TableSplit


class DrawsCalls(Protocol):
    """Draws random combinations of tables."""

    @property
    def settings(self) -> dict[str, Any]:
        """What decides which are drawn."""
        ...

    def check(self, split: TableSplit) -> None:
        """Raise UserError unless it can draw from these tables."""
        ...

    def draw(self, split: TableSplit, batch_size: int, rng: np.random.Generator) -> tuple[ComputeSample, str]:
        """One combination at a global batch size, and the name of the split that its tables are of."""
        ...


class DrawsExchanges(Protocol):
    """Draws random exchanges."""

    @property
    def settings(self) -> dict[str, Any]:
        """What decides which are drawn."""
        ...

    def draw(
        self, num_devices: int, batch_size: int, rng: np.random.Generator, devices_per_host: int | None = None
    ) -> tuple[CommSample, str]:
        """One exchange, and the name of the split that it belongs to."""
        ...


class LearnsModels(Protocol):
    """What fits cost models further to new measurements."""

    def check(self, start: CostModels) -> None:
        """Raise UserError unless these models can be fitted further."""
        ...

    def fit(
        self,
        start: CostModels,
        calls: Sequence[Measurement[ComputeSample]],
        exchanges: Sequence[Measurement[CommSample]],
    ) -> CostModels:
        """The start's models fitted further to measurements that succeeded, with margins; their splits count."""
        ...

    def margins(
        self,
        start: CostModels,
        fitted: CostModels,
        calls: Sequence[Measurement[ComputeSample]],
        exchanges: Sequence[Measurement[CommSample]],
    ) -> Margins | None:
        """Of the fitted models: set on the validation samples where there are enough, else the start's."""
        ...
