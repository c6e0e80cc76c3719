"""What workers import, imported ahead by the process that they are forked from."""

from contextlib import suppress

with suppress(Exception):  # a worker that imports the same says what is wrong with it
    import neuroshard.hardware.compute_bench
    import neuroshard.hardware.exchange_bench  # noqa: F401
