"""Comparison of methods by success rate, predicted and measured cost, and search time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from neuroshard.cost.cost import Cost, Prediction
from neuroshard.models.predicted_for import PredictedFor
from neuroshard.models.trust import ADAPT, LEVEL
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.words.fingerprint import Fingerprint
from neuroshard.words.form import FORMS
from neuroshard.words.model_choice import ModelChoice

_NAN = float("nan")
_BUSY = "this machine is busy, or differs from the machine that the cost models were fitted to"
_BIASED = 1.15  # a larger median factor means that all predictions are wrong, not only some


@dataclass(frozen=True)
class Evaluated:
    """The result of one method for one task: a plan with predicted and measured cost, or an error.

    Attributes:
        method: name of the searcher, or of the plan file.
        task: number of the task in the run.
        file, plan: the plan with its predicted cost, if known; None if the method found no plan.
        seconds: search time; NaN if unknown.
        error: the reason why there is no measured cost; None if there is one.
        measured: the cost on hardware.
    """

    method: str
    task: int
    file: str | None
    plan: Plan | None
    seconds: float
    error: str | None
    measured: Cost | None = None

    @property
    def prediction(self) -> Prediction | None:
        """The prediction of the plan's cost; None if there is no prediction."""
        return None if self.plan is None else self.plan.prediction

    @property
    def predicted_ms(self) -> float:
        """The plan's predicted cost in ms; NaN without a prediction."""
        return _NAN if self.prediction is None else self.prediction.cost_ms

    @property
    def margin_ms(self) -> float:
        """Half the width of the 90% interval of the predicted cost, in ms; NaN if the width is unknown."""
        known = None if self.prediction is None else self.prediction.margin_ms
        return _NAN if known is None else known

    @property
    def caveat(self) -> str | None:
        """A short text that warns about the predicted cost, or None if there is no warning."""
        return None if self.prediction is None else self.prediction.caveat

    @property
    def runnable(self) -> bool:
        """True if the method found a plan, and no error prevents the plan from being run."""
        return self.plan is not None and self.error is None

    @property
    def differs_in_scope(self) -> bool:
        """True if the predicted cost and the measured cost are known to count different parts of the training step."""
        scope = None if self.prediction is None else self.prediction.scope
        if scope is None or self.measured is None:
            return False
        return set(scope.split(", ")) != set(self.measured.scope.split(", "))  # the order of parts may differ

    @property
    def measured_ms(self) -> float:
        """The plan's measured cost in ms; NaN if the plan was not measured."""
        return _NAN if self.measured is None else self.measured.total_ms

    def row(self) -> dict[str, Any]:
        """Return this result as a row of `results.parquet`."""
        return {
            "method": self.method,
            "task": self.task,
            "plan": self.file,
            "predicted_ms": self.predicted_ms,
            "margin_ms": self.margin_ms,
            "measured_ms": self.measured_ms,
            "seconds": self.seconds,
            "error": self.error,
        }

    def device_rows(self) -> list[dict[str, Any]]:
        """Return the rows of `devices.parquet`: one row for every device of a measured plan."""
        if self.plan is None or self.measured is None:
            return []
        cost = self.measured
        return [
            {
                "method": self.method,
                "task": self.task,
                "device": d,
                "bytes": self.plan.device_bytes[d],
                "dims": self.plan.device_dims[d],
                **{f"{part.name}_ms": float(part.ms[d]) for part in cost.parts},
            }
            for d in range(len(self.plan.device_tables))
        ]


def runnable_by_task(entries: Sequence[Evaluated]) -> dict[int, list[Evaluated]]:
    """Return the entries whose plans can be run, grouped by task number; the task numbers are in increasing order."""
    runnable = sorted((entry for entry in entries if entry.runnable), key=lambda entry: entry.task)
    return grouped(runnable, lambda entry: entry.task)


def plans_of(entries: Sequence[Evaluated]) -> list[Plan]:
    """Return the plans of all entries that have a plan."""
    return [entry.plan for entry in entries if entry.plan is not None]


