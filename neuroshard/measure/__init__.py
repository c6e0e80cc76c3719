"""Measure on real devices: FBGEMM kernels, torch.distributed exchanges, training steps and plans.

Worker processes measure; `store` has the measurements on disk.
"""

from neuroshard.measure._workers.runs import Outcome
from neuroshard.measure._workers.workers import Meter
from neuroshard.measure.hardware import Hardware
from neuroshard.measure.specs import DeviceSpec, EmbeddingSettings

__all__ = ["DeviceSpec", "EmbeddingSettings", "Hardware", "Meter", "Outcome"]
