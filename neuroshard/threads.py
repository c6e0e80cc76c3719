"""Threads of the libraries below: one is fastest for small arrays, and a busy neighbour doesn't slow it down."""

from contextlib import AbstractContextManager

from threadpoolctl import threadpool_limits


def blas_threads(count: int) -> AbstractContextManager[object]:
    """BLAS and OpenMP on so many threads inside, as before outside.

    Threads that wait for each other spin; where another process has one of the cores they spin for long. Looking up
    the libraries takes some milliseconds: for a whole run or search, not for a prediction.
    """
    limits: AbstractContextManager[object] = threadpool_limits(limits=count)
    return limits
