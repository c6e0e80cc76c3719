"""What a training step's time is charged to."""

from collections.abc import Callable
from typing import Any

import numpy as np

from neuroshard.hardware.device import Device
from neuroshard.hardware.step_samples import PHASES
from neuroshard.plumbing.arrays import FloatArray

INPUT, LOOKUPS, OUTPUT, DENSE, GRADIENTS, BACKWARD, ALL_REDUCE, OPTIMIZER = range(len(PHASES))


class PhaseClock:
    """Charges a device's time to the phase that was entered last."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._entered: list[tuple[int, Any]] = []

    def restart(self) -> None:
        """Forget all phases entered so far."""
        self._entered = []

    def enter(self, phase: int) -> None:
        """Charge the time from now on to this phase."""
        if not self._entered or self._entered[-1][0] != phase:
            self._entered.append((phase, self._device.moment()))

    def entering(self, phase: int) -> Callable[..., None]:
        """Make a hook that charges the time from its call on to this phase."""
        return lambda *_: self.enter(phase)

    def spent_ms(self) -> FloatArray:
        """(P,) until the last phase was entered; the device is synchronized."""
        spent = np.zeros(len(PHASES))
        for (phase, first), (_, second) in zip(self._entered, self._entered[1:], strict=False):
            spent[phase] += self._device.ms_between(first, second)
        return spent
