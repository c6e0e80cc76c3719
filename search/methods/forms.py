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
from neuroshard.stages.search.space.bound import lower_bound_ms
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
        if not np.delete(allowed, COLUMNS, axis=1).any() or device_memory(task).min() < 1:
            return self.columns.find(task, simulator)
        choices = FormChoices.of(task, simulator, allowed, self.quick)
        best = choices.best(self.tries)
        other = None if (best == choices.first).all() else self._tried(choices, best)
        if other is not None and choices.beats_columns(other.plan):
            return other
        try:
            columns = choices.searched(choices.first, self.columns)
        except InfeasibleError as error:
            return other or self._in_rows(choices, error)
        return columns if other is None else self._believed(columns, other, simulator)

    def _tried(self, choices: "FormChoices", forms: IntArray) -> Found | None:
        """What is found with such forms (T,); None if nothing is."""
        try:
            return choices.searched(forms, self.columns)
        except InfeasibleError:
            return None

    def _in_rows(self, choices: "FormChoices", error: InfeasibleError) -> Found:
        """With as few of the largest tables in rows as let the others fit in columns; else the error of having none."""
        for forms in choices.more_in_rows():
            if (found := self._tried(choices, forms)) is not None:
                return found
        raise error

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
        catalog: of the tables that the constraints let lie in columns; None if there is none.
    """

    task: Task
    simulator: Simulator
    allowed: BoolArray
    quick: Searcher
    estimates: FormEstimates
    spread: Spread
    catalog: Catalog | None

    @classmethod
    def of(cls, task: Task, simulator: Simulator, allowed: BoolArray, quick: Searcher) -> "FormChoices":
        """With forms `allowed` (T, F), but for columns of tables that are too large for them."""
        may = np.flatnonzero(allowed[:, COLUMNS])
        if not len(may):
            estimates = FormEstimates.of(task, simulator, None, may)
            return cls(task, simulator, allowed, quick, estimates, Spread(task), None)
        sizes = Sizes.of(Items.of(part_of(task, may.tolist(), device_memory(task))))
        catalog = Catalog.costed(sizes, simulator.models.compute)
        _, least, room = narrowest_shards(sizes)
        too_large = [may[table] for item in np.flatnonzero(least > room) for table, _ in sizes.items.items[item].parts]
        fitting = allowed.copy()
        fitting[too_large, COLUMNS] = False
        fitting[:, COLUMNS] |= ~fitting.any(axis=1)  # what fits nowhere stays there, and the search says so
        estimates = FormEstimates.of(task, simulator, catalog, may)
        return cls(task, simulator, fitting, quick, estimates, Spread(task), catalog)

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

    def beats_columns(self, plan: Plan) -> bool:
        """Whether a plan is proven to be predicted cheaper than any of columns alone: these needn't be searched then.

        Models that know their margins prove nothing: how large those are hangs on the plans.
        """
        if self.catalog is None or (self.first != COLUMNS).any() or self.simulator.models.margins is not None:
            return False
        bound_ms = lower_bound_ms(self.catalog, self.simulator)
        return bound_ms is not None and self.simulator.cost(self.task, plan).total_ms < bound_ms

    def best(self, tries: int) -> IntArray:
        """(T,) of the choices that are estimated to be cheap, the one whose quick plan is the cheapest.

        So many are tried: the last two of the descent of the estimates, and what `_near_pure` adds; then changes of the
        best one, as long as they help.
        """
        path = descent(self.first, self.allowed, self.estimates.costs)
        candidates = [*path[:-3:-1], *self._near_pure(path[-1])][:tries]
        if len(candidates) < 2:
            return path[-1] if tries else self.first
        tried = _Tried(self)
        best = min(candidates, key=tried.cost_ms)
        while len(tried) < tries:
            near, _ = ranked_changes(best, self.allowed, self.estimates.costs)
            others = [forms for forms in near[:_NEIGHBOURS] if forms not in tried]
            better = min(others[: tries - len(tried)], key=tried.cost_ms, default=best)
            if not tried.cost_ms(better) < tried.cost_ms(best):
                break
            best = better
        return best

    def _near_pure(self, best: IntArray) -> list[IntArray]:
        """(T,) all that may in rows, or in copies, where that is estimated to cost little more than `best`.

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
