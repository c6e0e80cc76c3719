"""A task's finalists on disk, with what was measured of them so far: a run that was killed measures nothing twice."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from neuroshard.cost.cost import Cost
from neuroshard.cost.parts import PARTS
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.schema import NonNegative, PositiveCount, of_format, parse
from neuroshard.stages.search.results.verdict import Verdict
from neuroshard.tasks.task import Task

_FORMAT, _PASS = "neuroshard-finalists-1", "neuroshard-finalists-pass-2"


@dataclass(frozen=True)
@checked
class Origin:
    """How a task's finalists were found.

    Attributes:
        count: how many there are.
        seconds: of search.
        warning, remark: as the searcher gave them.
    """

    count: PositiveCount
    seconds: NonNegative
    warning: str | None
    remark: str | None = None


@dataclass(frozen=True)
@checked
class MeasuredOnce:
    """What one plan cost in one pass: (D,) ms of each part, by its name, or ms of a training step; or the error that
    stopped it.
    """

    parts: dict[str, tuple[float, ...]] = field(default_factory=dict)
    error: str | None = None
    step_ms: NonNegative | None = None

    @classmethod
    def of(cls, outcome: Cost | str) -> "MeasuredOnce":
        """Return the parts of a measured cost, or the error in their place."""
        if isinstance(outcome, str):
            return cls(error=outcome)
        return cls({part.name: tuple(part.ms.tolist()) for part in outcome.parts})

    @property
    def total_ms(self) -> float:
        """Return the plan's measured cost, ms; NaN where it couldn't be measured."""
        if self.error is not None:
            return float("nan")
        return max(map(sum, zip(*self.parts.values(), strict=True))) if self.step_ms is None else self.step_ms


@dataclass(frozen=True)
class Finalists:
    """Of one task, the predicted best first.

    Attributes:
        plans: (K,) with their predictions.
        found: how.
        passes: (P, K) what was measured so far.
    """

    plans: tuple[Plan, ...]
    found: Origin
    passes: tuple[tuple[MeasuredOnce, ...], ...] = ()

    @property
    def errors(self) -> tuple[str | None, ...]:
        """(K,) the first that stopped measuring each plan."""
        stopped = ([one.error for one in its if one.error is not None] for its in zip(*self.passes, strict=True))
        return tuple(next(iter(its), None) for its in stopped) if self.passes else (None,) * len(self.plans)

    @property
    def costs_ms(self) -> FloatArray:
        """(K, P) of each plan in each pass; not a number where it couldn't be measured."""
        return np.array([[one.total_ms for one in its] for its in zip(*self.passes, strict=True)])

    @property
    def verdict(self) -> Verdict:
        """Judge the finalists by all passes that were measured."""
        return Verdict.of(self.costs_ms)


@dataclass(frozen=True)
class FinalistFiles:
    """In a run's directory, `finalists/task-0000/`: the plans, how they were found, and a file for each pass."""

    run: Path
    task: int

    def plan(self, number: int) -> str:
        """Return the path of a finalist's plan, from the run's directory on."""
        return f"finalists/task-{self.task:04d}/plan-{number:02d}.json"

    def begin(self, plans: Sequence[Plan], seconds: float, warning: str | None, remark: str | None) -> Finalists:
        """Write down what is to be measured."""
        for number, plan in enumerate(plans):
            plan.save(self.run / self.plan(number))
        found = Origin(len(plans), seconds, warning, remark)
        write_json(self._found, {"format": _FORMAT, **asdict(found)})
        return Finalists(tuple(plans), found)

    def keep(self, number: int, measured: Sequence[MeasuredOnce]) -> None:
        """Write what one pass over all finalists measured to its file."""
        write_json(self._pass(number), {"format": _PASS, "plans": [asdict(one) for one in measured]})

    def read(self, task: Task) -> Finalists | None:
        """What is known of the task; None if its search hasn't ended.

        Raises:
            UserError: a file is damaged, or of another task.
        """
        if not self._found.exists():
            return None
        found = parse(
            of_format(read_json(self._found, "finalists"), _FORMAT, str(self._found)), Origin, str(self._found)
        )
        plans = tuple(self._read_plan(number, task) for number in range(found.count))
        passes: list[tuple[MeasuredOnce, ...]] = []
        while self._pass(len(passes)).exists():
            passes.append(self._read_pass(self._pass(len(passes)), len(plans), task.topology.num_devices))
        return Finalists(plans, found, tuple(passes))

    def rows(self, finalists: Finalists) -> list[dict[str, Any]]:
        """Return the rows of `finalists.parquet`: one for each plan."""
        verdict, costs, errors = finalists.verdict, finalists.costs_ms, finalists.errors
        return [
            {
                "task": self.task,
                "finalist": number,
                "plan": self.plan(number),
                "taken": number == verdict.taken,
                **_predicted(plan),
                "measured_ms": verdict.measured_ms[number],
                "below": verdict.below[number],
                "below_error": verdict.error,
                "passes": int(np.isfinite(costs[number]).sum()),
                "error": errors[number],
            }
            for number, plan in enumerate(finalists.plans)
        ]

    def _read_plan(self, number: int, task: Task) -> Plan:
        path = self.run / self.plan(number)
        plan = Plan.load(path)
        if replace(plan.task, constraints=task.constraints) != task:  # searches for a target may add rules
            raise UserError(f"{path} is a plan of another task; delete {self._found.parent}, and it is searched again")
        return plan

    def _read_pass(self, path: Path, plans: int, devices: int) -> tuple[MeasuredOnce, ...]:
        fields = of_format(read_json(path, "pass"), _PASS, f"pass {path}")
        its = parse(fields, _Pass, f"pass {path}").plans
        timed = [one.parts for one in its if one.error is None and one.step_ms is None]
        sizes = {len(one.get(name, ())) for one in timed for name in (*PARTS, *one)}
        if len(its) != plans or not sizes <= {devices}:
            raise UserError(f"pass {path} is not of {plans} plans for {devices} devices; delete it")
        return its

    @property
    def _found(self) -> Path:
        return self.run / f"finalists/task-{self.task:04d}/found.json"

    def _pass(self, number: int) -> Path:
        return self._found.with_name(f"pass-{number:02d}.json")


@dataclass(frozen=True)
class _Pass:
    plans: tuple[MeasuredOnce, ...]


def _predicted(plan: Plan) -> dict[str, float | None]:
    """What its models say of a plan."""
    known = plan.prediction
    names = {"predicted_ms": "cost_ms", "margin_ms": "margin_ms", "expected_ms": "expected_ms"}
    return {name: None if known is None else getattr(known, field) for name, field in names.items()}