def grid_of(title: str | Text, columns: Mapping[str, Sequence[str]], words: int = 1) -> Grid:
    """Return a printable table. `columns` is a dictionary from each heading to the cells below the heading. The first
    `words` columns contain words and are aligned left; all other columns contain numbers and are aligned right.

    Markup in cells has no effect.
    """
    names = list(columns)
    grid = Grid(*names[:words], *(Column(name, justify="right") for name in names[words:]), title=title)
    for cells in zip(*columns.values(), strict=True):
        grid.add_row(*map(Text, cells))
    return grid


def names_and_forms(entries: Sequence[Evaluated]) -> dict[str, list[str]]:
    """Return the first two columns of a printable table with one row for each plan, as a dict from headings to cells.
    The first column has the method that found the plan. The second column has the number of column-wise, row-wise and
    data-parallel tables in the plan, such as "12, 3, 0".
    """
    counts = [[] if entry.plan is None else map(entry.plan.forms.count, FORMS) for entry in entries]
    forms = [", ".join(map(str, numbers)) for numbers in counts]
    return {"plan by": [entry.method for entry in entries], f"tables in {', '.join(FORMS)}": forms}


def failures(entries: Sequence[Evaluated], errors: Iterable[str | None] | None = None) -> list[str]:
    """Return a line of text for each entry (the result of one method for one task) that has an error. If `errors` is
    given, `errors` has an error or None for each entry, and these errors replace the errors in the entries.
    """
    entries_and_errors = zip(entries, (entry.error for entry in entries) if errors is None else errors, strict=True)
    return [f"{entry.method}, task {entry.task}: {error}" for entry, error in entries_and_errors if error is not None]


def comparison(entries: Sequence[Evaluated]) -> Grid:
    """Return a table with one row for each method. The costs in a row are means over the tasks that every method
    solved. The search time in a row is a mean over all tasks of the method.

    Methods that solved no task are ignored when these common tasks are determined, because otherwise no task would be
    left.
    """
    methods = list(dict.fromkeys(entry.method for entry in entries))
    solved = {m: {e.task: e for e in entries if e.method == m and e.measured is not None} for m in methods}
    common = sorted(set.intersection(*([set(tasks) for tasks in solved.values() if tasks] or [set()])))
    failed = [method for method, tasks in solved.items() if not tasks]
    every = "every method" if not failed else f"every method but {', '.join(failed)}"
    caption = f"costs: means over the {number_of(len(common), 'task')} that {every} solved"
    given = {method: [entry for entry in entries if entry.method == method] for method in methods}
    chosen = {
        method: [solved_by_method[task] for task in common if task in solved_by_method]
        for method, solved_by_method in solved.items()
    }
    columns = {
        "method": methods,
        "success": [f"{len(solved[method])}/{len(given[method])}" for method in methods],
        "predicted ms": [_mean([entry.predicted_ms for entry in chosen[method]], 2) for method in methods],
        "measured ms": [_mean([entry.measured_ms for entry in chosen[method]], 2) for method in methods],
        "search s": [_mean([entry.seconds for entry in given[method]], 3) for method in methods],
    }
    grid = grid_of("Plans on hardware", columns)
    grid.caption = Text(caption)
    return grid


def provenance_lines(entries: Sequence[Evaluated], here: Fingerprint) -> Iterator[str]:
    """Yield lines of text on the origin of predicted costs. The first lines name the parts of the step that the costs
    count. The other lines are warnings: that costs were predicted for other hardware than `here` (the hardware of this
    machine), or by several different cost models. Warnings begin with "warning:".
    """
    for scope, group in grouped(entries, lambda entry: entry.prediction and entry.prediction.scope).items():
        if scope is not None:
            yield f"predicted costs of {_methods(group)} count {scope}"
    by_models = {name: group for name, group in grouped(entries, _models_of).items() if name is not None}
    for name, group in by_models.items():
        target = PredictedFor.of(name)
        if target is not None and target.differs(here):
            message = Message(
                "predicted-for-other-hardware",
                f"costs of {_methods(group)} were {target.mismatch_text(here)}",
                remedy="Compare measured costs only with measured costs" if target.other_kind(here) else ADAPT,
            )
            yield f"warning: {message}"
    if len(by_models) > 1:
        each = ", ".join(f"{str(name)!r}: {_methods(group)}" for name, group in by_models.items())
        message = Message(
            "predicted-by-several-models",
            f"predicted costs come from {len(by_models)} different sets of cost models ({each})",
            limit="predicted costs can be compared only if they come from the same cost models",
            remedy="Evaluate the plan files with model=NAME, so that the same cost models predict all costs",
        )
        yield f"warning: {message}"


