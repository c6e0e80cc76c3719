"""Timing TorchRec's training steps: runs in every process of a group, one per device."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import cycle
from time import perf_counter
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ModuleSharder, ShardedModule
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from neuroshard.hardware.device import Device
from neuroshard.hardware.group import Group
from neuroshard.hardware.inputs import LEARNING_RATE
from neuroshard.hardware.runs import Outcome, Report, Run, Timed, run_batch
from neuroshard.hardware.specs import EmbeddingSettings
from neuroshard.hardware.stand_in import Batch, StandIn, batches, modules_of, renamed
from neuroshard.hardware.step_samples import PHASES, StepSample
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.torchrec.sharding_plan import to_sharding_plan

_INPUT, _LOOKUPS, _OUTPUT, _DENSE, _GRADIENTS, _BACKWARD, _ALL_REDUCE, _OPTIMIZER = range(len(PHASES))
_FUSED = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
_OF_COPIES = {"sgd": torch.optim.SGD, "rowwise_adagrad": RowWiseAdagrad}


class StepBench:
    """Measures steps of plans, all live together, in this process's group; every process calls the same in step."""

    def __init__(self, device: Device, settings: EmbeddingSettings, protocol: TimingProtocol, timeout_s: float) -> None:
        self._device = device
        self._group = Group(timeout_s)
        self._settings = settings
        self._protocol = protocol

    def measure(self, samples: Sequence[StepSample], seeds: Sequence[int], report: Report) -> list[Outcome]:
        """An outcome for each plan; its repeats are (R, 1 + P + 1, D) ms, of every device.

        Of a step, of its phases, and of the lookups of a step in which one device after another looks up.
        """
        task, group = renamed(samples[0].plan).task, self._group
        its = batches(task.tables, task.batch_size, group.rank, group.size, seeds[0], self._device.torch_device)
        builds = [partial(self._build, sample, its, seeds[0]) for sample in samples]
        return self._group.combined(run_batch(builds, self._protocol, np.random.default_rng(seeds), report))

    def _build(self, sample: StepSample, its: Sequence[Batch], seed: int) -> Run:
        trained = Trained(sample, PhaseClock(self._device), self._device, its, self._settings, seed)
        queue = _Queue(self._device, self._group)
        queue.watch(trained.lookups)
        return partial(self._turn, trained, queue, sample.protocol.steps)

    def _turn(self, trained: "Trained", queue: "_Queue", steps: int) -> Timed:
        """One step untimed, some that all ranks begin together, and one with lookups alone; ms of one."""
        trained.step()
        trained.clock.restart()
        self._group.barrier()
        start = perf_counter()
        for _ in range(steps):
            trained.step()
        self._device.synchronize()
        self._group.barrier()
        took_ms = (perf_counter() - start) * 1e3
        together = np.array([took_ms, *trained.clock.spent_ms()]) / steps
        return Timed(np.append(together, self._alone_ms(trained, queue)), took_ms / 1e3)

    def _alone_ms(self, trained: "Trained", queue: "_Queue") -> float:
        """Of the lookups, while no other rank computes."""
        trained.clock.restart()
        with queue:
            trained.step()
        self._device.synchronize()
        return float(trained.clock.spent_ms()[_LOOKUPS])


