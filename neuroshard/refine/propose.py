"""What searches propose, as samples: the contents of devices, and the exchanges between them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np

from neuroshard.hardware.plan_samples import exchanges, kernel_calls
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.records.samples import FORWARD, CommSample, ComputeSample
from neuroshard.searching.searcher import Searcher
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Collective
from neuroshard.words.form import IN_COLUMNS


@dataclass(frozen=True)
class Proposals:
    """Kernel calls and exchanges of plans, in columns."""

    calls: tuple[ComputeSample, ...]
    exchanges: tuple[CommSample, ...]


def believing(searcher: Searcher) -> Searcher:
    """The same search, which takes every predicted gain for true; as it is where it has no such choice."""
    if is_dataclass(searcher) and any(field.name == "choice" for field in fields(searcher)):
        changes = {"choice": None}
        return replace(searcher, **changes)
    return searcher


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
