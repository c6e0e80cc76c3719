"""Time training steps of plans, on all ranks or as mirrored steps (one process runs one rank of a larger job).
On all ranks, the models are built several times, each time in a new group of processes. Mirrored steps are measured for
one rank after another.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from neuroshard.measure._workers.runs import Outcome
from neuroshard.measure._workers.workers import Meter, Sample
from neuroshard.measure.hardware import Hardware, Warn, under_torchrun
from neuroshard.measure.steps.step_samples import LOOKUPS_ALONE, PHASES, PIPELINES, STEP, StepProtocol, measured_ranks
from neuroshard.measure.store.plan_measurements import COST, Pass, PlanMeasurement, error_of
from neuroshard.measure.store.samples import HOST, LOCAL_PHASES, LocalSample
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import BoolArray, FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.words.topology import Topology

_SEED_RANGE = 2**31


# Measures one build of plans of one task, all live together, as the pass with the given number; the seed fixes the
# order of the plans and the lookups.
Builds = Callable[[Sequence[Plan], int, Sequence[int]], Pass]


@contextmanager
def step_builds(hardware: Hardware, protocol: StepProtocol, topology: Topology, warn: Warn) -> Iterator[Builds]:
    """Yield a function that builds the models of plans for this topology and times the training steps of the plans.
    Each call of the function uses a new group of processes.

    Under torchrun, the function uses torchrun's processes, which stay alive: the other processes take part until the
    end.

    Raises:
        UserError: torchrun started another number of processes; or, when the function is called, the processes cannot
            be started.
    """
    if under_torchrun():
        with hardware.step_meter(topology, protocol, warn) as meter:
            yield partial(measure_build, meter)
        return

    def build(plans: Sequence[Plan], number: int, seed: Sequence[int]) -> Pass:
        """Build the models of the plans in a new group of processes, and return the times of training steps as rows.
        This is one measurement pass (each pass measures all plans once); all rows store the pass number `number`.
        """
        with hardware.step_meter(plans[0].task.topology, protocol, warn) as meter:
            return measure_build(meter, plans, number, seed)

    yield build


def measure_build(meter: Meter[Plan], plans: Sequence[Plan], number: int, seed: Sequence[int]) -> Pass:
    """Build the models of all plans together in memory, measure their training steps with `meter`, and return the times
    as rows. This is one measurement pass, in which each plan is measured once. `number` is the number of the pass,
    which all rows store.

    The seed fixes the order of the plans and the lookups.
    """
    outcomes = measured_in_any_order(meter, plans, seed)
    return tuple(row for k, outcome in enumerate(outcomes) for row in _rows_of_build(k, number, outcome))


def measured_in_any_order(meter: Meter[Sample], samples: Sequence[Sample], seed: Sequence[int]) -> list[Outcome]:
    """Measure all samples together in a random order, and return the outcomes in the order of `samples`.
    The seed fixes the random order.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(samples))
    seeds = rng.integers(_SEED_RANGE, size=len(samples)).tolist()
    outcomes = meter.measure([samples[i] for i in order], seeds)
    return [outcomes[place] for place in order.argsort()]


def _rows_of_build(plan: int, number: int, outcome: Outcome) -> list[PlanMeasurement]:
    """Return the measured times of a plan's training steps as rows, with one row for each time.
    If the measurement failed, there is only one row, with the error.

    The first rows are the times of a step, one for each turn. Then follow the mean time of each phase, and the mean
    time of lookups alone (only one rank looks up at a time). The last row is the cost of the plan: the median over
    turns of the time of a step. All times are means over ranks; the mean times are means over turns, too. The repeats
    of `outcome` are (R, 1 + P + 1, D) ms for R turns and D ranks: of a step, its P phases, and lookups alone.
    """
    if outcome.repeats is None:
        return [PlanMeasurement(plan, number, error=outcome.error)]
    mean_ms = outcome.repeats.times_ms.mean(axis=(0, 2))
    steps_ms = outcome.repeats.times_ms[:, 0].mean(axis=-1)
    named = [(STEP, ms) for ms in steps_ms.tolist()]
    named += zip((*PHASES, LOOKUPS_ALONE), mean_ms[1:].tolist(), strict=True)
    named.append((COST, float(np.median(steps_ms))))
    return [PlanMeasurement(plan, number, phase=phase, ms=ms) for phase, ms in named]


