"""Time one rank's local work in training steps of TorchRec, without starting the other ranks.
The steps are mirrored: one process runs this rank of a larger job, and imitates the exchanges with the other ranks.
"""

import gc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from time import perf_counter

import numpy as np
import torch

from neuroshard.measure._workers.runs import Outcome, Report, Run, Timed, run_batch
from neuroshard.measure.device import Device
from neuroshard.measure.specs import EmbeddingSettings
from neuroshard.measure.steps._mirror import World, mirrored_world
from neuroshard.measure.steps._pipelines import PhaseClock
from neuroshard.measure.steps._step_bench import Trained
from neuroshard.measure.steps.stand_in import Batch, drawn_batches, renamed, share_of
from neuroshard.measure.steps.step_samples import StepProtocol, Stretch
from neuroshard.measure.store.samples import LocalSample

_WARM_STEPS = 3  # of a build; data-parallel modules have extra exchanges in the second and third step


class MirrorBench:
    """Measures the training steps of one rank for several plans of the same task.
    The models of all plans are in memory together.
    """

    def __init__(self, device: Device, settings: EmbeddingSettings, protocol: StepProtocol) -> None:
        self._device = device
        self._settings = settings
        self._protocol = protocol

    def measure(self, samples: Sequence[LocalSample], seeds: Sequence[int], report: Report) -> list[Outcome]:
        """Measure the training steps in `samples`, and return an outcome for each sample.
        All samples must have the same task and the same rank.

        The repeats are (R, 3, S) for the S stretches in `seen`: ms, and the bytes that the rank sends to and receives
        from the collective at the end of a stretch.
        """
        if self._device.torch_device.type != "cpu":
            gc.collect()  # models are reference cycles: otherwise earlier tables would still fill the GPU
        task, rank, clock = renamed(samples[0].plan).task, samples[0].rank, PhaseClock(self._device)
        size = task.topology.num_devices
        drawn = drawn_batches(task.tables, task.batch_size, seeds[0], self._device.torch_device)
        shares = [[share_of(batch, each, size) for each in range(size)] for batch in drawn]
        live: dict[int, _Live] = {}
        with mirrored_world(rank, size, task.topology.domain_size, clock.meeting) as world:

            def build(number: int) -> Run:
                """Build the model of a sample on this rank, and return a function that trains the model.
                Each call of the function trains several steps.
                """
                sample, own = samples[number], [ranks_of_batch[rank] for ranks_of_batch in shares]
                settings = self._settings, seeds[0], sample.precision
                trained = Trained(sample.plan, self._protocol, clock, self._device, own, *settings)
                live[number] = _Live(
                    trained,
                    world,
                    [_inputs_from_all_ranks(trained, world, ranks_of_batch, self._device) for ranks_of_batch in shares],
                )
                return partial(live[number].turn, self._protocol.steps)

            builds = [partial(build, number) for number in range(len(samples))]
            outcomes = run_batch(builds, self._protocol.timing, np.random.default_rng(seeds), report)
        return [
            replace(ranks_of_batch, seen=live[number].stretches if number in live else ())
            for number, ranks_of_batch in enumerate(outcomes)
        ]


class _Live:
    """A model with the tables of one plan, sharded and ready for training steps on one mirrored rank.
    A mirrored rank is one rank of a larger job that runs alone: exchanges with the other ranks are imitated.

    Attributes:
        stretches: (S,) stretches of every step; empty before the first turn.
    """

    def __init__(self, trained: Trained, world: World, inputs: Sequence[Sequence[torch.Tensor]]) -> None:
        self.stretches: tuple[Stretch, ...] = ()
        self._trained, self._world = trained, world
        self._inputs = islice(cycle(inputs), trained.pipeline.ahead, None)
        for _ in range(_WARM_STEPS):
            self._step()

    def turn(self, steps: int) -> Timed:
        """Train one untimed step and then `steps` timed steps, and return means over the timed steps, (3, S): the ms of
        each of S stretches, and the bytes that this rank sends and receives in the exchange that ends the stretch. A
        stretch is work of this rank in one phase; the stretch ends when another phase or an exchange between ranks
        begins. The exchanges themselves are not timed.

        As in training, no step waits for the device.
        """
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
        """Train on the next batch.
        The other ranks do not exist, so this rank receives prepared data in the exchanges of the input dist: the
        splits, lengths and indices that real ranks would send.
        """
        self._world.told.clear()
        self._world.told.extend(next(self._inputs))
        self._trained.step()


def _inputs_from_all_ranks(
    trained: Trained, world: World, shares: Sequence[Batch], device: Device
) -> list[torch.Tensor]:
    """Return the tensors that this rank would receive from all ranks in the input dist of a batch.
    The input dist exchanges splits, lengths and indices; there is one tensor for each exchange. A tensor has the data
    from rank 0 first, then the data from rank 1, and so on. `shares` has one part of the batch for each rank: the part
    on which the rank trains.

    Every rank splits inputs in the same way, so this rank does it in place of each. The function waits for the device,
    because pipelines send inputs on a separate stream.
    """
    world.told.clear()
    sent_by_rank = []
    for batch in shares:
        world.kept.clear()
        trained.pipeline.exchange_input(batch)
        sent_by_rank.append(tuple(world.kept))
    world.kept.clear()
    device.synchronize()
    joined = [torch.cat(of_each) for of_each in zip(*sent_by_rank, strict=True)]
    device.synchronize()
    return joined
