"""How many threads the libraries below work with, chosen where they are used and undone after.

One is right for small arrays: more wait for each other, spinning, for a busy neighbour most of all, and change the
order of sums; with one, a run repeats bit for bit on any number of cores.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from threadpoolctl import threadpool_limits


def blas_threads(count: int) -> AbstractContextManager[object]:
    """BLAS and OpenMP on `count` threads inside, as before outside.

    Looking up the libraries takes some milliseconds: for a whole run or search, not for a prediction.
    """
    limits: AbstractContextManager[object] = threadpool_limits(limits=count)
    return limits


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Torch on `count` threads inside, as before outside."""
    import torch  # slow to import: not with this module

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
