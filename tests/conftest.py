"""Settings of all tests: one thread of arithmetic, repeatable examples without deadlines, and restored logging."""

import gc
import logging
import os
from collections.abc import Iterator

# Set before numpy or torch are imported, and for every subprocess: idle threads that spin would take the cores from
# other tests, which run at the same time.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import HealthCheck, settings

slow_is_fine = [HealthCheck.too_slow]
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, max_examples=50, suppress_health_check=slow_is_fine
)
settings.load_profile("repeatable")

gc.disable()


def pytest_collection_finish() -> None:
    """Exempt imported modules and collected tests from garbage collection, which took 5% of the time of tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo the changes of Hydra to logging after each test, because later tests read log records."""
    root, raises = logging.getLogger(), logging.raiseExceptions
    level, before = root.level, set(root.handlers)
    yield
    root.setLevel(level)
    logging.raiseExceptions = raises
    for handler in [one for one in root.handlers if one not in before and type(one) in _HYDRAS]:
        root.removeHandler(handler)


_HYDRAS = (logging.StreamHandler, logging.FileHandler)  # the types of Hydra's handlers; pytest has other types
