"""Communication that costs nothing."""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.models.interface import CommModel
from neuroshard.plans.form import Form
from neuroshard.traffic import Traffic


@dataclass(frozen=True)
class FreeComm(CommModel):
    """Nothing besides waiting: for costs that are counted elsewhere, or left out on purpose."""

    @property
    def forms(self) -> frozenset[Form]:
        """Return all forms: whatever they exchange costs nothing."""
        return frozenset(Form)

    @property
    def num_devices(self) -> None:
        """None: it serves any number."""

    def transfer_ms(self, traffic: Traffic, wait_ms: FloatArray) -> FloatArray:
        """Return (B, D) zeros: transfers are free."""
        return np.zeros_like(wait_ms)
