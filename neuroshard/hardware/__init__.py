"""Measuring on real devices: FBGEMM kernels, torch.distributed exchanges, timing, worker processes."""

from neuroshard.hardware.hardware import Hardware, Meter
from neuroshard.hardware.runs import Outcome
from neuroshard.hardware.specs import DeviceSpec, EmbeddingSettings, Link

__all__ = ["DeviceSpec", "EmbeddingSettings", "Hardware", "Link", "Meter", "Outcome"]
