"""The cost of a plan, by device and part."""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import FloatArray


@dataclass(frozen=True)
class Cost:
    """Milliseconds of each part on each device: `compute`, `forward` and `backward` are (D,).

    A step runs backward communication, then compute (fused backward and forward), then forward communication;
    a device's cost is their sum, the plan's cost the largest of them ("embedding cost" in NeuroShard, section 2).

    `margin` is (D,) half the width of an interval around every device's sum that is meant to hold 90% of measurements;
    None where nothing is known of it.
    """

    compute: FloatArray
    forward: FloatArray
    backward: FloatArray
    margin: FloatArray | None = None

    @property
    def device_ms(self) -> FloatArray:
        """(D,) sum of the parts."""
        return self.compute + self.forward + self.backward

    @property
    def total_ms(self) -> float:
        """The plan's cost: the slowest device's sum."""
        return float(np.max(self.device_ms))

    @property
    def margin_ms(self) -> float:
        """Of the plan's cost: the slowest device's; NaN where nothing is known of it."""
        return float("nan") if self.margin is None else float(self.margin[np.argmax(self.device_ms)])

    def __str__(self) -> str:
        rows = [
            f"device {i}: compute {c:.3f} + forward {f:.3f} + backward {b:.3f} = {c + f + b:.3f} ms"
            for i, (c, f, b) in enumerate(zip(self.compute, self.forward, self.backward, strict=True))
        ]
        margin = "" if self.margin is None else f" +- {self.margin_ms:.3f}"
        return "\n".join([*rows, f"total_ms {self.total_ms:.3f}{margin}"])
