"""Cost models that leave something out on purpose: exchanges, or that kernels serve many tables."""

from dataclasses import dataclass

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.cost.traffic import Traffic
from neuroshard.layouts import LAYOUTS
from neuroshard.models.interface import CommModel, ComputeModel, ReluHead, SumModel
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.words.collective import IN_STEP, Collective
from neuroshard.words.form import Call


@dataclass(frozen=True)
class FreeComm(CommModel):
    """Nothing besides waiting: for costs that are counted elsewhere, or left out on purpose."""

    @property
    def collectives(self) -> frozenset[Collective]:
        """Return all of a step: whatever is exchanged costs nothing."""
        return IN_STEP

    @property
    def num_devices(self) -> None:
        """None: it serves any number."""

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Return (B, D) zeros: transfers are free."""
        return np.zeros_like(wait_ms)


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
        return frozenset(call for call in self.fused.calls if LAYOUTS[call.form].free)

    @property
    def head(self) -> ReluHead:
        """A head that leaves a sum of costs as it is."""
        return ReluHead.of_cost()

    def embed(self, loads: Loads) -> Float32Array:
        """(n, 1) the cost of each load alone, ms."""
        return self.fused.predict(LoadSets.alone(loads))[:, None].astype(np.float32)