class PhaseClock:
    """Charges a device's time to the phase that was entered last."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._entered: list[tuple[int, Any]] = []

    def restart(self) -> None:
        """Forget all phases entered so far."""
        self._entered = []

    def enter(self, phase: int) -> None:
        """Charge the time from now on to this phase."""
        if not self._entered or self._entered[-1][0] != phase:
            self._entered.append((phase, self._device.moment()))

    def spent_ms(self) -> FloatArray:
        """(P,) until the last phase was entered; the device is synchronized."""
        spent = np.zeros(len(PHASES))
        for (phase, first), (_, second) in zip(self._entered, self._entered[1:], strict=False):
            spent[phase] += self._device.ms_between(first, second)
        return spent


class _Queue:
    """Where ranks wait for each other while it is entered, so that they look up one after another."""

    def __init__(self, device: Device, group: Group) -> None:
        self._device, self._group = device, group
        self._waits = False

    def __enter__(self) -> None:
        self._waits = True

    def __exit__(self, *_: object) -> None:
        self._waits = False

    def watch(self, lookups: Iterable[nn.Module]) -> None:
        """Make lookups wait for those of all ranks before this one, and then for the others."""
        before, after = self._group.rank, self._group.size - self._group.rank
        for lookup in lookups:
            lookup.register_forward_pre_hook(lambda *_: self._let_pass(before), prepend=True)
            lookup.register_forward_hook(lambda *_: self._let_pass(after))

    def _let_pass(self, count: int) -> None:
        if self._waits:
            self._device.synchronize()
            for _ in range(count):
                self._group.barrier()


class Trained:
    """A sharded stand-in with its optimizers and batches, in the default group; its steps tell a clock their phases."""

    def __init__(
        self,
        sample: StepSample,
        clock: PhaseClock,
        device: Device,
        its: Sequence[Batch],
        settings: EmbeddingSettings,
        seed: int,
    ) -> None:
        plan = renamed(sample.plan)
        task = plan.task
        torch.manual_seed(seed)
        where = device.torch_device
        self.clock = clock
        self._model = DistributedModelParallel(
            StandIn(task.tables, sample.protocol.dense),
            device=where,
            plan=to_sharding_plan(plan, modules_of(task.tables), compute_device=where.type),
            sharders=_sharders(settings),
        )
        copied, dense = _parted(self._model, set(plan.names_where(lambda layout: layout.dense)))
        kinds = ((_DENSE, torch.optim.SGD, dense), (_OPTIMIZER, _OF_COPIES[settings.optimizer], copied))
        self._optimizers = [(phase, kind(its, lr=LEARNING_RATE)) for phase, kind, its in kinds if its]
        self._batches = cycle(its)
        self.sharded = [module for module in self._model.modules() if isinstance(module, ShardedModule)]
        for module in self.sharded:
            _watch(module, clock)

    @property
    def lookups(self) -> list[nn.Module]:
        """What looks up in all forms of all collections."""
        return [lookup for module in self.sharded for lookup in module._lookups]

    def exchange_input(self, batch: Batch) -> None:
        """Send a batch's splits, lengths and indices to the ranks that look them up, as a step does, and no more."""
        for path, features in batch.items():
            module = self._model.module.get_submodule(path)
            module.input_dist(module.create_context(), features).wait().wait()

    def step(self) -> None:
        """Train on the next batch."""
        clock, batch = self.clock, next(self._batches)
        clock.enter(_INPUT)
        first, *rest = self._model(batch)
        clock.enter(_DENSE)
        first = first.view_as(first)  # a node of its own: hooks of lookups' outputs come after it
        first.register_hook(_entering(clock, _GRADIENTS))
        self._model.module.loss([first, *rest]).backward()
        for phase, optimizer in self._optimizers:
            clock.enter(phase)
            optimizer.step()
            optimizer.zero_grad()
        clock.enter(_INPUT)


def _sharders(settings: EmbeddingSettings) -> list[ModuleSharder[nn.Module]]:
    fused = {"optimizer": _FUSED[settings.optimizer], "learning_rate": LEARNING_RATE}
    return [EmbeddingBagCollectionSharder(fused_params=fused), EmbeddingCollectionSharder(fused_params=fused)]


def _parted(model: DistributedModelParallel, copies: set[str]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters of copied tables, and those of the dense part; fused kernels update all others themselves."""
    named = dict(model.named_parameters())
    copied = [one for name, one in named.items() if name.split(".")[-2] in copies]
    return copied, [one for name, one in named.items() if ".over." in f".{name}"]


def _watch(module: ShardedModule[Any, Any, Any, Any], clock: PhaseClock) -> None:
    """Tell the clock when lookups begin and end, when gradients come back to them, and when copies have theirs."""
    module.register_forward_pre_hook(_entering(clock, _INPUT))
    for lookup in module._lookups:
        lookup.register_forward_pre_hook(_entering(clock, _LOOKUPS))
        lookup.register_forward_hook(partial(_looked_up, clock))
        if isinstance(lookup, DistributedDataParallel):
            for weights in lookup.module.parameters():
                weights.register_post_accumulate_grad_hook(_entering(clock, _ALL_REDUCE))


def _entering(clock: PhaseClock, phase: int) -> Callable[..., None]:
    return lambda *_: clock.enter(phase)


def _looked_up(
    clock: PhaseClock, _module: nn.Module, _given: object, output: torch.Tensor | list[torch.Tensor]
) -> None:
    clock.enter(_OUTPUT)
    for one in [output] if isinstance(output, torch.Tensor) else output:
        if one.requires_grad:
            one.register_hook(_entering(clock, _BACKWARD))  # type: ignore[no-untyped-call]
