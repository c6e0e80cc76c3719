"""Communication that costs nothing."""

from dataclasses import dataclass

from neuroshard.arrays import FloatArray
from neuroshard.models.interface import CommModel


@dataclass(frozen=True)
class FreeComm(CommModel):
    """Nothing besides waiting: for costs that are counted elsewhere, or left out on purpose."""

    @property
    def num_devices(self) -> None:
        """None: it serves any number."""

    def predict(self, dims: FloatArray, start_ms: FloatArray, batch_size: int) -> FloatArray:
        """(B, D) ms until the last device has started, which is all that such an exchange takes."""
        waiting: FloatArray = start_ms.max(axis=1, keepdims=True) - start_ms
        return waiting
