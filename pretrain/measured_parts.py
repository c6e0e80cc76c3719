"""What models are fitted to one by one: kernel calls of one kind, and one collective in one direction of a step."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from neuroshard.models.named_parts import compute_part, exchange_part, of_calls, of_exchanges
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.records.sample_loads import loads_of, traffic_of
from neuroshard.records.samples import Measurement
from neuroshard.stages.pretrain.result import Predicted, predict_comm, predict_compute
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.words.collective import Collective
from neuroshard.words.form import Call


@dataclass(frozen=True)
class MeasuredCalls:
    """Kernel calls of one kind, with their measurements."""

    call: Call
    measured: SplitMeasurements

    @property
    def name(self) -> str:
        """Return the name of the model that is fitted to them: "compute", "compute.rows"."""
        return compute_part(self.call)

    def predict(self, model: Any, some: list[Measurement[Any]]) -> Predicted:
        """Predict some of the calls by their model."""
        return predict_compute(model, some)

    def quantities(self) -> dict[str, FloatArray]:
        """Return what their costs hang on in the training samples, by name."""
        return of_calls(loads_of([m.sample for m in self.measured.train]))


@dataclass(frozen=True)
class MeasuredExchange:
    """One collective in one direction, with its measurements.

    Attributes:
        direction: "forward" or "backward".
        repeats: the direction whose repeats say what it takes, `records.FORWARD` or `records.BACKWARD`.
    """

    direction: str
    collective: Collective
    repeats: int
    measured: SplitMeasurements

    @property
    def name(self) -> str:
        """Return the name of the model that is fitted to it: "forward", "backward.all_reduce", "input"."""
        return exchange_part(self.direction, self.collective)

    def predict(self, model: Any, some: list[Measurement[Any]]) -> Predicted:
        """Predict some of the exchanges, every device, by their model."""
        return predict_comm(model, some, self.repeats)

    def quantities(self) -> dict[str, FloatArray]:
        """Return what its costs hang on in the training samples, by name."""
        each = [of_exchanges(traffic_of([m.sample])) for m in self.measured.train]
        return {name: np.concatenate([one[name] for one in each]) for name in each[0]}


MeasuredPart = MeasuredCalls | MeasuredExchange
