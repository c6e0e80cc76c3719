"""Training pipelines, and a clock that attributes the time of a step to phases.

A pipeline is a plain loop, or TorchRec's pipeline, which sends inputs in advance.
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

from neuroshard.measure.device import Device
from neuroshard.measure.steps._mirror import Tensors, size_bytes
from neuroshard.measure.steps.stand_in import Batch
from neuroshard.measure.steps.step_samples import PHASES, Stretch
from neuroshard.measure.store.samples import HOST, LOCAL_PHASES
from neuroshard.plumbing.arrays import FloatArray

# Indices into PHASES.
Phase = IntEnum("Phase", "INPUT LOOKUPS OUTPUT DENSE GRADIENTS BACKWARD ALL_REDUCE OPTIMIZER", start=0)
# Returns the loss of a batch with its autograd graph, and the same loss detached.
Forward = Callable[[Batch], tuple[torch.Tensor, torch.Tensor]]


class Walk(NamedTuple):
    """The local work of one rank in a training step, as a sequence of S stretches. A stretch is work in one phase; the
    stretch ends when another phase or an exchange begins.

    `amounts` (3, S) has three numbers for each stretch: the ms of the stretch, and the bytes that the rank sends and
    the bytes that the rank receives in the exchange that ends the stretch. Both bytes are 0 if no exchange ends the
    stretch.
    """

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
    """A clock that attributes a device's time to phases of a step: time counts for the phase that was entered last.
    The time of exchanges between ranks is left out if the exchanges run inside `meeting`, as in mirrored steps.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.restart()

    def restart(self) -> None:
        """Discard all recorded times, and start the clock in the input phase."""
        self._ended: list[_Ended] = []
        self._restarted_s = perf_counter()
        self._phase, self._began = Phase.INPUT, self._device.moment()

    def enter(self, phase: Phase) -> None:
        """Attribute the time from now on to this phase, until another phase is entered."""
        if phase != self._phase:
            now = self._device.moment()
            self._ended.append(_Ended(self._phase, "", self._began, now))
            self._phase, self._began = phase, now

    def entering(self, phase: Phase) -> Callable[..., None]:
        """Return a function for torch to call as a hook.
        Whenever the function is called, the clock enters this phase; the arguments of the call are ignored.
        """
        return lambda *_: self.enter(phase)

    @contextmanager
    def meeting(self, collective: str, sent: Tensors, received: Tensors) -> Iterator[None]:
        """Stop the clock during an exchange between ranks, so that the exchange does not count as time of a phase.
        The exchange must run inside this context. The clock records the bytes that this rank sends and receives.
        """
        now = self._device.moment()
        self._ended.append(_Ended(self._phase, collective, self._began, now, size_bytes(sent), size_bytes(received)))
        yield
        self._began = self._device.moment()

    def spent_ms(self) -> FloatArray:
        """Return the time that the clock attributed to each of P phases since the last `restart`, (P,) ms. The time
        after the last change of phase, or after the start of the last exchange, is not included. The caller must
        synchronize the device before the call.
        """
        spent = np.zeros(len(PHASES))
        for ended in self._ended:
            spent[ended.phase] += self._device.ms_between(ended.began, ended.at)
        return spent

    def walk(self, steps: int) -> Walk:
        """Return the mean local work of a training step (`Walk`), over the `steps` steps since `restart` was called.
        The method waits until the device has finished all of this work.

        All steps must have the same stretches. Work after the last stretch is left out. If device and host work in
        parallel, the last value is the host's time to launch a step.

        Raises:
            RuntimeError: the steps have different stretches.
        """
        host_ms = (perf_counter() - self._restarted_s) * 1e3 / steps
        self._device.synchronize()
        stretches = [Stretch(LOCAL_PHASES[ended.phase], ended.until) for ended in self._ended]
        each = len(stretches) // steps
        if stretches != stretches[:each] * steps:
            raise RuntimeError("steps of one plan differ in what they do")
        amounts = [
            (self._device.ms_between(ended.began, ended.at), ended.sent_bytes, ended.received_bytes)
            for ended in self._ended
        ]
        stretches_of_step, means = tuple(stretches[:each]), np.reshape(amounts, (steps, each, 3)).mean(axis=0).T
        if not self._device.beside_host:
            return Walk(stretches_of_step, means)
        return Walk((*stretches_of_step, Stretch(HOST, "")), np.column_stack([means, [host_ms, 0, 0]]))


