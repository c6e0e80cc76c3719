"""What is measured between processes that torchrun started, on one host or several: rank 0 leads, the others follow."""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Generic

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from neuroshard.hardware.group import join
from neuroshard.hardware.runs import Outcome
from neuroshard.hardware.workers import Joining, Meter, Sample

_IDLE = timedelta(days=7)  # followers wait while rank 0 measures compute samples
_LEADING = "neuroshard/leading"
_Batch = tuple[list[Sample], list[int]]


def _lead(store: Store) -> None:
    """Tell the followers that rank 0 joins them."""
    store.set(_LEADING, "")


def _wait_for_leader(store: Store) -> None:
    """Until then: nobody gives up meanwhile."""
    store.wait([_LEADING], _IDLE)


class _Member(Generic[Sample]):
    """This process's place in the group, and the channel on which rank 0 hands out work."""

    def __init__(self, how: Joining[Sample]) -> None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        wait = _wait_for_leader if rank else _lead
        self._bench = join(how, rank, size, "env://", wait)
        self._orders = dist.new_group(backend="gloo", timeout=_IDLE)

    def pass_on(self, batch: _Batch[Sample] | None) -> _Batch[Sample] | None:
        """Rank 0's batch, in every process; None ends the work."""
        box: list[Any] = [batch]
        dist.broadcast_object_list(box, 0, group=self._orders)
        passed: _Batch[Sample] | None = box[0]
        return passed

    def measure(self, batch: _Batch[Sample]) -> list[Outcome]:
        """Every process's part of measuring the batch."""
        samples, seeds = batch
        return self._bench.measure(samples, seeds, lambda _: None)


class TorchrunLeader(Meter[Sample]):
    """Rank 0: measures batches with all the followers. A follower's death is torchrun's to notice."""

    def __init__(self, how: Joining[Sample]) -> None:
        self._member = _Member(how)

    def close(self) -> None:
        """Tell the followers that the work is done."""
        self._member.pass_on(None)
        dist.destroy_process_group()

    def measure(self, samples: Sequence[Sample], seeds: Sequence[int]) -> list[Outcome]:
        """An outcome for each sample, measured together with all followers; the seeds fix the order of the runs."""
        batch = (list(samples), list(seeds))
        self._member.pass_on(batch)
        return self._member.measure(batch)


def follow(how: Joining[Sample]) -> None:
    """Take part in whatever rank 0 measures until it says that it is done."""
    member = _Member(how)
    while (batch := member.pass_on(None)) is not None:
        member.measure(batch)
    dist.destroy_process_group()
