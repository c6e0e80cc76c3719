"""Which tables lie in rows or in copies: chosen by estimates, tried by quick searches, then searched like any task."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuroshard.arrays import BoolArray, IntArray
from neuroshard.checked import checked
from neuroshard.errors import InfeasibleError, UserError
from neuroshard.plans.form import FORMS, Form
from neuroshard.plans.plan import Plan
from neuroshard.schema import Count
from neuroshard.searcher import Found, Searcher
from neuroshard.simulator import Simulator
from neuroshard.stages.search.methods.choice import Choice, kept_remark
from neuroshard.stages.search.space.catalog import Catalog
from neuroshard.stages.search.space.feasibility import device_memory, narrowest_shards
from neuroshard.stages.search.space.form_descent import descent, ranked_changes
from neuroshard.stages.search.space.form_estimates import FormEstimates
from neuroshard.stages.search.space.forms import COLUMNS, COPIES, ROWS, FormedTask, Spread, allowed_forms, part_of
from neuroshard.stages.search.space.items import Items
from neuroshard.stages.search.space.sizes import Sizes
from neuroshard.tasks.task import Task

_FLATTERED = 1.1  # times the estimate of columns: what they may really cost
_NEIGHBOURS = 3  # changes of the best choice that are tried before the best of them is taken


@dataclass(frozen=True)
@checked
class FormSearch(Searcher):
    """Lays some tables out in rows or in copies where that is predicted to cost less, or where nothing else fits.

    Rows and copies are the same on every device whatever becomes of the others, so these are searched as a task of
    their own, with the memory that is left; plans are costed as a whole. Rows are over all devices.

    Attributes:
        columns: searches what lies in columns: everything, and what the best choice of forms leaves.
        quick: the same, in little time: ranks choices of forms.
        forms: that tables may lie in, columns among them; of these, those that the models know.
        tries: quick searches, at most.
        choice: whether a gain over columns alone is believed; None believes every prediction.
    """

    columns: Searcher
    quick: Searcher
    forms: tuple[str, ...] = FORMS
    tries: Count = 6
    choice: Choice | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "forms", searched_forms(self.forms))

    def search(self, task: Task, simulator: Simulator) -> Plan:
        """The cheapest plan found, never one that costs more than that of columns alone.

        Raises:
            InfeasibleError: there is no plan, or none was found.
        """
        return self.find(task, simulator).plan

    def find(self, task: Task, simulator: Simulator) -> Found:
        """With what the search of the columns has to say."""
        forms = simulator.models.forms.intersection(searched_forms(self.forms))
        if forms <= {Form.COLUMNS}:
            return self.columns.find(task, simulator)
        simulator.models.check(task)
        allowed = allowed_forms(task, forms)
        if not np.delete(allowed, COLUMNS, axis=1).any():
            return self.columns.find(task, simulator)
        choices = FormChoices.of(task, simulator, allowed, self.quick)
        try:
            columns = choices.searched(choices.first, self.columns)
        except InfeasibleError:
            return self._where_columns_do_not_fit(choices)
        best = choices.best(self.tries)
        if (best == choices.first).all():
            return columns
        try:
            return self._believed(columns, choices.searched(best, self.columns), simulator)
        except InfeasibleError:
            return columns

    def _where_columns_do_not_fit(self, choices: "FormChoices") -> Found:
        """Of the cheapest choice that leaves columns which fit.

        Raises:
            InfeasibleError: none does; it tells of the first choice, which has the most in columns.
        """
        for forms in (choices.best(self.tries), *choices.more_in_rows()):
            try:
                return choices.searched(forms, self.columns)
            except InfeasibleError:
                continue
        return choices.searched(choices.first, self.columns)

    def _believed(self, columns: Found, other: Found, simulator: Simulator) -> Found:
        """`other`, of the same task, where its gain over columns alone is believed."""
        task = columns.plan.task
        choice = self.choice
        if choice is None:
            before, after = simulator.costs(task, [columns.plan, other.plan])
            return other if after.total_ms < before.total_ms else columns
        if choice.choose(columns.plan, other.plan, simulator) is other.plan:
            return other
        return Found(columns.plan, columns.warning, columns.remark or kept_remark(columns.plan, other.plan, simulator))


def searched_forms(names: Sequence[str]) -> tuple[Form, ...]:
    """Forms by their names.

    Raises:
        UserError: there is no form of some name, or columns aren't among them.
    """
    forms = tuple(Form(name) for name in names)
    if Form.COLUMNS not in forms:
        raise UserError(f"searcher: forms={[form.value for form in forms]} must have columns among them")
    return forms


@dataclass(frozen=True, eq=False)
class FormChoices:
    """A task's choices of a form for each table.

    Attributes:
        task: the task.
        simulator: costs plans.
        allowed: (T, F) forms that each table may lie in.
        quick: searches columns in little time.
        estimates: of what choices cost.
        spread: places what lies in rows and copies.
    """

    task: Task
    simulator: Simulator
    allowed: BoolArray
    quick: Searcher
    estimates: FormEstimates
    spread: Spread

    @classmethod
    def of(cls, task: Task, simulator: Simulator, allowed: BoolArray, quick: Searcher) -> "FormChoices":
        """With forms `allowed` (T, F), but for columns of tables that are too large for them."""
        may = np.flatnonzero(allowed[:, COLUMNS])
        if not len(may):
            return cls(task, simulator, allowed, quick, FormEstimates.of(task, simulator, None, may), Spread(task))
        sizes = Sizes.of(Items.of(part_of(task, may.tolist(), device_memory(task))))
        catalog = Catalog.costed(sizes, simulator.models.compute)
        _, least, room = narrowest_shards(sizes)
        too_large = [may[table] for item in np.flatnonzero(least > room) for table, _ in sizes.items.items[item].parts]
        fitting = allowed.copy()
        fitting[too_large, COLUMNS] = False
        fitting[:, COLUMNS] |= ~fitting.any(axis=1)  # what fits nowhere stays there, and the search says so
        return cls(task, simulator, fitting, quick, FormEstimates.of(task, simulator, catalog, may), Spread(task))

    @property
    def first(self) -> IntArray:
        """(T,) columns where they may be, else rows, else copies."""
        first: IntArray = self.allowed.argmax(axis=1)
        return first

    def searched(self, forms: IntArray, searcher: Searcher) -> Found:
        """What a searcher finds with such forms (T,).

        Raises:
            InfeasibleError: nothing.
        """
        formed = FormedTask(self.task, forms, self.spread)
        if not len(formed.in_columns):
            return Found(formed.whole_plan(None))
        if len(formed.in_columns) == len(forms):
            return searcher.find(self.task, self.simulator)
        found = searcher.find(formed.columns_task(), self.simulator)
        return replace(found, plan=formed.whole_plan(found.plan))

    def best(self, tries: int) -> IntArray:
        """(T,) of the choices that are estimated to be cheap, the one whose quick plan is the cheapest.

        So many are tried: the last ones of the descent of the estimates and what `_near_pure` adds; then changes of the
        best one, as long as they help.
        """
        path = descent(self.first, self.allowed, self.estimates.costs)
        candidates = [*path[: -1 - tries // 2 : -1], *self._near_pure(path[-1])]
        tried = _Tried(self)
        best = min(candidates[:tries], key=tried.cost_ms, default=self.first)
        if len(candidates) == 1:
            return best
        while len(tried) < tries:
            near, _ = ranked_changes(best, self.allowed, self.estimates.costs)
            others = [forms for forms in near[:_NEIGHBOURS] if forms not in tried]
            better = min(others[: tries - len(tried)], key=tried.cost_ms, default=best)
            if not tried.cost_ms(better) < tried.cost_ms(best):
                break
            best = better
        return best

    def _near_pure(self, best: IntArray) -> list[IntArray]:
        """(T,) all that may in rows, and all that may in copies, where that is estimated to cost little more than `best`.

        Each kind of kernel and of exchange has a price of its own that only tables which all lie alike never pay; and
        estimates flatter columns, which have still to be placed.
        """
        pure = np.array([np.where(self.allowed[:, form], form, self.first) for form in (ROWS, COPIES)])
        cost = self.estimates.costs(np.concatenate([best[None], pure]))[0]
        return [
            forms
            for forms, ms in zip(pure, cost[1:], strict=True)
            if ms < cost[0] * _FLATTERED and (forms != best).any()
        ]

    def more_in_rows(self) -> Iterator[IntArray]:
        """(T,) the first choice, with the 1, 2, 4, ... largest tables in rows that may lie so."""
        size = np.array([table.size_bytes for table in self.task.tables])
        movable = np.flatnonzero(self.allowed[:, ROWS] & (self.first == COLUMNS))
        largest = movable[np.argsort(-size[movable], kind="stable")]
        for power in range(len(largest).bit_length() + 1):
            forms = self.first
            forms[largest[: 1 << power]] = ROWS
            yield forms


class _Tried:
    """Costs of the quick plans of choices, each searched once."""

    def __init__(self, choices: FormChoices) -> None:
        self._choices = choices
        self._cost_ms: dict[bytes, float] = {}

    def __contains__(self, forms: IntArray) -> bool:
        return forms.tobytes() in self._cost_ms

    def __len__(self) -> int:
        return len(self._cost_ms)

    def cost_ms(self, forms: IntArray) -> float:
        """Of forms (T,), ms; infinite where nothing is found that fits."""
        if forms not in self:
            self._cost_ms[forms.tobytes()] = self._search(forms)
        return self._cost_ms[forms.tobytes()]

    def _search(self, forms: IntArray) -> float:
        choices = self._choices
        try:
            plan = choices.searched(forms, choices.quick).plan
        except InfeasibleError:
            return float("inf")
        return choices.simulator.cost(choices.task, plan).total_ms
