"""How a model is trained on one batch after another, and what a step's time is charged to.

By a loop, or by TorchRec's pipeline, which sends inputs ahead.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.optim import Optimizer
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineContext, TrainPipelineSparseDist

from neuroshard.hardware.device import Device
from neuroshard.hardware.mirror import Tensors, size_bytes
from neuroshard.hardware.stand_in import Batch
from neuroshard.hardware.step_samples import PHASES, Stretch
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.records.samples import HOST, LOCAL_PHASES

Phase = IntEnum("Phase", "INPUT LOOKUPS OUTPUT DENSE GRADIENTS BACKWARD ALL_REDUCE OPTIMIZER", start=0)  # of PHASES
# The loss of a batch, which goes backward, and once more without its graph.
Forward = Callable[[Batch], tuple[torch.Tensor, torch.Tensor]]


class Walk(NamedTuple):
    """What a rank did in a step: S stretches, and (3, S) of their ms, bytes sent and bytes received at their ends."""

    stretches: tuple[Stretch, ...]
    amounts: FloatArray


class _Ended(NamedTuple):
    phase: Phase
    until: str
    began: Any
    at: Any
    sent_bytes: int = 0
    received_bytes: int = 0


class PhaseClock:
    """Clock that charges a device's time to the phase entered last, and leaves out the exchanges that it is told of."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.restart()

    def restart(self) -> None:
        """Forget all phases entered so far, and begin with the input."""
        self._ended: list[_Ended] = []
        self._restarted_s = perf_counter()
        self._phase, self._began = Phase.INPUT, self._device.moment()

    def enter(self, phase: Phase) -> None:
        """Charge the time from now on to this phase."""
        if phase != self._phase:
            now = self._device.moment()
            self._ended.append(_Ended(self._phase, "", self._began, now))
            self._phase, self._began = phase, now

    def entering(self, phase: Phase) -> Callable[..., None]:
        """Make a hook that charges the time from its call on to this phase."""
        return lambda *_: self.enter(phase)

    @contextmanager
    def meeting(self, collective: str, sent: Tensors, received: Tensors) -> Iterator[None]:
        """Leave out what an exchange takes: a stretch ends where it begins, and the next one begins afterwards."""
        now = self._device.moment()
        self._ended.append(_Ended(self._phase, collective, self._began, now, size_bytes(sent), size_bytes(received)))
        yield
        self._began = self._device.moment()

    def spent_ms(self) -> FloatArray:
        """Add up the ms of each phase, (P,), until the last was entered; the device must be synchronized."""
        spent = np.zeros(len(PHASES))
        for ended in self._ended:
            spent[ended.phase] += self._device.ms_between(ended.began, ended.at)
        return spent

    def walk(self, steps: int) -> Walk:
        """Synchronize the device, and return the means of so many steps since the restart, all in the same stretches.

        Work after the last end is left out. If device and host work in parallel, the last value is the time that the
        host took to launch a step.

        Raises:
            RuntimeError: the steps differ in what they do.
        """
        host_ms = (perf_counter() - self._restarted_s) * 1e3 / steps
        self._device.synchronize()
        stretches = [Stretch(LOCAL_PHASES[its.phase], its.until) for its in self._ended]
        each = len(stretches) // steps
        if stretches != stretches[:each] * steps:
            raise RuntimeError("steps of one plan differ in what they do")
        amounts = [
            (self._device.ms_between(its.began, its.at), its.sent_bytes, its.received_bytes) for its in self._ended
        ]
        told, means = tuple(stretches[:each]), np.reshape(amounts, (steps, each, 3)).mean(axis=0).T
        if not self._device.beside_host:
            return Walk(told, means)
        return Walk((*told, Stretch(HOST, "")), np.column_stack([means, [host_ms, 0, 0]]))


class Optimizers:
    """The optimizers of a model, which a clock is told of by their phases."""

    def __init__(self, clock: PhaseClock, by_phase: list[tuple[Phase, Optimizer]]) -> None:
        self._clock, self._by_phase = clock, by_phase

    def step(self) -> None:
        """Update weights, and forget their gradients."""
        for phase, optimizer in self._by_phase:
            self._clock.enter(phase)
            optimizer.step()
            optimizer.zero_grad()

    def zero_grad(self) -> None:
        """Do nothing: every step leaves no gradients. TorchRec's pipeline asks for it."""


class Trainee(NamedTuple):
    """What a pipeline trains, and on which batches; its time is charged to the clock's phases."""

    model: DistributedModelParallel
    forward: Forward
    optimizers: Optimizers
    batches: Iterator[Batch]
    clock: PhaseClock
    device: torch.device


class Loop:
    """A loop of one's own: each batch is exchanged in its step, before anything is looked up.

    Attributes:
        ahead: batches whose input a pipeline exchanges in a step before their own.
    """

    ahead = 0

    def __init__(self, trained: Trainee) -> None:
        self._trained = trained

    def train(self) -> torch.Tensor:
        """Train on the next batch; returns its loss."""
        loss, told = self._trained.forward(next(self._trained.batches))
        loss.backward()  # type: ignore[no-untyped-call]
        self._trained.optimizers.step()
        return told

    def exchange_input(self, batch: Batch) -> None:
        """Send a batch's splits, lengths and indices to the ranks that look them up, as a step does, and no more."""
        for path, features in batch.items():
            module = self._trained.model.module.get_submodule(path)
            module.input_dist(module.create_context(), features).wait().wait()


class SparseDist(TrainPipelineSparseDist):  # type: ignore[misc]
    """TorchRec's pipeline: a step also sends the next batch's input, while forward and backward run.

    Splits are sent before the forward and waited for after it; then lengths and indices are sent, and waited for when
    the next step begins to look up. What it takes to begin and to wait is charged to the input.
    """

    ahead = 1

    def __init__(self, trained: Trainee) -> None:
        super().__init__(trained.model, trained.optimizers, trained.device, custom_model_fwd=trained.forward)
        self._source, self._clock = trained.batches, trained.clock
        self.fill_pipeline(trained.batches)

    def train(self) -> torch.Tensor:
        """Train on the next batch; returns its loss."""
        loss: torch.Tensor = self.progress(self._source)
        return loss

    def exchange_input(self, batch: Batch) -> None:
        """Send a batch's splits, lengths and indices to the ranks that look them up, as a step does, and no more."""
        context = TrainPipelineContext(version=1)
        self.start_sparse_data_dist(batch, context)
        self.wait_sparse_data_dist(context)

    def wait_sparse_data_dist(self, context: TrainPipelineContext) -> None:
        """Wait for the splits, and begin to send lengths and indices; what follows is the dense network's backward."""
        self._clock.enter(Phase.INPUT)
        super().wait_sparse_data_dist(context)
        self._clock.enter(Phase.DENSE)


MADE: Mapping[str, Callable[[Trainee], Loop | SparseDist]] = {"none": Loop, "sparse_dist": SparseDist}
