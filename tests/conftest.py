"""What every test stands on: one thread of arithmetic, examples that repeat, no deadlines."""

import gc
import os

# Before numpy or torch are imported, and for every subprocess: idle threads that spin take the cores from whoever
# else works, and tests run side by side.
os.environ["OMP_NUM_THREADS"] = "1"

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
