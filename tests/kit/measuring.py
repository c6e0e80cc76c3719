"""What measures in tests: this machine's CPU, with as few repeats as there may be."""

from neuroshard.hardware import DeviceSpec, EmbeddingSettings, Hardware
from neuroshard.plumbing.timing import TimingProtocol
from tests.kit.processes import PATIENCE_S

QUICKLY = TimingProtocol(warmup=1, rounds=2, repeats_per_round=1, live=8, flush_bytes=0)
CPU = Hardware(DeviceSpec("cpu"), EmbeddingSettings(), QUICKLY, QUICKLY, timeout_s=PATIENCE_S)
