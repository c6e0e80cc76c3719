"""Time training steps of TorchRec: this module runs in every process of a group, with one process per device."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.remote_device import _remote_device
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.types import ModuleSharder, ShardedModule, ShardingPlan
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from neuroshard.measure._workers.group import Group
from neuroshard.measure._workers.runs import Outcome, Report, Run, Timed, run_batch
from neuroshard.measure.device import Device
from neuroshard.measure.kernels._inputs import FUSED, LEARNING_RATE
from neuroshard.measure.specs import EmbeddingSettings
from neuroshard.measure.steps._pipelines import MADE, Optimizers, Phase, PhaseClock, Trainee
from neuroshard.measure.steps.stand_in import Batch, StandIn, drawn_batches, in_pipeline, modules_of, renamed, share_of
from neuroshard.measure.steps.step_samples import StepProtocol
from neuroshard.plans.plan import Plan
from neuroshard.torchrec.kernels import shards_of
from neuroshard.torchrec.sharding_plan import to_sharding_plan
from neuroshard.words.collective import Precision

_OF_COPIES = {"sgd": torch.optim.SGD, "rowwise_adagrad": RowWiseAdagrad}


class StepBench:
    """Measures training steps of several plans, in each process of a process group.
    The models of all plans are in memory together.

    Every process must call the same methods together.
    """

    def __init__(self, device: Device, settings: EmbeddingSettings, protocol: StepProtocol, timeout_s: float) -> None:
        self._device = device
        self._group = Group(timeout_s)
        self._settings = settings
        self._protocol = protocol

    def measure(self, samples: Sequence[Plan], seeds: Sequence[int], report: Report) -> list[Outcome]:
        """Measure training steps of the plans in `samples`, and return an outcome (times or an error) for each plan.
        The times are an array (R, 1 + P + 1, D) in ms, for R repeats, P phases of a step and D devices. Along the
        second axis, the array has first the time of a whole step, then the times of the P phases, and last the time of
        lookups alone.

        The lookups alone are the lookups of a step in which one device after another looks up.
        """
        task, group = renamed(samples[0]).task, self._group
        drawn = drawn_batches(task.tables, task.batch_size, seeds[0], self._device.torch_device)
        own_batches = [share_of(batch, group.rank, group.size) for batch in drawn]
        builds = [partial(self._build, plan, own_batches, seeds[0]) for plan in samples]
        return self._group.combined(run_batch(builds, self._protocol.timing, np.random.default_rng(seeds), report))

    def _build(self, plan: Plan, batches: Sequence[Batch], seed: int) -> Run:
        clock = PhaseClock(self._device)
        return partial(self._turn, Trained(plan, self._protocol, clock, self._device, batches, self._settings, seed))

    def _turn(self, trained: "Trained") -> Timed:
        """Train a plan's model for some steps, and return the measured times. The first step is not timed. In the next
        steps, which are timed, all ranks train together. In the last step, the ranks look up embeddings one after
        another, to time the lookups of each rank alone.

        The result has the mean ms of a step and of the step's phases, and the ms of the lookups alone.
        """
        steps = self._protocol.steps
        trained.step()
        self._group.barrier()
        trained.clock.restart()
        start = perf_counter()
        for _ in range(steps):
            trained.step()
        self._device.synchronize()
        self._group.barrier()
        took_ms = (perf_counter() - start) * 1e3
        together = np.array([took_ms, *trained.clock.spent_ms()]) / steps
        return Timed(np.append(together, self._alone_ms(trained)), took_ms / 1e3)

    def _alone_ms(self, trained: "Trained") -> float:
        """Return the ms that this rank's lookups take while no other rank computes.
        The method trains one step in which the ranks look up one after another.
        """
        before, after = self._group.rank, self._group.size - self._group.rank
        trained.clock.restart()
        with ExitStack() as hooked:
            for lookup in trained.lookups:
                hooked.enter_context(lookup.register_forward_pre_hook(lambda *_: self._let_pass(before), prepend=True))
                hooked.enter_context(lookup.register_forward_hook(lambda *_: self._let_pass(after)))
            trained.step()
        self._device.synchronize()
        return float(trained.clock.spent_ms()[Phase.LOOKUPS])

    def _let_pass(self, count: int) -> None:
        """Synchronize the device, and then wait at `count` barriers of the process group.

        `_alone_ms` lets the ranks look up one after another by these barriers. Of R ranks, rank r waits at r barriers
        before a lookup, and at R - r barriers after the lookup.
        """
        self._device.synchronize()
        for _ in range(count):
            self._group.barrier()


class Trained:
    """A model with the tables of one plan, sharded by TorchRec over the default process group and ready to train.
    The model is the stand-in model (`StandIn`), with optimizers and batches. A clock records the time of each phase of
    the training steps.
    """

    def __init__(
        self,
        plan: Plan,
        protocol: StepProtocol,
        clock: PhaseClock,
        device: Device,
        batches: Sequence[Batch],
        settings: EmbeddingSettings,
        seed: int,
        precision: Precision = Precision.FP32,
    ) -> None:
        plan = in_pipeline(renamed(plan), protocol.pipeline)
        task = plan.task
        torch.manual_seed(seed)
        where = device.torch_device
        self.clock = clock
        self._ballast = torch.rand(protocol.ballast, protocol.ballast, device=where)
        self._model = DistributedModelParallel(
            StandIn(task.tables, protocol.dense),
            device=where,
            plan=placed_here(to_sharding_plan(plan, modules_of(task.tables), compute_device=where.type), where),
            sharders=_sharders(settings, precision, where),
        )
        copied, dense = _parted(self._model, set(plan.names_where(lambda layout: layout.dense)))
        groups = ((Phase.DENSE, torch.optim.SGD, dense), (Phase.OPTIMIZER, _OF_COPIES[settings.optimizer], copied))
        optimizers = Optimizers(
            clock,
            [(phase, optimizer(parameters, lr=LEARNING_RATE)) for phase, optimizer, parameters in groups if parameters],
        )
        self.sharded = [module for module in self._model.modules() if isinstance(module, ShardedModule)]
        for module in self.sharded:
            _watch(module, clock)
        make = MADE[protocol.pipeline]
        self.pipeline = make(Trainee(self._model, self._forward, optimizers, cycle(batches), clock, where))

    @property
    def lookups(self) -> list[nn.Module]:
        """The modules that look up embeddings, for all sharding types of all collections."""
        return [lookup for module in self.sharded for lookup in module._lookups]

    def step(self) -> torch.Tensor:
        """Train on the next batch, and return the loss of the batch."""
        self.clock.enter(Phase.INPUT)
        loss = self.pipeline.train()
        self.clock.enter(Phase.INPUT)
        return loss

    def _forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of a batch twice: first with the autograd graph for the backward pass, then detached from the
        graph.
        """
        first, *rest = self._model(batch)
        self.clock.enter(Phase.DENSE)
        torch.mm(self._ballast, self._ballast)
        first = first.view_as(first)  # a separate node, so that its hook runs before the hooks of lookups' outputs
        first.register_hook(self.clock.entering(Phase.GRADIENTS))
        loss = self._model.module.loss([first, *rest])
        return loss, loss.detach()


