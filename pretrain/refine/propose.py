"""What may be worth measuring: what plans of searches ask of hardware, and contents that models may be in doubt of."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.hardware.plan_samples import exchanges, kernel_calls
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.records.sample_loads import loads_of
from neuroshard.records.samples import FORWARD, CommSample, ComputeSample
from neuroshard.searching.searcher import Searcher
from neuroshard.tables import Table
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Collective
from neuroshard.words.form import IN_COLUMNS

_WHOLE_SHARE = 0.6  # of tables that are not cut; of the others, so many are cut once
_SCORES: tuple[Callable[[Table], float], ...] = (
    lambda table: float(table.size_bytes),
    lambda table: float(table.dim),
    lambda table: table.dim * table.pooling_factor,
)
_LEAST_MS = 1e-9


@dataclass(frozen=True)
class Proposals:
    """Kernel calls and exchanges of plans, in columns."""

    calls: tuple[ComputeSample, ...]
    exchanges: tuple[CommSample, ...]


def proposed(tasks: Sequence[Task], searchers: Sequence[Searcher], models: CostModels) -> Proposals:
    """What the searchers' plans for the tasks ask of hardware; tasks without a plan are left out.

    Raises:
        InfeasibleError: no task has a plan.
    """
    simulator = Simulator(models)
    plans = list(_plans(tasks, searchers, simulator))
    calls = [call for plan in plans for its in kernel_calls(plan) for call in its if call.call == IN_COLUMNS]
    return Proposals(tuple(calls), tuple(one for plan in plans for one in _exchanges(plan, simulator)))


def _plans(tasks: Sequence[Task], searchers: Sequence[Searcher], simulator: Simulator) -> Iterator[Plan]:
    """Raises InfeasibleError, the first one, if there is no plan at all."""
    failed: list[InfeasibleError] = []
    for task in tasks:
        for searcher in searchers:
            try:
                yield searcher.find(task, simulator).plan
            except InfeasibleError as error:
                failed.append(error)
    if len(failed) == len(tasks) * len(searchers):
        raise failed[0]


def _exchanges(plan: Plan, simulator: Simulator) -> Iterator[CommSample]:
    """The plan's all-to-all, each device starting when its predicted backward exchange and compute have ended."""
    if plan.task.topology.num_devices == 1:
        return
    cost = simulator.cost(plan.task, plan)
    ready = cost.backward + cost.compute
    starts = tuple(np.maximum(ready - ready.min(), 0).tolist())
    for one in exchanges(plan, FORWARD):
        if one.collective is Collective.ALL_TO_ALL:
            yield replace(one, start_ms=starts)


def most_doubtful(contents: Sequence[ComputeSample], models: CostModels) -> list[ComputeSample]:
    """The contents, those first on which the models' members disagree most, relative to what they predict."""
    if not contents:
        return []
    sets = loads_of(contents)
    doubt = models.compute.spread_ms(sets) / np.maximum(models.compute.predict(sets), _LEAST_MS)
    return [contents[i] for i in np.argsort(-doubt, kind="stable").tolist()]


def random_contents(task: Task, rng: np.random.Generator) -> list[ComputeSample]:
    """Of every device that has something, when tables, some of them cut into shards of columns, are handed out.

    Shards go, largest first by bytes, columns or lookups, to the device with the least so far, but a share of them,
    drawn anew for every placement, to random devices. Devices that would hold more than their memory are left out, and
    so are sequence tables.
    """
    shards = [table.with_dim(dim) for table in task.tables if table.pooled for dim in _cut(table.dim, rng)]
    score = _SCORES[int(rng.integers(len(_SCORES)))]
    random_share, devices = rng.random(), task.topology.num_devices
    load = np.zeros(devices)
    held: list[dict[str, Table]] = [{} for _ in range(devices)]
    for shard in sorted(shards, key=score, reverse=True):
        device = int(rng.integers(devices) if rng.random() < random_share else load.argmin())
        load[device] += score(shard)
        before = held[device].get(shard.name)
        held[device][shard.name] = shard if before is None else shard.with_dim(before.dim + shard.dim)
    contents = [ComputeSample(tuple(its.values()), task.batch_size) if its else None for its in held]
    pairs = zip(contents, task.topology.device_memory, strict=True)
    return [one for one, memory in pairs if one is not None and one.size_bytes <= memory]


def _cut(dim: int, rng: np.random.Generator) -> Sequence[int]:
    """Widths of the shards of a table: the widest is halved some times, most often not at all."""
    widths = [dim]
    for _ in range(int(rng.geometric(_WHOLE_SHARE)) - 1):
        widest = max(widths)
        half = DIM_MULTIPLE * (widest // DIM_MULTIPLE // 2)
        if not half:
            break
        widths.remove(widest)
        widths += [half, widest - half]
    return widths
