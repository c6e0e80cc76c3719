"""What may be worth measuring, what plans ask and contents that models may doubt, and which of it is chosen."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from typing import Generic

import numpy as np

from neuroshard.cost import cost as parts
from neuroshard.hardware.plan_samples import exchanges, input_exchange, kernel_calls
from neuroshard.layouts import LAYOUTS, Layout, in_columns
from neuroshard.models import CostModels
from neuroshard.models.parts import exchange_part
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.records.sample_loads import loads_of
from neuroshard.records.samples import BACKWARD, CommSample, ComputeSample, Sample
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.pretrain.pieces import by_part
from neuroshard.stages.pretrain.refine.rounds import Why
from neuroshard.tables import Table
from neuroshard.tasks.task import Task
from neuroshard.words.collective import BETWEEN_HOSTS
from neuroshard.words.form import FORMS, Call
from neuroshard.words.placement import Placement

_WHOLE_SHARE = 0.6  # of tables that are not cut; of the others, so many are cut once
_SCORES: tuple[Callable[[Table], float], ...] = (
    lambda table: float(table.size_bytes),
    lambda table: float(table.dim),
    lambda table: table.dim * table.pooling_factor,
)
_LEAST_MS = 1e-9
_MOST_COPY_BYTES = 64 << 20

Sources = Sequence[tuple[Why, int, Sequence[Sample]]]  # of samples, with how many of each are wanted


@dataclass(frozen=True)
class Chosen(Generic[Sample]):
    """A sample to be measured, and why it was chosen."""

    sample: Sample
    why: Why


def chosen_of(
    count: int,
    measured: Sequence[Sample],
    key: Callable[[Sample], Hashable],
    sources: Sources[Sample],
    random: Iterator[Sample],
) -> list[Chosen[Sample]]:
    """Choose `count` samples: new ones of the sources, of what was measured least first; where these end random ones.

    New is what has another `key` than what was measured, or was taken from a source before. What a source can't give,
    those behind it do.
    """
    seen: set[Hashable] = set(map(key, measured))
    chosen: list[Chosen[Sample]] = []
    due = 0
    for why, wanted, samples in sources:
        due = min(due + wanted, count)
        for sample in in_turn(samples, measured):
            if len(chosen) < due and (its := key(sample)) not in seen:
                seen.add(its)
                chosen.append(Chosen(sample, why))
    return chosen + [Chosen(sample, "random") for sample in islice(random, count - len(chosen))]


def content_key(sample: ComputeSample) -> Hashable:
    """Make a key, alike for calls of the same tables at the same widths, in one form: of blocks whichever."""
    return frozenset((table.name, table.dim) for table in sample.tables), sample.batch_size, sample.call


def exchange_key(sample: CommSample) -> Hashable:
    """Make a key, alike for one collective's exchanges of the same sizes, with the same starts to the millisecond."""
    starts = tuple(round(start) for start in sample.start_ms)
    return sample.size_bytes, starts, sample.batch_size, sample.collective


def in_turn(samples: Sequence[Sample], measured: Sequence[Sample]) -> list[Sample]:
    """Sort samples: first of the kernel calls or collectives that the fewest were measured of; of each in order."""
    counts = Counter(map(_call_or_collective, measured))
    turns = []
    for sample in samples:
        turns.append(counts[_call_or_collective(sample)])
        counts[_call_or_collective(sample)] += 1
    pairs = sorted(zip(turns, samples, strict=True), key=itemgetter(0))
    return [sample for _, sample in pairs]


def _call_or_collective(sample: Sample) -> Hashable:
    if isinstance(sample, ComputeSample):
        return sample.call
    return sample.collective if isinstance(sample, CommSample) else None


@dataclass(frozen=True)
class PlanSamples:
    """What plans ask of hardware: kernel calls and exchanges."""

    calls: list[ComputeSample]
    exchanges: list[CommSample]

    @classmethod
    def of(cls, plans: Iterable[Plan], simulator: Simulator) -> "PlanSamples":
        """Collect what plans ask as far as the models know it, but for calls of devices without the memory."""
        asked = cls([], [])
        for plan in plans:
            held = zip(_kept(plan), plan.device_bytes, plan.task.topology.device_memory, strict=True)
            asked.calls.extend(call for calls, size, memory in held if size <= memory for call in calls)
            asked.exchanges.extend(_exchanges(plan, simulator))
        known = simulator.models.compute.calls
        return cls([call for call in asked.calls if call.call in known], asked.exchanges)

    def shuffled(self, rng: np.random.Generator) -> "PlanSamples":
        """Shuffle the samples at random."""
        calls, exchanges = (rng.permutation(len(its)).tolist() for its in (self.calls, self.exchanges))
        return PlanSamples([self.calls[i] for i in calls], [self.exchanges[i] for i in exchanges])