def check_steps(plans: Sequence[Plan], hardware: Hardware) -> None:
    """Raise UserError if this machine cannot time training steps of these plans.
    The models of all plans must fit in memory together.
    """
    check_comparable(plans)
    hardware.check_hosts(plans[0].task.topology)
    check_held(plans, "on all devices together", sum(sum(plan.device_bytes) for plan in plans), hardware)


def check_held(plans: Sequence[Plan], where: str, needed_bytes: int, hardware: Hardware) -> None:
    """Raise UserError if this machine lacks a memory tier that the plans use, or has too little memory for all plans at
    once. The shards of all plans together need `needed_bytes` of memory; this number is checked only if kernels run on
    CPUs. The error message contains the text `where`, which names the devices that need the memory, such as "on all
    devices together".
    """
    hardware.check_tiers({assignment.tier for plan in plans for assignment in plan.tier_assignments})
    if hardware.device.kind == "cpu" and needed_bytes > (there := hardware.fingerprint.memory_bytes):
        raise UserError(
            "steps-memory-too-small",
            f"the shards of {number_of(len(plans), 'plan')} {where} need {readable_bytes(needed_bytes)} of memory at "
            "once",
            limit=f"this machine has {readable_bytes(there)}",
            remedy="Measure fewer plans in one run, or plans of smaller tables",
        )


def check_comparable(plans: Sequence[Plan]) -> None:
    """Raise UserError if TorchRec lacks a plan's sharding types, or if the plans have different tables or devices."""
    for plan in plans:
        plan.check_layouts(
            lambda layout: bool(layout.words), "TorchRec has no such sharding type", "Set measure=kernels"
        )
    task = plans[0].task
    if any(plan.task.tables != task.tables or plan.task.topology != task.topology for plan in plans):
        raise UserError(
            "steps-plans-differ",
            "the plans have different tables or devices",
            limit="training steps can be compared only if the plans have the same tables and the same devices",
            remedy="Give plans of the same task",
        )


@dataclass(frozen=True)
class RankJob:
    """One rank, and the plans (by index) whose steps are measured together on this rank."""

    rank: int
    plans: tuple[int, ...]


def rank_jobs(plans: Sequence[Plan]) -> tuple[RankJob, ...]:
    """Return one `RankJob` for each rank on which mirrored steps are measured, in order of rank. A `RankJob` has the
    rank and the indices of the plans that are measured on this rank. All plans belong to one task.

    If plans have more than 8 ranks, only a few ranks of each plan are measured. These ranks may differ between the
    plans.
    """
    ranks = [measured_ranks(plan) for plan in plans]
    every = sorted({rank for ranks_of_plan in ranks for rank in ranks_of_plan})
    return tuple(
        RankJob(rank, tuple(k for k, ranks_of_plan in enumerate(ranks) if rank in ranks_of_plan)) for rank in every
    )


def measure_rank(
    job: RankJob,
    plans: Sequence[Plan],
    protocol: StepProtocol,
    number: int,
    seed: Sequence[int],
    hardware: Hardware,
    warn: Warn,
) -> Pass:
    """Measure the local work of one rank in training steps of the job's plans, in a new process, and return rows.
    The models of all these plans are in memory together. The rows belong to one measurement pass (each pass measures
    all plans once), and store the pass number `number`.

    The seed fixes the order of the plans and the lookups.

    Raises:
        UserError: the process cannot be started.
    """
    samples = [LocalSample(plans[k], job.rank) for k in job.plans]
    with hardware.mirror_meter(protocol, warn) as meter:
        outcomes = measured_in_any_order(meter, samples, seed)
    named = zip(job.plans, outcomes, strict=True)
    return tuple(row for plan, outcome in named for row in rows_of_rank(plan, number, job.rank, outcome))


