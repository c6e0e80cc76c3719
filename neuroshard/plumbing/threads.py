"""The number of threads of the libraries below: set for a block of code and restored after it.

One is right for small arrays: more wait for each other, spinning, for a busy neighbour most of all, and change the
order of sums; with one, a run repeats bit for bit on any number of cores.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from threadpoolctl import threadpool_limits

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_MOST_THREADS = 8
_WORTH_THREADS = 1 << 15  # steps of compiled loops: some milliseconds, where starting threads takes a tenth of one


def useful_threads(steps: int) -> int:
    """Return the number of threads for work of about `steps` steps of compiled loops.

    One for little work, or else one for each core that this process may use, at most 8.
    """
    if steps < _WORTH_THREADS:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_THREADS)


def in_threads(work: Callable[[_Item], _Result], items: Sequence[_Item], threads: int) -> list[_Result]:
    """Call `work` on every item, in at most `threads` threads; return the results in order.

    Threads help only if `work` releases Python's lock.
    """
    if min(len(items), threads) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(len(items), threads)) as pool:
        return list(pool.map(work, items))


def blas_threads(count: int) -> AbstractContextManager[object]:
    """Run BLAS and OpenMP on `count` threads inside, as before outside.

    Looking up the libraries takes some milliseconds: for a whole run or search, not for a prediction.
    """
    limits: AbstractContextManager[object] = threadpool_limits(limits=count)
    return limits


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run torch on `count` threads inside, as before outside."""
    import torch  # slow to import: not with this module

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
