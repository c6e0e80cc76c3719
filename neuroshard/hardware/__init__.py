"""Measure on real devices: FBGEMM kernels, torch.distributed exchanges and training steps, in worker processes."""

from neuroshard.hardware.hardware import Hardware
from neuroshard.hardware.runs import Outcome
from neuroshard.hardware.specs import DeviceSpec, EmbeddingSettings
from neuroshard.hardware.workers import Meter

__all__ = ["DeviceSpec", "EmbeddingSettings", "Hardware", "Meter", "Outcome"]
