"""Measure the costs of plans: each device's kernel calls, and then the exchanges; the measurements can be stored.

Models can be fitted to the stored measurements.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Generic

import numpy as np

from neuroshard.cost import cost as parts
from neuroshard.cost.cost import Cost, Part, Step, When, Work
from neuroshard.measure._plan_samples import exchanges, input_exchange, kernel_calls
from neuroshard.measure.hardware import Hardware
from neuroshard.measure.recorder import Due, Meters, Recorder
from neuroshard.measure.store import Chunks, DataDirectory, Manifest
from neuroshard.measure.store.data_directory import MEASURED
from neuroshard.measure.store.noise import fastest
from neuroshard.measure.store.samples import BACKWARD, FORWARD, CommSample, ComputeSample, Sample, as_drawn
from neuroshard.measure.store.splits import split_of
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.schema import DIM_MULTIPLE, readable_bytes
from neuroshard.plumbing.timing import typical_ms
from neuroshard.tables import Table

_SEED_RANGE = 2**31
Advance = Callable[[int], None]
_EXCHANGES = 1  # a stream of random numbers


@dataclass(frozen=True)
class Numbers(Generic[Sample]):
    """Gives each sample a number, under which the measurements of the sample are stored.
    A sample that is measured again keeps its number, so the times with the same number show how the machine's speed
    changes.

    Attributes:
        chunks: where measurements are stored; None stores nothing.
        known: numbers of the samples, as they were drawn.
        named: returns samples with the table names under which they are stored.
    """

    chunks: Chunks[Sample] | None = None
    known: dict[Sample, int] = field(default_factory=dict)
    named: Callable[[Sequence[Sample]], Sequence[Sample]] = lambda samples: samples

    def due(self, samples: Sequence[Sample], rng: np.random.Generator) -> list[Due[Sample]]:
        """Return a `Due` object for each sample, from which the sample can be measured. The object has the sample, the
        sample's number and split (training or validation), and a seed. The seeds are drawn from `rng`.

        An exchange with start delays gets the split of the same exchange without delays, if the exchange without delays
        has a number.
        """
        seeds = rng.integers(_SEED_RANGE, size=len(samples)).tolist()
        return [self._numbered(sample, seed) for sample, seed in zip(self.named(samples), seeds, strict=True)]

    def _numbered(self, sample: Sample, lookups: int) -> Due[Sample]:
        """Return a `Due` object with the sample, the sample's number and the sample's split. A new sample gets the next
        free number. If the sample already had a number, the field `second_pass` of the object is True. `lookups` is the
        seed of the lookups, which the object stores.
        """
        again = sample in self.known
        number = self.known.setdefault(sample, 1 + max(self.known.values(), default=-1))
        alike = replace(sample, start_ms=(0.0,) * sample.num_devices) if isinstance(sample, CommSample) else sample
        return Due(sample, number, lookups, split_of(self.known.get(alike, number)), again)


@dataclass(frozen=True)
class PlanRecords:
    """Numbers for the samples that `measure_plans` measures: a sample is a kernel call or an exchange. By default, the
    measurements of the samples are not stored. Records from `of_run` store the measurements in the directory of a run.
    """

    calls: Numbers[ComputeSample] = field(default_factory=Numbers)
    exchanges: Numbers[CommSample] = field(default_factory=Numbers)

    @classmethod
    def of_run(cls, run: Path, hardware: Hardware) -> "PlanRecords":
        """Return records that store measurements in the directory of a run.
        If the directory already has records, new measurements are added to the existing records.

        Raises:
            UserError: the records were measured on other hardware or with other settings, or are damaged.
        """
        directory = DataDirectory(run / MEASURED)
        there = tuple(directory.tables().values()) if Manifest.exists(directory.path) else ()
        directory.begin(Manifest.of_plans(hardware.fingerprint, asdict(hardware)), there)
        calls, exchanges = directory.compute(), directory.comm()
        named = partial(_named_calls, directory)
        return cls(Numbers(calls, _known(calls), named), Numbers(exchanges, _known(exchanges)))


def _known(chunks: Chunks[Sample]) -> dict[Sample, int]:
    """Return a dict that maps each stored sample to the sample's number. If a sample is measured again, the number is
    looked up in this dict.

    The keys are copies of the samples with an empty field `lookups`, because this field is empty in a new sample. A
    measurement of row-wise tables fills the field.
    """
    return {as_drawn(m.sample): m.sample_id for m in fastest(chunks.each())}


def _named_calls(directory: DataDirectory, calls: Sequence[ComputeSample]) -> list[ComputeSample]:
    """Return copies of the kernel calls with new table names, so that different tables never have the same name.
    All tables are written to the data directory under these names.

    Data-parallel tables look up only their own device's samples, so their statistics differ from the task's tables.
    """
    tables = directory.tables()
    named = [replace(call, tables=tuple(_named(table, tables) for table in call.tables)) for call in calls]
    directory.write_tables(tuple(tables.values()))
    return named


def _named(table: Table, there: dict[str, Table]) -> Table:
    """Add a table to `there`, a dict of tables by name, and return the table under the name that it has in the dict.

    If the name belongs to a different table, the table is renamed `name (2)`, `name (3)`, ...: the first name that is
    free or belongs to an equal table. If there is an equal table under the name, the dict stays as it was. Tables that
    differ only in width, number of features and pooling (`_whole`) are equal here.
    """
    names = (table.name if number == 1 else f"{table.name} ({number})" for number in count(1))
    renamed = (replace(table, name=name) for name in names)
    return next(
        candidate for candidate in renamed if _whole(there.setdefault(candidate.name, candidate)) == _whole(candidate)
    )


def _whole(table: Table) -> Table:
    """Return a copy of the table with a fixed width, a fixed number of features, and fixed pooling. Two tables that
    differ only in these three properties have equal copies, and are stored as one table. No information is lost,
    because each stored measurement has the three properties.
    """
    return replace(table, dim=DIM_MULTIPLE, features=1, pooled=True)


def measure_plans(
    meters: Meters,
    plans: Sequence[Plan],
    seed: int,
    advance: Advance,
    count_input: bool = False,
    records: PlanRecords | None = None,
) -> list[Cost | str]:
    """Measure all plans, and return a list with an entry for each plan. The entry is the cost of the plan; if the
    measurement of the plan failed, the entry is the error as text.

    Plans that are next to each other in `plans` share batches of live operators, so place plans that are compared next
    to each other. Kernel calls of all devices are timed one by one on one device. Then all exchanges are timed: the
    backward exchanges, and then the forward exchanges, which each device starts when its measured backward exchange and
    compute have ended. With `count_input`, the exchange of indices and lengths is measured and counted, too: it delays
    compute. The function calls `advance` after every measured call or exchange, and stores the measurements in
    `records`. The exchanging processes stay alive; the computing process ends and frees its memory.

    Raises:
        UserError: a plan uses a memory tier that the hardware does not have.
    """
    meters.hardware.check_tiers({assignment.tier for plan in plans for assignment in plan.tier_assignments})
    meters.join(plan.task.topology for plan in plans)
    records = records or PlanRecords()
    compute, errors = _measure_compute(plans, meters, records.calls, seed, advance)
    costs: dict[int, Cost | str] = {**errors}
    for devices in sorted({_num_devices(plan) for plan in plans}):
        alike = [i for i, plan in enumerate(plans) if i not in errors and _num_devices(plan) == devices]
        if alike:
            stacked = np.stack([compute[i] for i in alike])
            same_size, numbers = [plans[i] for i in alike], records.exchanges
            measured = _measure_exchanges(same_size, stacked, meters, numbers, seed, advance, count_input)
            costs |= zip(alike, measured, strict=True)
    return [costs[i] for i in range(len(plans))]


def _num_devices(plan: Plan) -> int:
    return plan.task.topology.num_devices


def steps(plans: Sequence[Plan], count_input: bool = False) -> int:
    """Return the number of kernel calls and exchanges that `measure_plans` measures.
    If all measurements succeed, `measure_plans` calls `advance` this number of times.
    """
    calls = sum(len(device_calls) for plan in plans for device_calls in kernel_calls(plan))
    calls += sum(len(input_exchange(plan)) for plan in plans if count_input)
    return calls + sum(len(exchanges(plan, direction)) for plan in plans for direction in (BACKWARD, FORWARD))


def _measure_compute(
    plans: Sequence[Plan], meters: Meters, numbers: Numbers[ComputeSample], seed: int, advance: Advance
) -> tuple[list[FloatArray], dict[int, str]]:
    """Measure all kernel calls of the plans, and return the compute times and the errors.
    The compute times are a list with an array (D,) in ms for each plan: the total time of all kernel calls on each of D
    devices. The errors are a dict from the index of a plan to the error that stopped a measurement of this plan.
    """
    called = [
        (p, d, call) for p, plan in enumerate(plans) for d, calls in enumerate(kernel_calls(plan)) for call in calls
    ]
    compute, errors = [np.zeros(_num_devices(plan)) for plan in plans], dict[int, str]()
    with meters.hardware.compute_meter(meters.warn) as meter:
        recorder = Recorder(lambda _: meter, meters.hardware.compute_timing.live, seed, numbers.chunks)
        outcomes = recorder.measure(numbers.due([call for _, _, call in called], np.random.default_rng(seed)))
        for (p, d, _), outcome in zip(called, outcomes, strict=True):
            if outcome.repeats is None:
                errors.setdefault(p, f"device {d}: {outcome.error}")
            else:
                compute[p][d] += typical_ms(outcome.repeats.times_ms)
            advance(1)
    return compute, errors


def _measure_exchanges(
    plans: Sequence[Plan],
    compute: FloatArray,
    meters: Meters,
    numbers: Numbers[CommSample],
    seed: int,
    advance: Advance,
    count_input: bool,
) -> list[Cost | str]:
    """Measure the exchanges of P plans that have the same number of devices D, and return the cost of each plan.
    The cost consists of the compute times `compute` (P, D), in ms, and the measured exchange times. If the measurement
    of a plan failed, the error as text replaces the cost.
    """
    rng, errors = np.random.default_rng([seed, _EXCHANGES]), dict[int, str]()
    recorder = Recorder(meters.of, meters.hardware.comm_timing.live, seed, numbers.chunks)

    def measured(
        name: str, exchanges_of_plans: Sequence[tuple[CommSample, ...]], direction: int, start_ms: FloatArray
    ) -> Part:
        """Measure the exchanges of all P plans in one direction (such as forward), and return the times as one `Part`
        of the step. The times are (P, D) ms: the total time of a plan's exchanges on each of D devices. The first
        exchange of every plan is measured first, then the second exchange of every plan, and so on.

        A device begins a plan's next exchange when its previous exchange has ended. Failures are recorded in `errors`.
        """
        taken, left = np.zeros_like(start_ms), dict(enumerate(exchanges_of_plans))
        while left := {number: some for number, some in left.items() if some}:
            ready = start_ms + taken
            delays = (ready - ready.min(axis=1, keepdims=True)).tolist()
            due = [replace(some[0], start_ms=tuple(delays[number])) for number, some in left.items()]
            for number, outcome in zip(list(left), recorder.measure(numbers.due(due, rng)), strict=True):
                if outcome.repeats is None:
                    errors.setdefault(number, f"exchange: {outcome.error}")
                    left[number] = ()
                else:
                    taken[number] += typical_ms(outcome.repeats.times_ms)[direction]
                    left[number] = left[number][1:]
                advance(1)
        return Part(name, When[name.upper()], taken)

    forward, backward = ([exchanges(plan, direction) for plan in plans] for direction in (FORWARD, BACKWARD))
    works: list[Work] = [
        (When.COMPUTE, lambda _: Part(parts.COMPUTE, When.COMPUTE, compute)),
        (When.FORWARD, partial(measured, parts.FORWARD, forward, FORWARD)),
        (When.BACKWARD, partial(measured, parts.BACKWARD, backward, BACKWARD)),
    ]
    if count_input:
        index_exchanges = [input_exchange(plan) for plan in plans]
        works.append((When.INPUT, lambda ready: measured(parts.INPUT, index_exchanges, FORWARD, np.zeros_like(ready))))
    step = Step.of(works, compute.shape)
    return [errors.get(number) or Cost(step[number].parts) for number in range(len(plans))]


def beyond_memory(plan: Plan, hardware: Hardware) -> str | None:
    """Return None if this host has enough memory to measure the plan; otherwise return an error text. The text has the
    needed and the available memory. If kernels run on CPUs, the host needs memory for the weights of any single device
    of the plan. If kernels run on GPUs, memory is not checked, and the result is None.
    """
    if hardware.device.kind != "cpu":
        return None
    needed = int(plan.device_loads.totals(plan.device_loads.loads.size_bytes).max())
    there = hardware.fingerprint.memory_bytes
    if needed < there:
        return None
    return f"the tables of a device need {readable_bytes(needed)}; this machine has {readable_bytes(there)}"
