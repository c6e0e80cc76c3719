"""What devices would cost if they computed their tables one after the other."""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import Float32Array
from neuroshard.loads import Loads, LoadSets
from neuroshard.models.interface import ComputeModel, ReluHead, SumModel
from neuroshard.plans.form import Call, Form


@dataclass(frozen=True)
class OneByOne(SumModel):
    """A compute model by which a device's cost is the sum of its loads', each computed alone.

    Attributes:
        fused: says what a load alone costs; of any form.
    """

    fused: ComputeModel

    @property
    def calls(self) -> frozenset[Call]:
        """Those of columns that `fused` knows."""
        return frozenset(call for call in self.fused.calls if call.form is Form.COLUMNS)

    @property
    def head(self) -> ReluHead:
        """A head that leaves a sum of costs as it is."""
        return ReluHead.of_cost()

    def embed(self, loads: Loads) -> Float32Array:
        """(n, 1) the cost of each load alone, ms."""
        return self.fused.predict(LoadSets.alone(loads))[:, None].astype(np.float32)
