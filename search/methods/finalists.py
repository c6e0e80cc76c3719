"""Plans that hardware is to decide between: they differ, and are predicted to cost about as little as the one found."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest

import numpy as np

from neuroshard.models.simulator import Simulator
from neuroshard.plans.moves import layout_key
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.search.methods.form_choices import FormChoices
from neuroshard.stages.search.methods.starts import Start
from neuroshard.stages.search.space.feasibility import device_memory
from neuroshard.stages.search.space.forms import FormedTask, Spread, allowed_forms
from neuroshard.words.form import FORMS, Call, Form


def in_turns(plan: Plan, groups: Sequence[Iterable[Plan]], simulator: Simulator, count: int) -> tuple[Plan, ...]:
    """`plan`, then the first of each group, then the second ones, and so on: `count` at most, no two of them alike.

    Those that break their task's limits, or are predicted to cost more than `plan` by more than both margins together,
    are left out.
    """
    found = {layout_key(plan): plan}
    every = (one for turn in zip_longest(*groups) for one in turn if one is not None)
    for one in every:
        if len(found) >= count:
            break
        if layout_key(one) not in found and _in_question(plan, one, simulator):
            found[layout_key(one)] = one
    return tuple(islice(found.values(), count))


def _in_question(plan: Plan, other: Plan, simulator: Simulator) -> bool:
    if other.violations:
        return False
    ours, its = simulator.costs(plan.task, [plan, other])
    known = not np.isnan(its.margin_ms)
    return not known or its.total_ms - ours.total_ms <= ours.margin_ms + its.margin_ms


def in_other_forms(
    plan: Plan, simulator: Simulator, calls: frozenset[Call], quick: Start, tries: int
) -> list[IntArray]:
    """(T,) choices of a form for each table that differ from the plan's: columns alone, the best one by quick
    searches, and the best ones with a form fewer to choose from; of forms that there are `calls` of.
    """
    if all(call.form is Form.COLUMNS for call in calls) or device_memory(plan.task).min() < 1:
        return []
    own = np.array([FORMS.index(form) for form in plan.forms])
    found = {own.tobytes(): own}
    for left_out in (None, *(form for form in FORMS if form is not Form.COLUMNS)):
        allowed = allowed_forms(plan.task, [call for call in calls if call.form is not left_out])
        if allowed.any(axis=1).all():
            choices = FormChoices.of(plan.task, simulator, allowed, quick)
            for one in (choices.first, choices.best(tries)):
                found.setdefault(one.tobytes(), one)
    return list(found.values())[1:]


def of_forms(
    plan: Plan, columns: Searcher, choices: Sequence[IntArray], simulator: Simulator, count: int
) -> tuple[Plan, ...]:
    """Finalists of the plan's own forms, and of other choices (T,): what lies in columns is searched by `columns`."""
    share, left = -(-count // (len(choices) + 1)), count - len(choices)  # others may have one plan only
    own, spread = FormedTask.of_plan(plan), Spread(plan.task)
    ours = max(share, left)
    groups = [_whole(own, own.columns_plan(plan), columns, simulator, ours)] if len(own.in_columns) else []
    groups += [_searched(FormedTask.of(plan.task, one, spread), columns, simulator, share) for one in choices]
    return in_turns(plan, groups, simulator, count)


def _searched(formed: FormedTask, columns: Searcher, simulator: Simulator, count: int) -> Iterator[Plan]:
    """Finalists with such forms; none where nothing fits."""
    try:
        if len(formed.in_columns):
            found = columns.find(formed.columns_task(), simulator).plan
            yield from _whole(formed, found, columns, simulator, count)
        else:
            yield formed.whole_plan(None)
    except InfeasibleError:
        return


def _whole(formed: FormedTask, plan: Plan, columns: Searcher, simulator: Simulator, count: int) -> Iterator[Plan]:
    """Finalists of what lies in columns, with everything else."""
    return (formed.whole_plan(one) for one in columns.finalists(plan, simulator, count))
