"""Measuring on real devices: FBGEMM kernels, torch.distributed exchanges, timing, worker processes."""

from neuroshard.hardware.hardware import Hardware
from neuroshard.hardware.runs import Outcome
from neuroshard.hardware.specs import DeviceSpec, EmbeddingSettings, Link
from neuroshard.hardware.workers import Meter

__all__ = ["DeviceSpec", "EmbeddingSettings", "Hardware", "Link", "Meter", "Outcome"]
