"""The default search: it chooses the sharding type, the tier and the devices of every table."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter

import numpy as np

from neuroshard.layouts.sharding_types import COLUMN_WISE, ROW_WISE, forms_of, rows_on_all, rows_on_one_host
from neuroshard.models.assumed import has_own_margins
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import BoolArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.plumbing.schema import Count, NonNegative, PositiveCount
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.starts import EvenLayouts, Start
from neuroshard.stages.search.methods.acceptance import Acceptance, cheapest, likeliest
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy
from neuroshard.stages.search.methods.improved import ImprovedSearch, in_turns
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.options.equal_parts import parts_that_cost_less, parts_that_fit
from neuroshard.stages.search.options.least_bytes import check_least_bytes
from neuroshard.stages.search.options.merge_shards import merge_shards
from neuroshard.stages.search.options.option_table import Choice, OptionTable
from neuroshard.stages.search.options.sharding_types import (
    COLUMNS,
    OTHERS,
    allowed_types,
    check_allowed_types,
    known_calls,
    searched_types,
    with_rows_on_all,
    without_rows_on_hosts,
)
from neuroshard.stages.search.options.tier_changes import fix_tiers, grow_caches, improve_tiers
from neuroshard.stages.search.options.tier_variants import tier_variants
from neuroshard.stages.search.options.tiers import TierOptions, is_ample
from neuroshard.stages.search.options.type_changes import move_rows_to_hosts
from neuroshard.stages.search.published.grid import GridSettings
from neuroshard.stages.search.space.fixed_load import FixedLoad, device_memory
from neuroshard.tasks.constraints import TableRule
from neuroshard.tasks.task import Task
from neuroshard.words.form import FORMS, Form
from neuroshard.words.placement import Tier

_ROUNDS = 2  # searches with tiers chosen again, at most
_FIRSTS = 2  # tier assignments whose column-wise plans are searched: the cheapest by each of these two costs
_LIKELY = 2  # choices of sharding types that are searched, at most
_QUICK_MS, _ESTIMATE_MS, _BOTH_MS = (attrgetter(f"{name}_ms") for name in ("quick", "estimate", "both"))


@dataclass(frozen=True)
@checked
class NeuroShard(Searcher):
    """Searches from the published search, even splits and heuristics; then local search improves the cheapest plans.

    The plan is never predicted to cost more than the published search's plan, except for `tolerance`. The search keeps
    the published search's plan if a gain may be an error of the models. The settings of all stages are attributes of
    this one class, so that users need not know which stage reads a setting.

    Tables are row-wise or data-parallel if that is predicted to cost less, or if nothing else fits. Such tables are
    spread over all devices, wherever the other tables are, so the search places the column-wise tables around them. It
    estimates choices of sharding types, tries the likely choices quickly, searches the best choices, and takes the
    cheapest result if its gain is accepted.

    If hosts have memory for tables, and the models know the costs of host memory, tables are `uvm_caching` or `uvm` if
    devices have too little memory or if that is predicted to pay. The search makes several tier assignments, the
    cheapest within several fractions of the device memory, each with its own choices of sharding types, and searches
    the likely choices of all of them. Then tables of the cheapest plan take the memory that is left on their devices,
    and column-wise tables are searched again, as long as that helps.

    Tables that may only be split into equal parts are left whole or halved first. Then the search splits them into more
    parts, by the largest share of a device's cost that a part may have: it tries several such ways, with their sharding
    types, and searches the likely ones.

    Attributes:
        num_candidates: number N: each step of the beam search over column-wise splits tries to split the N largest and
            the N most expensive shards of every layout (way to split the tables); larger values take longer.
        beam_width: number of layouts (ways to split the tables by columns) that the beam search keeps after each step;
            larger values take longer.
        max_splits: maximum number of steps of the beam search over column-wise splits; each step halves one shard, and
            larger values take longer; with 0 the beam search splits only tables that must be split to fit.
        grid: caps of the greedy grid search, for the published search and for even splits.
        improvement: settings of the local search.
        acceptance: rule by which the search accepts gains over the published search's plan; None accepts every gain.
        sharding_types: list of sharding types to choose from, if the cost models know them: column_wise (whole or
            split), table_wise (whole), row_wise, data_parallel, table_row_wise and table_column_wise (within one host),
            grid_shard (planned as table_row_wise).
        sharding_type_trials: number of assignments of sharding types to tables that the search rates by quickly made
            plans before it searches the best assignments fully; larger values take longer, and 0 tries only column-wise
            tables, if possible.
        tolerance: maximum extra predicted cost, as a fraction (0.005 is 0.5%), at which a plan with fewer shards is
            preferred to the cheapest plan; 0 keeps the cheapest plan.
    """

    num_candidates: PositiveCount = 10
    beam_width: PositiveCount = 3
    max_splits: Count = 10
    grid: GridSettings = field(default_factory=GridSettings)
    improvement: Improvement = field(default_factory=Improvement)
    acceptance: Acceptance | None = field(default_factory=Acceptance)
    sharding_types: tuple[str, ...] = FORMS
    sharding_type_trials: Count = 8
    tolerance: NonNegative = 0.005

    def __post_init__(self) -> None:
        object.__setattr__(self, "sharding_types", searched_types(self.sharding_types))

    @property
    def forms(self) -> tuple[Form, ...]:
        """The members of `Form` that the sharding types are cases of."""
        return forms_of(self.sharding_types)

    @property
    def column_search(self) -> ImprovedSearch:
        """The starts and the local search that place column-wise tables, with the settings of this search."""
        published = BeamSearch(self.num_candidates, self.beam_width, self.max_splits, self.grid)
        beside = self.beside_search
        return replace(beside, starts=(published, *beside.starts), acceptance=self.acceptance)

    @property
    def beside_search(self) -> ImprovedSearch:
        """The search for column-wise tables if some tables are row-wise or data-parallel: no published search.

        Local search finds equally good plans from the other starts, and the published search takes the most time if
        there are many devices.
        """
        starts: tuple[Start, ...] = (EvenLayouts(self.grid), *map(Greedy, SCORES))
        acceptance = self.acceptance
        if acceptance is not None:  # assumed margins are of whole plans, which `_accepted` compares
            acceptance = replace(acceptance, assumed_margin_fraction=0.0)
        return ImprovedSearch(starts, self.improvement, acceptance=acceptance)

    @property
    def quick(self) -> Start:
        """The start that places column-wise tables quickly: choices of sharding types are ranked by its plans."""
        return EvenLayouts(self.grid, refined=False)

    def find(self, task: Task, simulator: Simulator) -> Found:
        """Find a plan, and the cheaper plan that was rejected, if any.

        Raises:
            InfeasibleError: there is no plan, or none was found.
        """
        asked = self._restricted(task)
        found = self._on_hosts(asked, simulator) if self._tries_hosts else self._in_parts(asked, simulator)
        calls = known_calls(simulator.models, self.forms)
        plan = merge_shards(found.plan, simulator, calls, self.tolerance, found.fewer)
        return replace(found, plan=plan if asked is task else replace(plan, task=task), fewer=None)

    @property
    def _tries_hosts(self) -> bool:
        """True if the rows of a table may be on the devices of one host."""
        return rows_on_one_host(self.sharding_types)

    def _restricted(self, task: Task) -> Task:
        """Add a rule if the sharding types allow only some cases of their `forms`; else return the task itself.

        Raises:
            UserError: the rule contradicts the task's own rules.
        """
        if COLUMN_WISE in self.sharding_types and (ROW_WISE in self.sharding_types or not self._tries_hosts):
            return task
        try:
            return task.with_rules([TableRule("*", sharding_types=self.sharding_types)])
        except UserError as error:
            rule = f"searcher.sharding_types=[{','.join(self.sharding_types)}] counts as a rule for every table"
            raise error.changed(limit="; ".join(filter(None, (error.message.limit, rule)))) from error

    def _on_hosts(self, asked: Task, simulator: Simulator) -> Found:
        """Find a plan with row-wise tables on one host each where that pays, or where they must not be on all devices.

        The search spreads rows over all devices first, whatever the rules; then it moves tables to hosts.
        """
        searched = with_rows_on_all(asked)
        found = self._in_parts(searched, simulator)
        plan, hosts = fix_tiers(found.plan), len(asked.topology.domains)
        rows = (index for index, layout in enumerate(plan.layouts) if layout.blocks)
        forced = [index for index in rows if not rows_on_all(asked.limits[index].sharding_types, hosts)]
        moved = move_rows_to_hosts(plan, simulator, forced)
        if not forced:
            kept = found if searched is asked else _of_task(found, asked)
            other = replace(kept, plan=replace(moved or plan, task=kept.plan.task))
            return kept if other.plan == kept.plan else self._accepted(kept, other, simulator)
        others = [] if moved is None else [_of_task(replace(found, plan=moved), asked)]
        try:
            others.append(_of_task(self._in_parts(without_rows_on_hosts(asked), simulator), asked))
        except (InfeasibleError, UserError):
            if not others:
                raise
        return self._cheapest(others, simulator)

    def _in_parts(self, task: Task, simulator: Simulator) -> Found:
        """Find a plan; split tables into more than two equal parts if that is predicted to pay or nothing else fits."""
        try:
            found = self._in_memories(task, simulator)
        except InfeasibleError:
            finer = []
            for rules in parts_that_fit(task):
                with suppress(InfeasibleError):
                    finer.append(self._in_memories(task.with_rules(rules), simulator))
            if not finer:
                raise
            return self._cheapest(finer, simulator)
        plan, spaces = fix_tiers(found.plan), []
        for rules in parts_that_cost_less(plan, simulator):
            its, asked = (one.with_rules(rules) for one in (plan.task, task))
            spaces.append(OptionTable.of(its, simulator, self._allowed(its, simulator), self.quick, asked))
        tried = sorted(self._likely(spaces), key=_BOTH_MS)[:_LIKELY]
        return self._finer(found, _searched(tried, self.column_search), simulator)

    def _finer(self, found: Found, others: Sequence[Found], simulator: Simulator) -> Found:
        """Return one of `others`, whose tables have more parts, if its gain is accepted; else return `found`."""
        every = [found, *others]
        costs = [simulator.cost(one.plan.task, one.plan) for one in every]
        if self.acceptance is None or has_own_margins(costs[0]):
            return self._cheapest(every, simulator)
        return every[self.acceptance.among(costs, found.plan.task, simulator)[0]]

    def _likely(self, spaces: Iterable[OptionTable]) -> list[Choice]:
        """Try choices of sharding types by quick searches, and list the likely choices of every space."""
        return [one for choices in spaces for one in choices.likely(self.sharding_type_trials)]

    def _in_memories(self, task: Task, simulator: Simulator) -> Found:
        """Find a plan with the tier assignments that are predicted to cost least, among them those of the task."""
        simulator.models.check(task)
        check_least_bytes(task, known_calls(simulator.models, self.forms))
        known = any(call.tier is not Tier.DEVICE for call in simulator.models.compute.calls)
        if not known or not task.topology.host_bytes:
            return self._in_forms([task], task, simulator)
        if is_ample(task):
            with suppress(InfeasibleError):
                return self._in_forms([task], task, simulator)
        compute = simulator.compute_for(task)
        options = roomier = TierOptions.of(task, compute)
        tasks = tier_variants(task, options, compute)
        if not tasks:
            roomier = options.with_data_parallel(task, self._allowed(task, simulator))
            tasks = tier_variants(task, roomier, compute)
        try:
            found = self._in_forms([task, *(one for one in tasks if one is not task)], task, simulator)
        except InfeasibleError as error:
            raise error if tasks or roomier.choices(task) else roomier.shortage(task) from None
        return self._improved(found, options, simulator)

    def _improved(self, found: Found, options: TierOptions, simulator: Simulator) -> Found:
        """Choose tiers again on every device, and place column-wise tables again, as long as that helps."""
        compute = simulator.compute_for(found.plan.task)
        for _ in range(_ROUNDS):
            plan = grow_caches(improve_tiers(found.plan, options, compute), options, simulator)
            others, start = [replace(found, plan=plan, fewer=None)], fix_tiers(plan)
            with suppress(InfeasibleError):
                fixed = FixedLoad.of_plan(start, simulator.compute_for(start.task))
                others.append(self.column_search.found(fixed, simulator).of(plan.task))
            best = self._cheapest([found, *others], simulator)
            if best is found:
                break
            found = best
        return found

    def _in_forms(self, tasks: Sequence[Task], asked: Task, simulator: Simulator) -> Found:
        """Find the best plan of the task `asked`, with the tier assignments of one of `tasks`."""
        allowed = [self._allowed(task, simulator) for task in tasks]
        if tasks == [asked] and not _has_choice(allowed[0]):
            return self.column_search.find(asked, simulator)
        each = zip(tasks, allowed, strict=True)
        spaces = [OptionTable.of(task, simulator, may, self.quick, asked) for task, may in each]
        likely = (one for one in self._likely(spaces) if (one.types != one.choices.first).any())
        tried = sorted(likely, key=_BOTH_MS)[:_LIKELY]
        others = _searched(tried, self.beside_search)
        other = self._cheapest(others, simulator) if others else None
        try:
            columns = self._in_columns(spaces, simulator)
        except InfeasibleError as error:
            return other or self._in_any_forms(spaces, error)
        return columns if other is None else self._accepted(columns, other, simulator)

    def _allowed(self, task: Task, simulator: Simulator) -> BoolArray:
        """Return which sharding types each table may have, (T, F), given that OTHERS need memory on all devices.

        Raises:
            UserError: a table may have no sharding type that the search and the models know.
        """
        calls = known_calls(simulator.models, self.forms)
        allowed = allowed_types(task, calls)
        check_allowed_types(task, allowed, calls, self.forms)
        if int(device_memory(task).min()) <= 0:
            allowed[:, OTHERS] &= ~allowed[:, [COLUMNS]]
        return allowed

    def _in_columns(self, spaces: Sequence[OptionTable], simulator: Simulator) -> Found:
        """Find the best plan of the first choices of sharding types, with tiers for which quick plans are cheap.

        Raises:
            InfeasibleError: no plan was found; the error is about the first space.
        """
        if len(spaces) > 1:
            firsts = [choices.first_tried() for choices in spaces]
            quick, likely = (sorted(firsts, key=key)[:_FIRSTS] for key in (_QUICK_MS, _ESTIMATE_MS))
            if found := _searched(dict.fromkeys((*quick, *likely)), self.column_search):
                return self._cheapest(found, simulator)
        return _placed(Choice(spaces[0], spaces[0].first), self.column_search)

    def _in_any_forms(self, spaces: Sequence[OptionTable], error: InfeasibleError) -> Found:
        """Find a plan with few large row-wise tables; else one with ever fewer column-wise tables.

        Raises:
            InfeasibleError: no plan was found.
        """
        errors = []
        for choices in spaces:
            for forms in chain(choices.more_row_wise(), choices.fewer_column_wise()):
                if found := _searched([Choice(choices, forms)], self.column_search):
                    return found[0]
            errors.append(choices.shortage(error))
        raise errors[0] from None

    def candidate_plans(self, plan: Plan, simulator: Simulator, count: int) -> tuple[Plan, ...]:
        """List first plans and ends of local searches, for several choices of sharding types and the plan's tiers.

        The choices are the plan's own, column-wise tables alone, and the best choices that leave one sharding type out.
        """
        same = fix_tiers(plan)
        choices = self._other_forms(same, simulator)
        share, left = -(-count // (len(choices) + 1)), count - len(choices)  # others may have one plan only
        own = self.column_search.candidate_plans(same, simulator, max(share, left))
        groups = (self._candidate_plans(one, simulator, share) for one in choices)
        every = in_turns(same, [own, *groups], simulator, count)
        return (plan, *(replace(one, task=plan.task) for one in every if one is not same))

    def _other_forms(self, plan: Plan, simulator: Simulator) -> list[Choice]:
        """List choices of sharding types that differ from the plan's.

        They are column-wise tables alone, the best choices by quick searches, and the best choices that leave one
        sharding type out.
        """
        if not _has_choice(self._allowed(plan.task, simulator)):
            return []
        calls = known_calls(simulator.models, self.forms)
        own, distinct = np.array([FORMS.index(form) for form in plan.forms]), dict[bytes, Choice]()
        for left_out in (None, *(FORMS[form] for form in OTHERS)):
            allowed = allowed_types(plan.task, [call for call in calls if call.form is not left_out])
            if allowed.any(axis=1).all():
                choices = OptionTable.of(plan.task, simulator, allowed, self.quick)
                for one in (Choice(choices, choices.first), *choices.likely(self.sharding_type_trials)):
                    distinct.setdefault(one.types.tobytes(), one)
        return [one for forms, one in distinct.items() if forms != own.tobytes()]

    def _candidate_plans(self, choice: Choice, simulator: Simulator, count: int) -> Iterator[Plan]:
        """Yield candidate plans with the chosen sharding types; none if nothing fits."""
        for found in _searched([choice], self.column_search):
            yield from self.column_search.candidate_plans(found.plan, simulator, count)

    def _cheapest(self, found: Sequence[Found], simulator: Simulator) -> Found:
        """Choose the plan of the lowest expected cost; of the lowest predicted cost if every gain is accepted."""
        if len(found) == 1:
            return found[0]
        costs = [simulator.cost(one.plan.task, one.plan) for one in found]
        return found[cheapest(costs) if self.acceptance is None else likeliest(costs)]

    def _accepted(self, columns: Found, other: Found, simulator: Simulator) -> Found:
        """Return `other`, a plan of the same task, if its gain over `columns` is accepted; else return `columns`."""
        task = columns.plan.task
        costs = simulator.costs(task, [columns.plan, other.plan])
        chosen, rejected = cheapest(costs), None
        if self.acceptance is not None:
            chosen, rejected = self.acceptance.of_forms(simulator.models).among(costs, task, simulator)
        if not chosen:
            unsaid = [plan for plan in (columns.rejected, other.plan if rejected else None) if plan is not None]
            least = min(unsaid, key=lambda plan: simulator.cost(task, plan).total_ms, default=None)
            return replace(columns, rejected=least)
        more = len(other.plan.placements) > len(columns.plan.placements)
        return replace(other, fewer=columns.plan if more else other.fewer)


def _of_task(found: Found, task: Task) -> Found:
    """Return what was found with the plan for `task`, which has other rules; fewer shards are not tried then."""
    return replace(found, plan=replace(found.plan, task=task), fewer=None)


def _searched(likely: Iterable[Choice], columns: ImprovedSearch) -> list[Found]:
    """Find a plan for each choice of sharding types by placing its column-wise tables; leave out what fits nowhere."""
    found = []
    for tried in likely:
        with suppress(InfeasibleError):
            found.append(_placed(tried, columns))
    return found


def _placed(tried: Choice, columns: ImprovedSearch) -> Found:
    """Find a plan with the sharding types of a choice by placing its column-wise tables with `columns`.

    Raises:
        InfeasibleError: no plan was found.
    """
    choices = tried.choices
    found = columns.found(choices.fixed_load(tried.types), choices.simulator)
    return found if choices.task is choices.asked else found.of(choices.asked)


def _has_choice(allowed: BoolArray) -> bool:
    """Return True if some table may be row-wise or data-parallel, by sharding types `allowed` (T, F)."""
    return bool(np.delete(allowed, COLUMNS, axis=1).any())
