"""Made-up devices with known costs, so that tests can compare predicted gains with true gains."""

from tests.kit.devices.made_up import MADE_UP, MadeUpDevice, MadeUpExchange, measured_comm, measured_compute
from tests.kit.devices.made_up_kernels import MadeUpCpu, MadeUpGpu

__all__ = ["MADE_UP", "MadeUpCpu", "MadeUpDevice", "MadeUpExchange", "MadeUpGpu", "measured_comm", "measured_compute"]
