"""The processes that measure together, one per device, seen from one of them."""

import gc
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import numpy as np
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from neuroshard.hardware.device import make_device
from neuroshard.hardware.runs import Outcome
from neuroshard.hardware.workers import Bench, Joining, Meter, Sample
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.records.samples import Repeats

_IDLE = timedelta(days=7)  # followers wait while rank 0 measures compute samples
_LEADING = "neuroshard/leading"
_Batch = tuple[list[Sample], list[int]]


class Group:
    """This process's place in its group, and a channel of theirs: agreeing must not use what is being measured."""

    def __init__(self, timeout_s: float) -> None:
        self.control = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s)))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def barrier(self) -> None:
        """Wait until all have come."""
        dist.barrier(group=self.control)

    def combined(self, own: list[Outcome]) -> list[Outcome]:
        """Combine each sample's outcomes of all processes; repeats have one more dimension, last, for the D of them."""
        gathered: list[list[Outcome] | None] = [None] * self.size
        dist.all_gather_object(gathered, own, group=self.control)
        return [_combine(list(each)) for each in zip(*(outcomes or [] for outcomes in gathered), strict=True)]


def _combine(outcomes: list[Outcome]) -> Outcome:
    """Combine one sample's outcomes of every device, (R, ...) each, to (R, ..., D)."""
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
    """Join the others at `meet_at`, a torch.distributed init method, and make what measures in this process.

    They have their time to come from when `wait` returns, which gets the store that they meet by.
    """
    device = make_device(how.device)
    device.prepare(rank, how.timing.flush_bytes)
    store, _, _ = next(rendezvous(meet_at, rank, count))
    wait(store)
    timeout = timedelta(seconds=how.timeout_s)
    dist.init_process_group(device.backend, store=store, rank=rank, world_size=count, timeout=timeout)
    return how.make_bench(device, how.timing, how.timeout_s)


class Torchrun(Meter[Sample]):
    """This process as one of those that torchrun started, on one host or several.

    Rank 0 measures batches with all the others, which `follow` it; a follower's death is torchrun's to notice.
    """

    def __init__(self, how: Joining[Sample]) -> None:
        """Join the others; nobody gives up before rank 0 has come."""
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        meet = (lambda store: store.wait([_LEADING], _IDLE)) if rank else (lambda store: store.set(_LEADING, ""))
        self._bench = join(how, rank, size, "env://", meet)
        self._orders = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=_IDLE))

    def measure(self, samples: Sequence[Sample], seeds: Sequence[int]) -> list[Outcome]:
        """Measure an outcome for each sample, together with all followers; the seeds fix the order of the runs."""
        self._passed_on((list(samples), list(seeds)))
        return self._bench.measure(samples, seeds, lambda _: None)

    def follow(self) -> None:
        """Take part in whatever rank 0 measures until it says that it is done."""
        while (batch := self._passed_on(None)) is not None:
            self._bench.measure(*batch, lambda _: None)
        self._leave()

    def close(self) -> None:
        """Tell the followers that the work is done."""
        self._passed_on(None)
        self._leave()

    def _passed_on(self, batch: _Batch[Sample] | None) -> _Batch[Sample] | None:
        """Pass rank 0's batch on to every process; None ends the work."""
        box: list[Any] = [batch]
        dist.broadcast_object_list(box, 0, group=self._orders)
        passed: _Batch[Sample] | None = box[0]
        return passed

    def _leave(self) -> None:
        # Gloo's threads end with the last holder of their group: models and their groups are circles of objects. One
        # that frees its last work while Python ends aborts the process.
        del self._bench, self._orders
        gc.collect()
        dist.destroy_process_group()
