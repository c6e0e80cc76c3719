"""Timing one rank's local work in TorchRec's mirrored training steps, in a process of its own."""

import gc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from time import perf_counter

import numpy as np
import torch

from neuroshard.hardware.device import Device
from neuroshard.hardware.mirror import World, mirrored_world
from neuroshard.hardware.pipelines import PhaseClock
from neuroshard.hardware.runs import Outcome, Report, Run, Timed, run_batch
from neuroshard.hardware.specs import EmbeddingSettings
from neuroshard.hardware.stand_in import Batch, drawn_batches, renamed, share_of
from neuroshard.hardware.step_bench import Trained
from neuroshard.hardware.step_samples import StepProtocol, Stretch
from neuroshard.records.samples import LocalSample

_WARM_STEPS = 3  # of a build: data-parallel modules exchange more in their second and third


class MirrorBench:
    """Bench of one rank's steps of plans of one task, all live together."""

    def __init__(self, device: Device, settings: EmbeddingSettings, protocol: StepProtocol) -> None:
        self._device = device
        self._settings = settings
        self._protocol = protocol

    def measure(self, samples: Sequence[LocalSample], seeds: Sequence[int], report: Report) -> list[Outcome]:
        """Measure an outcome for each sample, of one task and rank; repeats are (R, 3, S), of the S stretches `seen`.

        They are ms, and bytes that the collective at a stretch's end is given and gives.
        """
        if self._device.torch_device.type != "cpu":
            gc.collect()  # models are circles of objects: the last ones' tables would still fill a GPU
        task, rank, clock = renamed(samples[0].plan).task, samples[0].rank, PhaseClock(self._device)
        size = task.topology.num_devices
        drawn = drawn_batches(task.tables, task.batch_size, seeds[0], self._device.torch_device)
        shares = [[share_of(batch, each, size) for each in range(size)] for batch in drawn]
        live: dict[int, _Live] = {}
        with mirrored_world(rank, size, task.topology.domain_size, clock.meeting) as world:

            def build(number: int) -> Run:
                """Build a sample's model on this rank; what is returned trains it for a turn."""
                sample, own = samples[number], [its[rank] for its in shares]
                settings = self._settings, seeds[0], sample.precision
                trained = Trained(sample.plan, self._protocol, clock, self._device, own, *settings)
                live[number] = _Live(trained, world, [_told(trained, world, its, self._device) for its in shares])
                return partial(live[number].turn, self._protocol.steps)

            builds = [partial(build, number) for number in range(len(samples))]
            outcomes = run_batch(builds, self._protocol.timing, np.random.default_rng(seeds), report)
        return [
            replace(its, seen=live[number].stretches if number in live else ()) for number, its in enumerate(outcomes)
        ]


class _Live:
    """A rank's sharded stand-in, whose other ranks are mirrors; it takes the rank's steps.

    Attributes:
        stretches: (S,) stretches of every step; empty before the first turn.
    """

    def __init__(self, trained: Trained, world: World, told: Sequence[Sequence[torch.Tensor]]) -> None:
        self.stretches: tuple[Stretch, ...] = ()
        self._trained, self._world = trained, world
        self._told = islice(cycle(told), trained.pipeline.ahead, None)
        for _ in range(_WARM_STEPS):
            self._step()

    def turn(self, steps: int) -> Timed:
        """Train one step untimed, and some of which the means are taken; none waits for the device, as in training."""
        self._step()
        start = perf_counter()
        self._trained.clock.restart()
        for _ in range(steps):
            self._step()
        walk = self._trained.clock.walk(steps)
        self.stretches = self.stretches or walk.stretches
        if walk.stretches != self.stretches:
            raise RuntimeError("steps of one plan differ in what they do")
        return Timed(walk.amounts, perf_counter() - start)

    def _step(self) -> None:
        """Train on the next batch, all ranks' inputs being those of the batch that the step exchanges."""
        self._world.told.clear()
        self._world.told.extend(next(self._told))
        self._trained.step()


def _told(trained: Trained, world: World, shares: Sequence[Batch], device: Device) -> list[torch.Tensor]:
    """Collect what all ranks, whose shares of a batch these are, send to this one in each exchange of their inputs.

    Every rank splits its inputs alike, so this one does it in the place of each. The device is waited for: pipelines
    send inputs on a stream of their own.
    """
    world.told.clear()
    said = []
    for batch in shares:
        world.kept.clear()
        trained.pipeline.exchange_input(batch)
        said.append(tuple(world.kept))
    world.kept.clear()
    device.synchronize()
    joined = [torch.cat(of_each) for of_each in zip(*said, strict=True)]
    device.synchronize()
    return joined
