"""Timing of a run on a device."""

from neuroshard.measure.device import CpuDevice
from tests.kit.messages import refused


class _Told(CpuDevice):
    """A device that records its calls in order."""

    def __init__(self, told):
        super().__init__(pin=False)
        self._told = told

    def occupy(self):
        self._told.append("occupied")

    def moment(self):
        self._told.append("moment")
        return super().moment()

    def synchronize(self):
        self._told.append("synchronized")


def test_time_ms_occupies_the_device_before_the_clock_starts_and_synchronizes_at_the_end():
    told = []
    assert _Told(told).time_ms(lambda: told.append("run")) >= 0
    assert told == ["occupied", "moment", "run", "moment", "synchronized"]


def test_flush_bytes_above_memory_are_refused_in_one_line():
    with refused("flush-bytes-too-large", names=["flush_bytes=4096", "1 KiB"]):
        CpuDevice(pin=False).set_aside(4096, 1024)
