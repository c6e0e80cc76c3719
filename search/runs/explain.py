"""The explain run: explains one plan or compares two plans, as text and as an HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from neuroshard.bundles import ROOFLINE, shipped_names
from neuroshard.cost.cost import Cost
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.carry_over import restated
from neuroshard.plans.moves import TableChange, table_changes
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import check_file
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.output import OutputSettings
from neuroshard.plumbing.schema import PathName
from neuroshard.stages.search.methods.torchrec_default import (
    TORCHREC_DEFAULT,
    Compare,
    check_compare,
    torchrec_default,
)
from neuroshard.stages.search.report.explained import all_shards, difference, picture, sections, titled
from neuroshard.stages.search.report.explanation import Explanation, explain
from neuroshard.stages.search.report.facts import ChangeFacts, ExplainFacts, PlanFacts
from neuroshard.stages.search.report.page import Section, plain, render, save_page, show_sections
from neuroshard.tasks.changes import TaskChanges
from neuroshard.tasks.task import Task
from neuroshard.words.model_choice import ModelChoice, ModelSettings

_PAGES = (".html", ".htm")
_DEFAULT = "cpu"
_SET_MODEL = "Set model to other cost models, such as model=cpu"


@dataclass(frozen=True)
@checked
class Explain(OutputSettings, ModelSettings):
    """The settings of `neuroshard explain`; the method `run` executes the command.

    Attributes:
        plans: one plan file to explain, or two to compare (with the same table names); required; give them as plain
            arguments, without 'plans=', as in: explain PLAN.json OTHER.json.
        model: cost models that predict the costs: an installed name such as cpu, or a directory; None uses the models
            and settings that the plan was found with, except settings that you give.
        out: path of the HTML page to write, such as plan.html; None only prints the explanation.
        compare: None | torchrec: torchrec adds the plan of TorchRec's default planner, which can take minutes to find,
            to the compared plans.
    """

    plans: PathName | Sequence[PathName]
    model: PathName | None = None
    out: PathName | None = None
    compare: Compare | None = None

    def run(self) -> "ExplainResult":
        """Explain each plan; if there are two plans, list the differences between the plans first.

        Raises:
            UserError: a file is not a plan, there are more than two plans, their tables have different names, or `out`
                is not the name of a page.
            MissingPackageError: `compare` is set, and TorchRec is not installed.
        """
        check_compare(self.compare)
        paths = [self.plans] if isinstance(self.plans, str) else list(self.plans)
        if not 1 <= len(paths) <= 2:
            raise UserError(
                "explain-plan-count",
                f"{number_of(len(paths), 'plan')} were given",
                limit="explain takes one plan, or two plans to compare",
                remedy="Give one or two plans: `neuroshard explain PLAN.json OTHER.json`",
            )
        page = None if self.out is None else _page_path(self.out, paths)
        plans = [Plan.load(path) for path in paths]
        changes = TaskChanges.between(plans[0].task, plans[-1].task)
        if changes.added or changes.removed:
            differing = replace(changes, changed=(), devices=(0, 0))
            raise UserError(
                "explain-tables-differ",
                f"the plans '{paths[0]}' and '{paths[1]}' have different tables: {differing}",
                limit="explain compares plans table by table, so both plans need the same tables",
                remedy="Give plans of tables with the same names",
            )
        model, models, note = self._models(paths, plans)
        counts_input = any(plan.prediction is not None and plan.prediction.counts_input for plan in plans)
        simulator, moves = Simulator(models, counts_input), table_changes(plans[0], plans[-1])
        plans, other = _on_one_task(plans)
        notes = note, "costs count the input dist, as in the plan file" if counts_input else "", other
        explained = tuple(explain(plan, simulator) for plan in plans)
        if self.compare is not None:
            explained = _with_torchrec(explained, simulator)
        note = "; ".join(filter(None, notes))
        result = ExplainResult(tuple(paths), model, note, explained, page, str(changes), moves)
        result.save()
        return result

    def _models(self, paths: Sequence[str], plans: Sequence[Plan]) -> tuple[ModelChoice, CostModels, str]:
        """Return the choice of cost models, the cost models, and a note for readers if the choice may be unexpected.

        Raises:
            UserError: the models cannot be loaded; if a plan file names the models, the error names this file.
        """
        if self.model is not None:
            choice = self.choice_of(self.model)
            return choice, CostModels.of(choice), ""
        try:
            stored, note = models_of(plans, None)
            models = CostModels.of(stored)
        except UserError as error:
            path = next((path for path, plan in zip(paths, plans, strict=True) if plan.prediction is not None), "")
            raise error.at(path).changed(remedy=_SET_MODEL) from None
        choice = replace(stored, **self.model_settings)
        return choice, models if choice == stored else CostModels.of(choice), note


def _with_torchrec(explanations: Sequence[Explanation], simulator: Simulator) -> tuple[Explanation, ...]:
    """Return the explanations, with TorchRec's default planner added to the methods whose plans are compared."""
    costs = list[dict[str, Cost | str]]()
    tasks = [explanation.plan.task for explanation in explanations]
    for task in tasks:
        first = tasks.index(task)  # two plans of one task need one search
        costs.append(costs[first] if first < len(costs) else _torchrec_cost(task, simulator))
    pairs = zip(explanations, costs, strict=True)
    return tuple(replace(explanation, heuristics=explanation.heuristics | cost) for explanation, cost in pairs)


