"""Measure plans by mirrored training steps, in which one process runs one rank of a larger job. Used by
`evaluate measure=mirrored` and `search verify=mirrored`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.table import Table as Grid

from neuroshard.cost.loads import Traffic
from neuroshard.measure import Hardware
from neuroshard.measure.hardware import Warn
from neuroshard.measure.plan_costs import Advance
from neuroshard.measure.steps.step_meters import MirroredStep, check_mirrored, measure_rank, rank_jobs
from neuroshard.measure.store.plan_measurements import COST, Pass, PlanMeasurement, by_plan
from neuroshard.measure.store.samples import HOST, LOCAL_PHASES
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.schema import PathName
from neuroshard.stages.search.evaluate.comparison import (
    Evaluated,
    plans_of,
)
from neuroshard.stages.search.evaluate.measurer import Measure, TorchRecMeasurer, plans_once
from neuroshard.stages.search.evaluate.plan_comparison import Cell, Comparison
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Collective


class ExchangesOfStep(NamedTuple):
    """The predicted times in ms of the exchanges of one plan, if all devices begin each exchange at the same time.
    Without cost models, the times are NaN.

    Attributes:
        waited_ms: exchanges of embeddings, of their gradients, and of data-parallel tables' gradients.
        input_ms: input dist; 0 if the models cannot predict it.
    """

    waited_ms: float = float("nan")
    input_ms: float = float("nan")

    @classmethod
    def of(cls, models: CostModels, traffic: Traffic) -> "ExchangesOfStep":
        """Predict the times of the exchanges in a training step of one plan. `traffic` has the bytes that the devices
        exchange in a step.
        """
        idle = np.zeros((1, traffic.num_devices))
        waited_ms = np.sum(Simulator(models).communication(traffic, idle), axis=0)
        input_ms = np.zeros(1) if models.input is None else models.input.predict(traffic.alone(Collective.INPUT), idle)
        return cls(float(waited_ms.max()), float(input_ms.max()))

    def in_step(self, step: MirroredStep) -> float:
        """Return the time in ms that the exchanges add to the local work in a mirrored step. The measured time of
        `step` contains no exchanges, because each rank runs alone. If other work overlaps with a part of the input
        dist, this part adds no time. All other exchanges add their whole time.
        """
        return self.waited_ms + step.exposed_ms(self.input_ms)


@dataclass(frozen=True)
class MirroredMeasurer(TorchRecMeasurer):
    """Measures training steps of plans for many ranks on a single device, by mirrored steps. In a mirrored step, one
    process runs one rank of a larger job, as if all other ranks did the same work as this rank. The ranks are measured
    one after the other. TorchRec trains the user's tables with a substitute for the user's dense network.

    Local work is measured, and exchanges are predicted. So one device can measure plans for any number of devices. An
    evaluation measures the first plan twice; the difference of both is the floor.

    Attributes:
        protocol: how steps are timed; each build of a rank is in a fresh process.
        exchanges: cost models whose exchanges are added to the local work, such as h100; None leaves exchanges out. The
            input dist is added as far as the protocol's pipeline does not hide it.
        exchange_dtype: data type of embeddings and gradients in these exchanges, such as fp16, or fp16/bf16 for forward
            and backward; None for fp32.
    """

    kind: ClassVar[str] = "mirrored"
    detail: ClassVar[str] = "stretches"

    exchanges: PathName | None = None
    exchange_dtype: str | None = None

    def check_together(self, plans: Sequence[Plan], hardware: Hardware) -> None:
        """Raise UserError if this machine cannot measure mirrored steps of these plans. In a mirrored step, one process
        runs one rank of a larger job. The plans must belong to one task, and the models of all plans must fit in memory
        together.
        """
        check_mirrored(plans, hardware)

    def follow(self, hardware: Hardware) -> None:
        """Do nothing: mirrored steps never run under torchrun, because `check` refuses the processes of torchrun."""

    @contextmanager
    def opened(self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn) -> Iterator[Measure]:
        """Yield the function that measures plans; this function starts a new process for every rank."""
        yield partial(self._measured, hardware, warn)

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """Return the number of units of progress: one for each rank that is measured for these plans."""
        return len(rank_jobs(plans))

    def wrong(self, plans: Sequence[Plan], rows: Pass) -> str | None:
        """Check that the measurements `rows` have the form of mirrored steps, in which one process runs one rank of a
        larger job. Times of local work must name a rank, and all other values, such as the cost of a plan, must not.
        Rows with errors are not checked. Return None if the check succeeds, and otherwise the reason as text.
        """
        known = {*LOCAL_PHASES, HOST}
        fits = all((row.phase in known) is (row.device is not None) for row in rows if row.error is None)
        return None if fits else "does not have the times of mirrored steps"

    def compared(self, task: int, entries: Sequence[Evaluated], passes: Sequence[Pass]) -> Comparison:
        """Compare the plans of a task by mirrored steps, in which one process runs one rank of a larger job. The step
        times in the result are the times of local work, without exchanges. The predicted times of exchanges are in a
        separate column. Passes with errors are left out of the times of phases and exchanges.
        """
        by_pass = [by_plan(one_pass, len(entries)) for one_pass in passes]
        steps = [self._steps([plans[k] for plans in by_pass]) for k in range(len(entries))]
        exchanges = zip(self.exchanges_of(plans_of(entries)), steps, strict=True)
        added = [float(np.median([of_plan.in_step(step) for step in done] or np.nan)) for of_plan, done in exchanges]
        ranks = [list(dict.fromkeys(row.device for row in rows if row.device is not None)) for rows in by_pass[0]]
        compared = Comparison.of(task, entries, passes, self._local_ms, _mean_phases(steps))
        columns = (
            {"local_ms": float(compared.step_ms[k]), "exchange_ms": added[k], "ranks": ranks[k]}
            | {phase: float(ms[k]) for phase, ms in compared.phase_ms.items()}
            for k in range(len(entries))
        )
        return replace(compared, columns=tuple(columns))

    def details(self, compared: Comparison, passes: Sequence[Pass]) -> list[dict[str, Any]]:
        """Return the rows of `stretches.parquet`: the times of all stretches of the measured ranks. A stretch is a part
        of a training step: work in one phase, up to an exchange or to the next phase. The stretches of a rank are in
        the order in which they ran. If device and host work in parallel, the last row of a rank is not a stretch, but
        the time in which the host launches the step.
        """
        return [
            {
                **{"method": name, "task": compared.task, "build": number, "rank": rank, "place": place},
                **{"phase": row.phase, "until": row.until, "ms": row.ms},
                **{"sent_bytes": row.sent_bytes, "received_bytes": row.received_bytes},
            }
            for number, one_pass in enumerate(passes)
            for name, rows in zip(compared.names, by_plan(one_pass, len(compared.names)), strict=True)
            for rank, of_rank in grouped(rows, lambda row: row.device).items()
            for place, row in enumerate(of_rank)
            if rank is not None and row.error is None
        ]

    def tables_and_lines(self, compared: Comparison) -> list[Grid | str]:
        """Return a readable comparison of the plans: tables, followed by lines of text. The tables have the times of
        each plan. The first line gives the time difference between two measurements of the first plan, and the other
        lines give the plans that failed.
        """
        devices = plans_of(compared.entries)[0].task.topology.num_devices
        columns: Mapping[str, Cell] = {
            "ranks measured": lambda row: _ranges(row["ranks"]),
            "local work": lambda row: f"{row['local_ms']:.2f}",
            "beside the first": lambda row: f"{row['beside_first']:.3f}",
            "exchanges": lambda row: _known(row["exchange_ms"]),
            "predicted cost": lambda row: _known(row["predicted_ms"]),
        }
        floor = f"the first plan, measured twice, differs from itself by {compared.floor:.1%}"
        return compared.tables_and_lines(
            f"Mirrored steps on {devices} ranks, ms", columns, "Local work by phase", floor
        )

    def exchanges_of(self, plans: Sequence[Plan]) -> list[ExchangesOfStep]:
        """Return the predicted times of the exchanges for each of K plans, as a list of length K. The times are NaN if
        this measurer has no cost models for exchanges.
        """
        if self.exchanges is None:
            return [ExchangesOfStep()] * len(plans)
        models = CostModels.load(self.exchanges, exchange_dtype=self.exchange_dtype)
        return [ExchangesOfStep.of(models, plan.traffic) for plan in plans]

    def timeline(self, rows: Sequence[PlanMeasurement]) -> MirroredStep | str:
        """Combine the measurements of a plan's ranks into one training step, and return the step. The result is called
        a mirrored step, because each rank ran alone. If the measurements cannot be combined, return the error as text.
        """
        try:
            return MirroredStep.of(rows, self.protocol.pipeline)
        except ValueError as error:
            return str(error)

    def _steps(self, passes: Sequence[Pass]) -> list[MirroredStep]:
        """Return a list of training steps of one plan, with one step for each pass. A step combines the measurements of
        all measured ranks in the pass. `passes` has the measurements of the plan in each pass. Passes with errors are
        left out.
        """
        return [step for step in map(self.timeline, passes) if not isinstance(step, str)]

    def _local_ms(self, rows: Pass) -> list[float]:
        """Return the ms of a plan's local work (a training step without exchanges) in one pass, as a list of one
        number. The list is empty if the pass has an error.
        """
        return [step.step_ms for step in self._steps([rows])]

    def _measured(
        self,
        hardware: Hardware,
        warn: Warn,
        plans: Sequence[Plan],
        number: int,
        seed: Sequence[int],
        advance: Advance,
        _run: Path,
    ) -> Pass:
        """Measure every plan once by mirrored steps, and return the measurements as rows, including the cost of each
        plan. The cost is the measured time of the local work plus the predicted time of the exchanges. The exchanges
        count as 0 if their times are unknown. `number` is the number of this pass, and `seed` fixes the lookups and the
        order of the plans.
        """
        check_mirrored(plans_once(plans), hardware)
        rows: Pass = ()
        for job in rank_jobs(plans):
            rows += measure_rank(job, plans, self.protocol, number, seed, hardware, warn)
            advance(1)
        steps = [self.timeline(of_plan) for of_plan in by_plan(rows, len(plans))]
        exchanges = self.exchanges_of(plans)
        costs = [
            PlanMeasurement(k, number, error=step)
            if isinstance(step, str)
            else PlanMeasurement(
                k, number, phase=COST, ms=step.step_ms + float(np.nan_to_num(exchanges[k].in_step(step)))
            )
            for k, step in enumerate(steps)
        ]
        return (*rows, *costs)


def _mean_phases(steps: Sequence[Sequence[MirroredStep]]) -> dict[str, FloatArray]:
    """Return the mean time of each phase over the mirrored steps of each of K plans. The result is a dictionary from
    the name of a phase to the times (K,) in ms; the time is NaN for a plan without steps.
    """
    none = np.full((1, len(LOCAL_PHASES)), np.nan)
    means = np.array([np.mean([step.slowest_ms for step in of_plan] or none, axis=0) for of_plan in steps])
    return dict(zip(LOCAL_PHASES, means.T, strict=True))


def _known(ms: float) -> str:
    return "-" if np.isnan(ms) else f"{ms:.2f}"


def _ranges(ranks: Sequence[int]) -> str:
    """Return ranks as text for people: "0-7" for three or more consecutive ranks,
    and otherwise a list such as "0, 3".
    """
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))