def _kept(plan: Plan) -> Iterator[list[ComputeSample]]:
    """Yield (D,) kernel calls of each device, those that see shares of a batch with tables named by `share_name`."""
    devices = plan.task.topology.num_devices
    for calls in kernel_calls(plan):
        yield [_named(call, LAYOUTS[call.form].batch_shares(devices)) for call in calls]


def _named(call: ComputeSample, shares: int) -> ComputeSample:
    named = tuple(replace(table, name=share_name(table, shares)) for table in call.tables)
    return replace(call, tables=named) if shares > 1 else call


def share_name(table: Table, shares: int) -> str:
    """Name a table as one of so many shares of a batch looks it up."""
    return f"{table.name} (1 of {shares})"


def plans_for(tasks: Sequence[Task], searchers: Sequence[Searcher], simulator: Simulator) -> Iterator[Plan]:
    """Search the tasks with each searcher, and yield the plans; tasks without a plan are left out.

    Raises:
        InfeasibleError: no task has a plan.
    """
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
    """Yield the plan's exchanges that the models know.

    But for the input, which comes first, each device starts when its predicted backward all-to-all and compute have
    ended.
    """
    if plan.task.topology.num_devices == 1:
        return
    cost, known = simulator.cost(plan.task, plan), by_part(simulator.models)
    ready = cost.backward + cost.compute
    starts = tuple(np.maximum(ready - ready.min(), 0).tolist())
    for one in exchanges(plan, BACKWARD):
        if one.collective not in BETWEEN_HOSTS and exchange_part(parts.BACKWARD, one.collective) in known:
            yield replace(one, start_ms=starts)
    if parts.INPUT in known:
        yield from input_exchange(plan)


def most_doubtful(contents: Sequence[ComputeSample], models: CostModels) -> list[ComputeSample]:
    """Sort the contents, first those on which the models' members disagree most, relative to what they predict."""
    if not contents:
        return []
    sets = loads_of(contents)
    doubt = models.compute.spread_ms(sets) / np.maximum(models.compute.predict(sets), _LEAST_MS)
    return [contents[i] for i in np.argsort(-doubt, kind="stable").tolist()]


def random_plan(task: Task, models: CostModels, rng: np.random.Generator) -> Plan:
    """Make a plan of a task: a share of the tables, drawn anew for every plan, in random forms that the models know.

    The others are cut, some of them, into shards of columns. Shards go, largest first by bytes, columns or lookups, to
    the device with the least so far, but a share of them, drawn anew too, to random devices.
    """
    placements: list[Placement] = []
    shards: list[tuple[int, Table]] = []
    formed, devices = rng.random(), range(task.topology.num_devices)
    for number, table in enumerate(task.tables):
        layouts = _other_layouts(task, number, models) if rng.random() < formed else []
        if layouts:
            placements += layouts[int(rng.integers(len(layouts)))].over(task, number, devices)
        else:
            shards += [(number, table.with_dim(dim)) for dim in _cut(table.dim, rng)]
    return Plan(task, (*placements, *in_columns(task, _spread_out(shards, len(devices), rng))))


def _other_layouts(task: Task, number: int, models: CostModels) -> list[Layout]:
    """List layouts besides columns that a table may have, as far as the models know them."""
    table, home, devices = task.tables[number], task.homes[number], task.topology.num_devices
    calls = models.compute.calls if devices > 1 else ()
    known = [LAYOUTS[form] for form in FORMS if form in models.forms and Call(form, table.pooled, home.tier) in calls]
    small = table.size_bytes <= _MOST_COPY_BYTES
    fitting = [its for its in known if its.takes(table.dim) and its.fits(table.rows, devices)]
    return [its for its in fitting if not its.free and (small or not its.dense)]


def _spread_out(
    shards: Sequence[tuple[int, Table]], devices: int, rng: np.random.Generator
) -> Iterator[tuple[int, int, int]]:
    """Place shards on devices, and yield (table, columns, device) of each."""
    score = _SCORES[int(rng.integers(len(_SCORES)))]
    random_share, load = rng.random(), np.zeros(devices)
    for number, shard in sorted(shards, key=lambda one: score(one[1]), reverse=True):
        device = int(rng.integers(devices) if rng.random() < random_share else load.argmin())
        load[device] += score(shard)
        yield number, shard.dim, device


def _cut(dim: int, rng: np.random.Generator) -> Sequence[int]:
    """Draw the widths of a table's shards: the widest is halved some times, most often not at all."""
    widths = [dim]
    for _ in range(int(rng.geometric(_WHOLE_SHARE)) - 1):
        widest = max(widths)
        half = DIM_MULTIPLE * (widest // DIM_MULTIPLE // 2)
        if not half:
            break
        widths.remove(widest)
        widths += [half, widest - half]
    return widths