def _torchrec_cost(task: Task, simulator: Simulator) -> dict[str, Cost | str]:
    """Return a dictionary with one entry: the name of TorchRec's default planner, and the cost of its plan or the
    reason why there is no plan.
    """
    try:
        plan = torchrec_default(task, simulator)
    except UserError as error:
        return {TORCHREC_DEFAULT: str(error)}
    breaks = f" ({plan.violations[0]})" if plan.violations else ""
    return {f"{TORCHREC_DEFAULT}{breaks}": simulator.cost(task, plan)}


def _on_one_task(plans: Sequence[Plan]) -> tuple[list[Plan], str]:
    """Return the plans, changed so that both plans are for the same task. If the tasks of two plans differ, for example
    because tables have grown, the first plan is replaced by a plan for the task of the second plan, with each table
    sharded in the same way. If this is not possible, or if there is only one plan, the plans are returned unchanged.

    Returns:
        The plans, and a remark if the first plan was replaced. This is possible if both plans have the same number of
            devices, every table is pooled as before, and the new shape of every table allows its place.
    """
    first, last = plans[0], plans[-1]
    what = first.task.unlike(last.task)
    pairs = TaskChanges.between(first.task, last.task).changed
    if what in (None, "number of devices") or any(before.pooled is not now.pooled for before, now in pairs):
        return list(plans), ""
    if (again := restated(first, last.task)) is None:
        return list(plans), ""
    again = again.with_prediction(first.prediction)
    return [again, last], f"both plans with the {what} of the second one's task"


def models_of(plans: Sequence[Plan], asked: ModelChoice | None) -> tuple[ModelChoice, str]:
    """Return the cost models that explain the plans: the models `asked`, or, if `asked` is None, the models with which
    the plans were found.

    Costs by different models differ.

    Returns:
        The choice of models, and a note for readers if the choice may be unexpected; otherwise "".

    Raises:
        UserError: the plans' own models are not available here, or have no name.
    """
    if asked is not None:
        return asked, ""
    known = [plan.prediction for plan in plans if plan.prediction is not None]
    if not known:
        return ModelChoice(_DEFAULT), "the plan file names no models; set model=NAME for other models"
    first = known[0].models
    if first is None or not _may_be_loaded(first.name):
        found = "cost models without a name" if first is None else f"the cost models '{first.name}'"
        raise UserError(
            "explain-models-missing",
            f"the plan was found with {found}",
            limit="these cost models are not available here",
            remedy=_SET_MODEL,
        )
    others = sorted({str(prediction.models) for prediction in known} - {str(first)})
    return first, f"the other plan was found with {others[0]}" if others else ""


