"""How many threads a library works with, chosen where it is used and undone after."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Torch on `count` threads inside, as before outside.

    One is right for small networks: more threads wait for each other, for a busy neighbour most of all, and change the
    order of sums; with one, a run repeats bit for bit on any number of cores.
    """
    import torch  # slow to import: not with this module

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
