"""What workers import, imported ahead by the process that they are forked from."""

from contextlib import suppress
from warnings import catch_warnings, simplefilter

with suppress(Exception), catch_warnings():  # a worker that imports the same says what is wrong with it
    simplefilter("ignore")
    import scipy.special  # noqa: F401  # of hot rows

    import neuroshard.hardware.compute_bench
    import neuroshard.hardware.exchange_bench
    import neuroshard.hardware.mirror_bench  # noqa: F401  # and TorchRec, where there is one