class Optimizers:
    """The optimizers of a model, each with the phase of the step to which the clock attributes the optimizer's time."""

    def __init__(self, clock: PhaseClock, by_phase: list[tuple[Phase, Optimizer]]) -> None:
        self._clock, self._by_phase = clock, by_phase

    def step(self) -> None:
        """Update the weights with all optimizers, and reset the gradients."""
        for phase, optimizer in self._by_phase:
            self._clock.enter(phase)
            optimizer.step()
            optimizer.zero_grad()

    def zero_grad(self) -> None:
        """Do nothing, because `step` resets the gradients; TorchRec's pipeline calls this method."""


class Trainee(NamedTuple):
    """A model with everything that a training pipeline needs.
    These are optimizers, batches, a device, and a clock that records the phases of steps.
    """

    model: DistributedModelParallel
    forward: Forward
    optimizers: Optimizers
    batches: Iterator[Batch]
    clock: PhaseClock
    device: torch.device


class Loop:
    """A plain training loop without overlap.
    Each step exchanges the input of the step's own batch, and only then begins the lookups in the tables.

    Attributes:
        ahead: number of batches whose input a pipeline exchanges before the batch's own step.
    """

    ahead = 0

    def __init__(self, trained: Trainee) -> None:
        self._trained = trained

    def train(self) -> torch.Tensor:
        """Train on the next batch, and return the loss of the batch."""
        loss, detached = self._trained.forward(next(self._trained.batches))
        loss.backward()  # type: ignore[no-untyped-call]
        self._trained.optimizers.step()
        return detached

    def exchange_input(self, batch: Batch) -> None:
        """Exchange the input of a batch as a step does, but without training.
        Splits, lengths and indices are sent to the ranks that look up the indices.
        """
        for path, features in batch.items():
            module = self._trained.model.module.get_submodule(path)
            module.input_dist(module.create_context(), features).wait().wait()


class SparseDist(TrainPipelineSparseDist):  # type: ignore[misc]
    """TorchRec's pipeline TrainPipelineSparseDist, with a clock that records the phases of steps.
    A step also sends the input of the next batch, in parallel with the forward and backward passes.

    Splits are sent before the forward pass and awaited after it; then lengths and indices are sent, and awaited when
    the lookups of the next step begin. Starting and awaiting these exchanges counts as input phase.
    """

    ahead = 1

    def __init__(self, trained: Trainee) -> None:
        super().__init__(trained.model, trained.optimizers, trained.device, custom_model_fwd=trained.forward)
        self._source, self._clock = trained.batches, trained.clock
        self.fill_pipeline(trained.batches)

    def train(self) -> torch.Tensor:
        """Train on the next batch, and return the loss of the batch."""
        loss: torch.Tensor = self.progress(self._source)
        return loss

    def exchange_input(self, batch: Batch) -> None:
        """Exchange the input of a batch as a step does, but without training.
        Splits, lengths and indices are sent to the ranks that look up the indices.
        """
        context = TrainPipelineContext(version=1)
        self.start_sparse_data_dist(batch, context)
        self.wait_sparse_data_dist(context)

    def wait_sparse_data_dist(self, context: TrainPipelineContext) -> None:
        """Enter the input phase, wait for the splits of a batch, and start to send the batch's lengths and indices.
        Then enter the dense phase.
        """
        self._clock.enter(Phase.INPUT)
        super().wait_sparse_data_dist(context)
        self._clock.enter(Phase.DENSE)


MADE: Mapping[str, Callable[[Trainee], Loop | SparseDist]] = {"none": Loop, "sparse_dist": SparseDist}
