"""The published search and evenly split layouts, then local search from the cheapest plans, where that is believed;
some tables in rows or copies, where models know those and they are predicted to pay, or in host memory, where
devices have too little.
"""

from dataclasses import dataclass, field, replace

from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import Count, NonNegative, PositiveCount
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.choice import Choice
from neuroshard.stages.search.methods.chooser import Chooser, RowsOver
from neuroshard.stages.search.methods.heuristics import SCORES
from neuroshard.stages.search.methods.improved import ImprovedSearch
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.methods.simpler import simpler
from neuroshard.stages.search.methods.starts import EvenLayouts, Heuristic, Start
from neuroshard.stages.search.placement.grid import GridSettings
from neuroshard.stages.search.space.forms import known_calls, searched_forms
from neuroshard.stages.search.space.homes import settled
from neuroshard.tasks.task import Task
from neuroshard.words.form import FORMS


@dataclass(frozen=True)
@checked
class NeuroShard(Searcher):
    """The published search, evenly split layouts and heuristics beside it, then local search from the cheapest plans.

    By prediction it never costs more than the published search, but for `tolerance`; that one's plan is kept where the
    gain may be the models' error. Its parts' settings lie side by side, so that users needn't know which part is meant.

    Attributes:
        num_candidates: candidates for a split: this many by size and this many by predicted compute.
        beam_width: layouts kept after every split.
        max_splits: splits in a layout, at most; 0 leaves every table whole.
        grid: caps of the greedy grid search, for both starts.
        improvement: the local search.
        choice: when its plan is taken instead of the published search's; None takes every gain for true.
        forms: that tables may be in, as far as the models know them; [columns] leaves the others out.
        form_tries: choices of forms that are tried by quick searches, at most.
        rows_over: all | hosts: devices that share a table in rows; hosts: on one host each where that is predicted to
            pay.
        tolerance: how much more, relative, a plan with fewer shards may cost and still be taken; 0 keeps every gain.
    """

    num_candidates: PositiveCount = 10
    beam_width: PositiveCount = 3
    max_splits: Count = 10
    grid: GridSettings = field(default_factory=GridSettings)
    improvement: Improvement = field(default_factory=Improvement)
    choice: Choice | None = field(default_factory=Choice)
    forms: tuple[str, ...] = FORMS
    form_tries: Count = 6
    rows_over: RowsOver = "all"
    tolerance: NonNegative = 0.005

    def __post_init__(self) -> None:
        object.__setattr__(self, "forms", searched_forms(self.forms))

    @property
    def chooser(self) -> Chooser:
        """The parts for what lies in columns, and placements without steps to rank choices."""
        return Chooser(self.parts, EvenLayouts(self.grid), self.forms, self.form_tries, self.choice, self.rows_over)

    @property
    def parts(self) -> ImprovedSearch:
        """The starts and the local search that it is composed of, with its settings."""
        published = BeamSearch(self.num_candidates, self.beam_width, self.max_splits, self.grid)
        starts: tuple[Start, ...] = (published, EvenLayouts(self.grid), *map(Heuristic, SCORES))
        return ImprovedSearch(starts, self.improvement, choice=self.choice)

    def find(self, task: Task, simulator: Simulator) -> Found:
        """Find a plan, and the cheaper one that isn't believed."""
        found = self.chooser.find(task, simulator)
        calls = known_calls(simulator.models, self.forms)
        return replace(found, plan=simpler(found.plan, simulator, calls, self.tolerance))

    def finalists(self, plan: Plan, simulator: Simulator, count: int) -> tuple[Plan, ...]:
        """First plans and ends of local searches, of several choices of forms, with tables in the same memories."""
        same = settled(plan)
        found = self.chooser.finalists(same, simulator, count)
        return (plan, *(replace(one, task=plan.task) for one in found if one is not same))


def believing(searcher: Searcher) -> Searcher:
    """The same search, which takes every predicted gain for true; as it is where it has no such choice."""
    if isinstance(searcher, (NeuroShard, Chooser, ImprovedSearch)):
        return replace(searcher, choice=None)
    return searcher