def placed_here(plan: ShardingPlan, where: torch.device) -> ShardingPlan:
    """Change the device of this rank's shards in a sharding plan to the local device `where`, and return the plan. The
    index of `where` may differ from the rank. In mirrored steps, for example, one process trains as rank 5 of a larger
    job, on the device cuda:0.

    TorchRec refuses optimizer states on another device than the plan's.
    """
    rank = dist.get_rank()
    shards = [shard for module in plan.plan.values() for sharding in module.values() for shard in shards_of(sharding)]
    for shard in shards:
        if shard.placement is not None and shard.placement.rank() == rank:
            shard.placement = _remote_device(f"rank:{rank}/{where}")
    return plan


def _sharders(settings: EmbeddingSettings, precision: Precision, where: torch.device) -> list[ModuleSharder[nn.Module]]:
    fused = {"optimizer": FUSED[settings.optimizer], "learning_rate": LEARNING_RATE}
    way = CommType(precision.value)
    codecs = get_qcomm_codecs_registry(QCommsConfig(way, way), device=where)  # fp32 has no codecs
    sharders = EmbeddingBagCollectionSharder, EmbeddingCollectionSharder
    return [sharder(fused_params=fused, qcomm_codecs_registry=codecs) for sharder in sharders]


def _parted(model: DistributedModelParallel, copies: set[str]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters of a model that optimizers outside fused kernels update, as two lists. The first list has
    the weights of the data-parallel tables, which `copies` names. The second list has the parameters of the dense
    network. The weights of all other tables are in neither list, because fused kernels update these weights.
    """
    named = dict(model.named_parameters())
    copied = [parameter for name, parameter in named.items() if name.split(".")[-2] in copies]
    return copied, [parameter for name, parameter in named.items() if ".over." in f".{name}"]


def _watch(module: ShardedModule[Any, Any, Any, Any], clock: PhaseClock) -> None:
    """Make the clock record the phases of the lookups of a module.
    The clock records when lookups begin and end, when the gradients of the lookups' outputs arrive, and when the
    gradients of data-parallel weights are ready.
    """
    module.register_forward_pre_hook(clock.entering(Phase.INPUT))
    for lookup in module._lookups:
        lookup.register_forward_pre_hook(clock.entering(Phase.LOOKUPS))
        lookup.register_forward_hook(partial(_looked_up, clock))
        if isinstance(lookup, DistributedDataParallel):
            for weights in lookup.module.parameters():
                weights.register_post_accumulate_grad_hook(clock.entering(Phase.ALL_REDUCE))


def _looked_up(
    clock: PhaseClock, _module: nn.Module, _inputs: object, output: torch.Tensor | list[torch.Tensor]
) -> None:
    clock.enter(Phase.OUTPUT)
    for tensor in [output] if isinstance(output, torch.Tensor) else output:
        if tensor.requires_grad:
            tensor.register_hook(clock.entering(Phase.BACKWARD))  # type: ignore[no-untyped-call]