def _models_of(entry: Evaluated) -> ModelChoice | None:
    return None if entry.prediction is None else entry.prediction.models


def _methods(entries: Sequence[Evaluated]) -> str:
    return ", ".join(dict.fromkeys(entry.method for entry in entries))


def trust_lines(entries: Sequence[Evaluated], here: Fingerprint) -> Iterator[str]:
    """Yield lines on the quality of the predicted costs: the number of measured costs inside the predicted intervals,
    and a warning if the predicted costs are clearly too low or too high.

    The first lines are the caveats of predicted costs, and warnings about the models' hardware. Predictions for a GPU
    are not compared with costs that were measured on a CPU (`here`), and vice versa. Predicted costs that count other
    parts of the step than the measured costs, such as framework overhead, are left out with a remark.
    """
    for caveat, group in grouped(entries, lambda entry: entry.caveat).items():
        if caveat is not None:
            yield f"predicted costs of {_methods(group)} are {caveat}"
    yield from provenance_lines(entries, here)
    targets = {name: PredictedFor.of(name) for name in {*map(_models_of, entries)}}
    unlike = {name for name, target in targets.items() if target is not None and target.other_kind(here)}
    of_kind = [entry for entry in entries if _models_of(entry) not in unlike]
    if unlike_scope := [entry for entry in of_kind if entry.differs_in_scope]:
        scopes = " or ".join(dict.fromkeys(e.measured.scope for e in unlike_scope if e.measured is not None))
        predicted_scopes = " or ".join(
            dict.fromkeys(e.prediction.scope for e in unlike_scope if e.prediction is not None and e.prediction.scope)
        )
        message = Message(
            "predicted-scope-differs",
            f"predicted costs of {_methods(unlike_scope)} are not compared with measured costs",
            limit=f"they count different parts of a step: the measured costs count {scopes}, and the predicted costs "
            f"count {predicted_scopes}",
            remedy="To compare them, evaluate the plan files again with model=NAME and without framework=",
        )
        yield str(message)
    like = [entry for entry in of_kind if not entry.differs_in_scope]
    figures = np.array([(e.predicted_ms, e.measured_ms, e.margin_ms) for e in like], dtype=np.float64)
    known = figures.reshape(-1, 3)[~np.isnan(figures.reshape(-1, 3)).any(axis=1)]
    if not len(known):
        return
    predicted, measured, margin = known.T
    inside = int((np.abs(measured - predicted) <= margin).sum())
    expected = round(LEVEL * len(known))
    yield (
        f"{inside} of {len(known)} measured costs are inside their predicted {LEVEL:.0%} intervals; "
        f"{expected} are expected to be inside"
    )
    ratio = float(np.median(measured / predicted))
    if inside < expected / 2 and not 1 / _BIASED < ratio < _BIASED:
        others = {name for name, target in targets.items() if target is not None and target.differs(here)}
        other = any(_models_of(entry) in others for entry in like)
        message = Message(
            "measured-costs-differ",
            f"measured costs are {ratio:.2f} times the predicted costs (median)",
            limit="the cost models predict for other hardware" if other else _BUSY,
            remedy=ADAPT,
        )
        yield f"warning: {message}"


def _mean(values: list[float], digits: int) -> str:
    known = [value for value in values if not np.isnan(value)]
    return f"{np.mean(known):.{digits}f}" if known else "-"
