"""The imports that worker processes need.
The process from which the workers are forked does these imports in advance.
"""

from contextlib import suppress
from warnings import catch_warnings, simplefilter

with suppress(Exception), catch_warnings():  # a worker that imports the same module reports the error
    simplefilter("ignore")
    import scipy.special  # noqa: F401  # used to draw hot rows

    import neuroshard.measure._exchange_bench
    import neuroshard.measure.kernels._compute_bench
    import neuroshard.measure.steps._mirror_bench  # noqa: F401  # imports TorchRec, if it is installed
