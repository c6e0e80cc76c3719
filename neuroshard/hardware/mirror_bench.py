"""Timing one rank's local work in TorchRec's training steps, beside mirrors: runs in a process of its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from neuroshard.hardware.device import Device
from neuroshard.hardware.mirror import Tensors, World, mirrored_world, size_bytes
from neuroshard.hardware.pipelines import PhaseClock
from neuroshard.hardware.runs import Outcome, Report, Run, Timed, run_batch
from neuroshard.hardware.specs import EmbeddingSettings
from neuroshard.hardware.stand_in import Batch, drawn_batches, renamed, share_of
from neuroshard.hardware.step_bench import Trained
from neuroshard.hardware.step_samples import StepProtocol, Stretch
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.records.samples import LOCAL_PHASES, LocalSample

_WARM_STEPS = 3  # of a build: data-parallel modules exchange more in their second and third


class MirrorBench:
    """Measures one rank's steps of plans of one task, all live together."""

    def __init__(self, device: Device, settings: EmbeddingSettings, protocol: StepProtocol) -> None:
        self._device = device
        self._settings = settings
        self._protocol = protocol

    def measure(self, samples: Sequence[LocalSample], seeds: Sequence[int], report: Report) -> list[Outcome]:
        """An outcome for each sample, all of one task and rank; its repeats are (R, 3, S), of the S stretches `seen`.

        They are ms, and bytes that the collective at a stretch's end is given and gives.
        """
        task, rank, trail = renamed(samples[0].plan).task, samples[0].rank, Trail(self._device)
        size = task.topology.num_devices
        drawn = drawn_batches(task.tables, task.batch_size, seeds[0], self._device.torch_device)
        shares = [[share_of(batch, each, size) for each in range(size)] for batch in drawn]
        live: dict[int, _Live] = {}
        with mirrored_world(rank, size, task.topology.host_size, trail.meeting) as world:

            def build(number: int) -> Run:
                """Build a sample's model on this rank; what is returned trains it for a turn."""
                plan, own = samples[number].plan, [its[rank] for its in shares]
                trained = Trained(plan, self._protocol, trail, self._device, own, self._settings, seeds[0])
                live[number] = _Live(trained, trail, world, [_told(trained, world, its) for its in shares])
                return partial(live[number].turn, self._protocol.steps)

            builds = [partial(build, number) for number in range(len(samples))]
            outcomes = run_batch(builds, self._protocol.timing, np.random.default_rng(seeds), report)
        return [
            replace(its, seen=live[number].stretches if number in live else ()) for number, its in enumerate(outcomes)
        ]


class Walk(NamedTuple):
    """What a rank did in one step: S stretches, and (3, S) of their ms, bytes sent and bytes received at their ends."""

    stretches: tuple[Stretch, ...]
    amounts: FloatArray


class Trail(PhaseClock):
    """Charges a device's time to phases, and leaves out what exchanges take."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._phase = 0
        self._began: Any = None
        self._ended: list[tuple[Stretch, Any, Any, int, int]] = []

    def restart(self) -> None:
        """Forget all stretches, and begin with the input."""
        self._phase, self._began, self._ended = 0, self._device.moment(), []

    def enter(self, phase: int) -> None:
        """End a stretch where another phase begins."""
        if phase != self._phase:
            now = self._device.moment()
            self._end("", now, 0, 0)
            self._phase, self._began = phase, now

    @contextmanager
    def meeting(self, collective: str, sent: Tensors, received: Tensors) -> Iterator[None]:
        """End a stretch here, and begin the next one afterwards."""
        self._end(collective, self._device.moment(), size_bytes(sent), size_bytes(received))
        yield
        self._began = self._device.moment()

    def walk(self) -> Walk:
        """All stretches since the restart; the device is synchronized, and what came after the last end left out."""
        self._device.synchronize()
        amounts = [
            (self._device.ms_between(began, ended), sent, received) for _, began, ended, sent, received in self._ended
        ]
        return Walk(tuple(stretch for stretch, *_ in self._ended), np.array(amounts, dtype=np.float64).T)

    def _end(self, until: str, now: Any, sent: int, received: int) -> None:
        self._ended.append((Stretch(LOCAL_PHASES[self._phase], until), self._began, now, sent, received))


class _Live:
    """A rank's sharded stand-in beside mirrors, which takes its steps.

    Attributes:
        stretches: (S,) of every step; none before the first turn.
    """

    def __init__(self, trained: Trained, trail: Trail, world: World, told: Sequence[Sequence[torch.Tensor]]) -> None:
        self.stretches: tuple[Stretch, ...] = ()
        self._trained, self._trail, self._world = trained, trail, world
        self._told = islice(cycle(told), trained.pipeline.ahead, None)
        for _ in range(_WARM_STEPS):
            self._step()

    def turn(self, steps: int) -> Timed:
        """One step untimed, and some of which the means are taken."""
        self._step()
        start = perf_counter()
        walked = [self._step() for _ in range(steps)]
        self.stretches = self.stretches or walked[0].stretches
        if any(walk.stretches != self.stretches for walk in walked):
            raise RuntimeError("steps of one plan differ in what they do")
        return Timed(np.mean([walk.amounts for walk in walked], axis=0), perf_counter() - start)

    def _step(self) -> Walk:
        """Train on the next batch, all ranks' inputs being those of the batch that the step exchanges."""
        self._world.told.clear()
        self._world.told.extend(next(self._told))
        self._trail.restart()
        self._trained.step()
        return self._trail.walk()


def _told(trained: Trained, world: World, shares: Sequence[Batch]) -> list[torch.Tensor]:
    """What all ranks, whose shares of a batch these are, send to this one in each exchange of their inputs.

    Every rank parts its inputs alike, so this one does it in the place of each.
    """
    world.told.clear()
    said = []
    for batch in shares:
        world.kept.clear()
        trained.pipeline.exchange_input(batch)
        said.append(tuple(world.kept))
    world.kept.clear()
    return [torch.cat(of_each) for of_each in zip(*said, strict=True)]
