"""How a run is timed on a device."""

from neuroshard.measure.device import CpuDevice
from tests.kit.messages import refused


class _Told(CpuDevice):
    """Tells what it is asked to do, in order."""

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


def test_a_device_is_busy_before_the_clock_starts_and_done_when_it_is_read():
    told = []
    assert _Told(told).time_ms(lambda: told.append("run")) >= 0
    assert told == ["occupied", "moment", "run", "moment", "synchronized"]


def test_more_to_flush_the_cache_with_than_there_is_memory_is_one_line():
    with refused("flush-bytes-too-large", names=["flush_bytes=4096", "1 KiB"]):
        CpuDevice(pin=False).set_aside(4096, 1024)
