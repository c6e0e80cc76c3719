"""What is measured between processes that torchrun started, on one host or several: rank 0 leads, the others follow."""

import gc
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from neuroshard.hardware.group import join
from neuroshard.hardware.runs import Outcome
from neuroshard.hardware.workers import Joining, Meter, Sample

_IDLE = timedelta(days=7)  # followers wait while rank 0 measures compute samples
_LEADING = "neuroshard/leading"
_Batch = tuple[list[Sample], list[int]]


class Torchrun(Meter[Sample]):
    """One of the processes: rank 0 measures batches with all the others, which `follow` it.

    A follower's death is torchrun's to notice.
    """

    def __init__(self, how: Joining[Sample]) -> None:
        """Join the others; nobody gives up before rank 0 has come."""
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        meet = (lambda store: store.wait([_LEADING], _IDLE)) if rank else (lambda store: store.set(_LEADING, ""))
        self._bench = join(how, rank, size, "env://", meet)
        self._orders = dist.new_group(backend="gloo", timeout=_IDLE)

    def measure(self, samples: Sequence[Sample], seeds: Sequence[int]) -> list[Outcome]:
        """An outcome for each sample, measured together with all followers; the seeds fix the order of the runs."""
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
        """Rank 0's batch, in every process; None ends the work."""
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
