"""Exchanges between processes that torchrun started, on one host or several: rank 0 leads, the others follow."""

import os
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

import torch.distributed as dist

from neuroshard.hardware.exchange import ExchangeBench, join_group
from neuroshard.hardware.runs import Outcome
from neuroshard.hardware.settings import DeviceSpec
from neuroshard.records.samples import CommSample
from neuroshard.timing import TimingProtocol

_IDLE = timedelta(days=7)  # followers wait while rank 0 measures compute samples
_LEADING = "neuroshard/leading"
_Batch = tuple[list[CommSample], list[int]]


def _lead(store: dist.Store) -> None:
    """Tell the followers that rank 0 joins them."""
    store.set(_LEADING, "")


def _wait_for_leader(store: dist.Store) -> None:
    """Until then: nobody gives up meanwhile."""
    store.wait([_LEADING], _IDLE)


class _Member:
    """This process's place in the group, and the channel on which rank 0 hands out work."""

    def __init__(self, device: DeviceSpec, timing: TimingProtocol, timeout_s: float) -> None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        wait = _wait_for_leader if rank else _lead
        self._bench: ExchangeBench = join_group(device, timing, timeout_s, rank, size, "env://", wait)
        self._orders = dist.new_group(backend="gloo", timeout=_IDLE)

    def pass_on(self, batch: _Batch | None) -> _Batch | None:
        """Rank 0's batch, in every process; None ends the work."""
        box = [batch]
        dist.broadcast_object_list(box, 0, group=self._orders)
        return box[0]

    def measure(self, batch: _Batch) -> list[Outcome]:
        """Every process's part of measuring the batch."""
        samples, seeds = batch
        return self._bench.measure(samples, seeds, lambda _: None)


class TorchrunLeader:
    """Rank 0: measures batches with all the followers. A follower's death is torchrun's to notice."""

    def __init__(self, device: DeviceSpec, timing: TimingProtocol, timeout_s: float) -> None:
        self._member = _Member(device, timing, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._member.pass_on(None)
        dist.destroy_process_group()

    def measure(self, samples: Sequence[CommSample], seeds: Sequence[int]) -> list[Outcome]:
        """An outcome for each exchange, measured together with all followers; the seeds fix the order of the runs."""
        batch = (list(samples), list(seeds))
        self._member.pass_on(batch)
        return self._member.measure(batch)


def follow(device: DeviceSpec, timing: TimingProtocol, timeout_s: float) -> None:
    """Take part in whatever rank 0 measures until it says that it is done."""
    member = _Member(device, timing, timeout_s)
    while (batch := member.pass_on(None)) is not None:
        member.measure(batch)
    dist.destroy_process_group()