def rows_of_rank(plan: int, number: int, rank: int, outcome: Outcome) -> list[PlanMeasurement]:
    """Return the measured local work of one rank in a training step of a plan as rows. Each row is one stretch of the
    step, in order: work in one phase, which ends when an exchange or the next phase begins. A row has the median time
    of the stretch over the repeats. If the measurement failed, there is only one row, with the error.

    If the stretch ends at an exchange, the row also has the bytes that the rank sends and receives in this exchange.
    """
    if outcome.repeats is None:
        return [PlanMeasurement(plan, number, rank, error=outcome.error)]
    medians = np.median(outcome.repeats.times_ms, axis=0).T.tolist()
    return [
        PlanMeasurement(plan, number, rank, stretch.phase, ms, None, stretch.until, sent, received)
        for stretch, (ms, sent, received) in zip(outcome.seen, medians, strict=True)
    ]


@dataclass(frozen=True)
class LocalMeter(Meter[LocalSample]):
    """Measures the local work of one rank in a training step, in ms per phase. Local work is all work of the rank apart
    from exchanges. A sample to measure is a plan and a rank (`LocalSample`). The field `meter` measures the samples,
    one after another.
    """

    meter: Meter[LocalSample]

    def close(self) -> None:
        """End the process that measures the steps."""
        self.meter.close()

    def measure(self, samples: Sequence[LocalSample], seeds: Sequence[int]) -> list[Outcome]:
        """Measure the local work of a rank for each sample, and return an outcome (times or an error) for each sample.
        The times are an array (R, P) in ms, for R repeats and P phases of a step. If the host's time to launch a step
        was measured, this time is an additional last column.
        """
        return [by_phase(*self.meter.measure([sample], [seed])) for sample, seed in zip(samples, seeds, strict=True)]


def by_phase(outcome: Outcome) -> Outcome:
    """Add up the measured times of a step by phase, and return an outcome with the sums, (R, P) ms, for R repeats and P
    phases. In the given outcome, a step is divided more finely, into stretches. A stretch is work in one phase, and
    ends when an exchange or the next phase begins.

    If the host's time to launch a step was measured, this time is an additional last column of the sums. The outcome of
    a failed measurement is returned unchanged.
    """
    if outcome.repeats is None:
        return outcome
    named = [stretch.phase for stretch in outcome.seen]
    phases = LOCAL_PHASES if HOST not in named else (*LOCAL_PHASES, HOST)
    of_phase = np.array([[phase == column_phase for column_phase in phases] for phase in named], dtype=np.float64)
    times_ms = outcome.repeats.times_ms[:, 0] @ of_phase
    return Outcome(replace(outcome.repeats, times_ms=times_ms), outcome.error, outcome.busy_s)


