"""Functions that choose or limit the number of threads of BLAS, OpenMP, torch and the loops of this package.

One thread is right for small arrays. Several threads wait for each other in busy loops, most of all while another
process is busy, and they change the order of sums. With one thread a run repeats bit for bit on any number of cores.
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
_WORTH_THREADS = 1 << 15  # steps of compiled loops, some milliseconds; starting threads takes about 0.1 ms


def useful_threads(steps: int) -> int:
    """Return the number of threads, 1 to 8, to use for compiled loops that have about `steps` steps in total.

    This is 1 for less than 32,768 steps, or else the number of cores that this process may use, at most 8.
    """
    if steps < _WORTH_THREADS:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_THREADS)


def in_threads(work: Callable[[_Item], _Result], items: Sequence[_Item], threads: int) -> list[_Result]:
    """Call `work` on every item in at most `threads` threads; return the results in the order of the items.

    Threads help only if `work` releases Python's lock.
    """
    if min(len(items), threads) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(len(items), threads)) as pool:
        return list(pool.map(work, items))


def blas_threads(count: int) -> AbstractContextManager[object]:
    """Return a context manager that limits BLAS and OpenMP to `count` threads; on exit, the former limits are restored.

    Entering takes some milliseconds to find the libraries: use this for a whole run or search, not for a prediction.
    """
    limits: AbstractContextManager[object] = threadpool_limits(limits=count)
    return limits


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads while the block runs; afterwards, restore the former number of threads."""
    import torch  # slow to import: not with this module

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
