"""The group of processes that measure samples together, one process per device.
This code runs in each of these processes.
"""

import gc
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import numpy as np
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from neuroshard.measure._workers.runs import Outcome
from neuroshard.measure._workers.workers import Bench, Joining, Meter, Sample
from neuroshard.measure.device import make_device
from neuroshard.measure.store.samples import Repeats
from neuroshard.plumbing.arrays import FloatArray

_IDLE = timedelta(days=7)  # followers wait while rank 0 measures kernel calls
_LEADING = "neuroshard/leading"
_Batch = tuple[list[Sample], list[int]]


class Group:
    """The group of processes that measure together, as seen by one of the processes.
    The processes exchange start times and results on a separate channel, which is not measured.

    Agreements must not use the process group that is being measured.
    """

    def __init__(self, timeout_s: float) -> None:
        self.control = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s)))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def barrier(self) -> None:
        """Wait until all processes of the group call this method."""
        dist.barrier(group=self.control)

    def combined(self, own: list[Outcome]) -> list[Outcome]:
        """Gather the outcomes of all D processes, and return one outcome for each sample.
        `own` has the outcomes that this process measured. In a returned outcome, the array of times has an additional
        last axis of length D: the times that each process measured.
        """
        gathered: list[list[Outcome] | None] = [None] * self.size
        dist.all_gather_object(gathered, own, group=self.control)
        return [_combine(list(each)) for each in zip(*(outcomes or [] for outcomes in gathered), strict=True)]


def _combine(outcomes: list[Outcome]) -> Outcome:
    """Combine the outcomes of D processes for the same sample into one outcome.
    The outcome of one process has the times of R repeats, (R, ...). The combined outcome has the times of all
    processes, (R, ..., D). If a process has an error, the combined outcome has this error.
    """
    busy_s = max(outcome.busy_s for outcome in outcomes)
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if errors:
        return Outcome(None, errors[0], busy_s)
    repeats = [outcome.repeats for outcome in outcomes if outcome.repeats is not None]
    times: FloatArray = np.stack([repeat.times_ms for repeat in repeats], axis=-1)
    return Outcome(Repeats(times, repeats[0].at_s), None, busy_s)


def join(
    how: Joining[Sample], rank: int, count: int, meet_at: str, wait: Callable[[Store], object] = lambda _: None
) -> Bench[Sample]:
    """Join the other measuring processes, and return the bench of this process: the object that measures samples.
    `rank` is the rank of this process, and `count` is the number of processes. The processes meet at the address
    `meet_at`, an init method of torch.distributed such as "env://".

    The timeout for the other processes begins when `wait` returns; `wait` receives the store through which the
    processes meet.
    """
    device = make_device(how.device)
    device.prepare(rank, how.timing.flush_bytes)
    store, _, _ = next(rendezvous(meet_at, rank, count))
    wait(store)
    timeout = timedelta(seconds=how.timeout_s)
    dist.init_process_group(device.backend, store=store, rank=rank, world_size=count, timeout=timeout)
    return how.make_bench(device, how.timing, how.timeout_s)


class Torchrun(Meter[Sample]):
    """Measures samples in the processes that torchrun started, on one host or on several hosts.

    Rank 0 measures batches together with all other processes, which call `follow`. If a follower dies, torchrun
    notices.
    """

    def __init__(self, how: Joining[Sample]) -> None:
        """Join the other processes of torchrun.
        Processes other than rank 0 wait up to 7 days for rank 0, which may first measure kernel calls alone.
        """
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        meet = (lambda store: store.wait([_LEADING], _IDLE)) if rank else (lambda store: store.set(_LEADING, ""))
        self._bench = join(how, rank, size, "env://", meet)
        self._orders = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=_IDLE))

    def measure(self, samples: Sequence[Sample], seeds: Sequence[int]) -> list[Outcome]:
        """Measure the samples together with all follower processes, and return an outcome for each sample.
        The seeds fix the order of the runs.
        """
        self._passed_on((list(samples), list(seeds)))
        return self._bench.measure(samples, seeds, lambda _: None)

    def follow(self) -> None:
        """Take part in every measurement that rank 0 starts, until rank 0 ends the measurements."""
        while (batch := self._passed_on(None)) is not None:
            self._bench.measure(*batch, lambda _: None)
        self._leave()

    def close(self) -> None:
        """End the method `follow` in all other processes of torchrun, and leave the process group."""
        self._passed_on(None)
        self._leave()

    def _passed_on(self, batch: _Batch[Sample] | None) -> _Batch[Sample] | None:
        """Broadcast the batch of samples from rank 0 to every process, and return this batch.
        Rank 0 passes the batch, or None to end the measurements. In the other processes, the argument has no effect.
        """
        box: list[Any] = [batch]
        dist.broadcast_object_list(box, 0, group=self._orders)
        passed: _Batch[Sample] | None = box[0]
        return passed

    def _leave(self) -> None:
        # Gloo's threads end with the last reference to their group, and models and their groups are reference cycles. A
        # thread that frees its last work while Python exits would abort the process.
        del self._bench, self._orders
        gc.collect()
        dist.destroy_process_group()