@dataclass(frozen=True, eq=False)
class MirroredStep:
    """The local work of the measured ranks during one training step of a plan. Local work is all work of a rank apart
    from exchanges. The step has K - 1 exchanges, which divide the local work of each of R ranks into K intervals.

    Attributes:
        ranks: (R,) the measured ranks.
        phase_ms: (R, K, P) local work of each phase before each exchange, and after the last.
        waited_for: (K - 1,) True if ranks wait for the exchange at once. In a pipeline, indices are sent while ranks
            continue to work, and ranks wait for them only after other exchanges.
    """

    ranks: tuple[int, ...]
    phase_ms: FloatArray
    waited_for: BoolArray

    @classmethod
    def of(cls, rows: Sequence[PlanMeasurement], pipeline: str = "none") -> "MirroredStep":
        """Return the timeline of a plan's step, computed from `rows`, the measured local work of all ranks.
        The rows must come from a single measurement pass (each pass measures the plan once), and the rows of each rank
        must be in the order of the step.

        Raises:
            ValueError: a rank failed, or ranks have different exchanges.
        """
        if (error := error_of(rows)) is not None:
            raise ValueError(error)
        by_rank = grouped([row for row in rows if row.phase in LOCAL_PHASES], lambda row: row.device)
        exchanges = [[row for row in of_rank if row.until] for of_rank in by_rank.values()]
        if any([row.until for row in of_rank] != [row.until for row in exchanges[0]] for of_rank in exchanges):
            raise ValueError("ranks of the plan take part in different exchanges: its step has no common timeline")
        phase_ms = np.zeros((len(by_rank), len(exchanges[0]) + 1, len(LOCAL_PHASES)))
        for number, of_rank in enumerate(by_rank.values()):
            ends = np.array([bool(row.until) for row in of_rank])
            phases = [LOCAL_PHASES.index(row.phase or "") for row in of_rank]
            np.add.at(phase_ms[number], (ends.cumsum() - ends, phases), [row.ms or 0.0 for row in of_rank])
        waited_for = np.array([row.phase not in PIPELINES[pipeline] for row in exchanges[0]], dtype=bool)
        return cls(tuple(rank for rank in by_rank if rank is not None), phase_ms, waited_for)

    @property
    def slowest_ms(self) -> FloatArray:
        """The time of each of P phases in a step, (P,) ms, on the ranks that are the slowest.

        Exchanges for which ranks wait divide the step into parts. In each part, only the rank with the most local work
        counts; other parts may have another slowest rank. The time of a phase is the sum over all parts.
        """
        by_phase = [work.sum(axis=1) for work in self._between]
        slowest: FloatArray = np.sum([ms[ms.sum(axis=1).argmax()] for ms in by_phase], axis=0)
        return slowest

    @property
    def step_ms(self) -> float:
        """The time of a step, in ms, if exchanges take no time. Ranks wait for the slowest rank at each exchange,
        except at exchanges during which ranks continue to work.
        """
        return float(self.slowest_ms.sum())

    def exposed_ms(self, input_ms: float) -> float:
        """Return the time, in ms, by which the input dist makes the step longer.
        The whole input dist takes `input_ms`, but other work may hide a part of this time.

        If ranks wait for the input dist, all of it counts. In a pipeline, the input dist begins at time a, when the
        last rank has reached it; the next exchange could begin at time b, when the last rank has reached that one. Both
        use the same links, so that neither hides the other: the next exchange begins when the indices have arrived, at
        max(b, a + input). The step takes longer by max(0, input - (b - a)): the local work between both exchanges hides
        the rest.
        """
        ahead = [work for work in self._between if work.shape[1] > 1]
        if not ahead:
            return input_ms
        *_, a, b = ahead[-1].sum(axis=2).cumsum(axis=1).max(axis=0).tolist()
        return max(input_ms - float(b - a), 0.0)

    @property
    def _between(self) -> list[FloatArray]:
        """The local work of the R measured ranks in ms, as a list of arrays (R, k, P): one array for each part of the
        step. The exchanges for which ranks wait divide the step into parts.

        An array has the times of P phases on R ranks in the k intervals of the part. The k - 1 exchanges between these
        intervals are exchanges for which ranks do not wait. Other parts may have another k.
        """
        return np.split(self.phase_ms, np.flatnonzero(self.waited_for) + 1, axis=1)


def check_mirrored(plans: Sequence[Plan], hardware: Hardware) -> None:
    """Raise UserError if this machine cannot measure mirrored steps (one process runs one rank of a larger job).
    The plans must belong to one task, and the models of all plans must fit in memory together.
    """
    if under_torchrun():
        raise UserError(
            "mirrored-under-torchrun",
            "torchrun started this process",
            limit="mirrored steps of all ranks are measured on one device, one rank after another",
            remedy="Start the command without torchrun",
        )
    check_comparable(plans)
    needed = {job.rank: sum(plans[k].device_bytes[job.rank] for k in job.plans) for job in rank_jobs(plans)}
    rank = max(needed, key=needed.__getitem__)
    check_held(plans, f"on rank {rank}", needed[rank], hardware)
