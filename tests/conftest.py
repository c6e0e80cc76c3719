"""What every test stands on: one thread of arithmetic, examples that repeat, no deadlines, logging as it was."""

import gc
import logging
import os
from collections.abc import Iterator

# Before numpy or torch are imported, and for every subprocess: idle threads that spin take the cores from whoever
# else works, and tests run side by side.
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
    """Let the garbage collector pass over what was imported and collected: it stays, and took it 5% of the time."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what Hydra does to logging when a test runs a command in this process: tests after it read log records."""
    root, raises = logging.getLogger(), logging.raiseExceptions
    level, before = root.level, set(root.handlers)
    yield
    root.setLevel(level)
    logging.raiseExceptions = raises
    for handler in [one for one in root.handlers if one not in before and type(one) in _HYDRAS]:
        root.removeHandler(handler)


_HYDRAS = (logging.StreamHandler, logging.FileHandler)  # the types of Hydra's handlers; pytest's are others