def _may_be_loaded(name: str) -> bool:
    """Return True if a name in a plan file is the name of installed or analytic models, or the absolute path of an
    existing directory of a bundle.

    Searches store absolute paths. A plan file from somebody else must not choose a file by a relative path.
    """
    return name in shipped_names() or name.startswith(ROOFLINE) or (Path(name).is_absolute() and Path(name).is_dir())


def _page_path(out: str, plans: Sequence[str]) -> Path:
    """Return the path of the HTML page, after checking that a page may be written there.

    Raises:
        UserError: the name is not the name of a page, or the path has something else than a page.
    """
    path = Path(out)
    if path.suffix.lower() not in _PAGES:
        raise UserError(
            "explain-out-suffix",
            f"out={out} does not end in .html",
            limit="explain writes an HTML page to out",
            remedy="Set out=PAGE.html to a name such as plan.html",
        )
    check_file(path)
    if path.exists() and not path.is_file():
        raise UserError(
            "explain-out-not-file", f"out={out} exists and is not a file", remedy="Set out=PAGE.html to another name"
        )
    if path.exists() and any(Path(plan).exists() and path.samefile(plan) for plan in plans):
        raise UserError(
            "explain-out-is-plan",
            f"out={out} is the file of a plan to explain",
            limit="the page would replace the plan",
            remedy="Set out=PAGE.html to another name",
        )
    return path


@dataclass(frozen=True)
class ExplainResult:
    """Explanations of plans, with the path of the HTML page that shows the explanations.

    Attributes:
        names: names of the plan files.
        model: the models that predicted the costs.
        note: a note on the choice of the models.
        explanations: the explanation of each plan.
        page: path of the page; None without a page.
        changes: differences between the tasks of two plans, as text.
        moves: tables that two plans place differently.
    """

    names: tuple[str, ...]
    model: ModelChoice
    note: str
    explanations: tuple[Explanation, ...]
    page: Path | None
    changes: str = ""
    moves: tuple[TableChange, ...] = ()

    def save(self) -> None:
        """Write the HTML page, if it was requested."""
        if self.page is None:
            return
        chapters = self._comparison()
        for name, explanation in zip(self._titles(), self.explanations, strict=True):
            chapters += [
                titled(section, name)
                for section in [*sections(explanation, (picture(explanation),)), all_shards(explanation)]
            ]
        title = "A plan explained" if len(self.explanations) == 1 else "Two plans compared"
        save_page(self.page, render(title, self._intro(), chapters))

    def show(self, console: Console) -> None:
        """Print the difference between two plans, if there are two plans, and then the explanation of every plan."""
        console.print(plain(self._intro(), "dim"), soft_wrap=True)
        show_sections(console, self._comparison())
        for name, explanation in zip(self._titles(), self.explanations, strict=True):
            show_sections(console, [titled(section, name) for section in sections(explanation)])
        if self.page is not None:
            console.print(plain(f"page: {self.page}"), soft_wrap=True)

    @property
    def facts(self) -> ExplainFacts:
        """The explanations as rows of plain values, which `format=json` prints."""
        plans = zip(self.names, self.explanations, strict=True)
        return ExplainFacts(
            self.model.fields,
            self.note,
            tuple(PlanFacts.of(name, explanation) for name, explanation in plans),
            tuple(map(ChangeFacts.of, self.moves)),
            None if self.page is None else str(self.page),
        )

    def _intro(self) -> str:
        named = [f"{title or 'Plan'}: {name}" for title, name in zip(self._titles(), self.names, strict=True)]
        note = f" ({self.note})" if self.note else ""
        return "\n".join([*named, f"Costs are predicted by the models {self.model}{note}."])

    def _titles(self) -> tuple[str, ...]:
        return ("First plan", "Second plan") if len(self.explanations) == 2 else ("",)

    def _comparison(self) -> list[Section]:
        if len(self.explanations) < 2:
            return []
        first, second = self.explanations
        return [difference(first, second, self.moves, self.changes)]
