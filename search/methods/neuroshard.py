"""The default search: it chooses the sharding type, the tier and the devices of every table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter

import numpy as np

from neuroshard.layouts.sharding_types import COLUMN_WISE, ROW_WISE, forms_of, rows_on_all, rows_on_one_host
from neuroshard.models.assumed import has_own_margins
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import BoolArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import Count, NonNegative, PositiveCount
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.starts import EvenLayouts, Start
from neuroshard.stages.search.methods.acceptance import Acceptance, assess, cheapest, choose, likeliest
from neuroshard.stages.search.methods.attempts import Attempts
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy
from neuroshard.stages.search.methods.improved import ImprovedSearch, in_turns
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.options.equal_parts import parts_that_cost_less, parts_that_fit
from neuroshard.stages.search.options.host_variants import host_variants
from neuroshard.stages.search.options.least_bytes import check_least_bytes
from neuroshard.stages.search.options.merge_shards import merge_shards
from neuroshard.stages.search.options.option_table import Choice, OptionTable
from neuroshard.stages.search.options.settings import SETTINGS
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
    and column-wise tables are searched again, as long as that helps. If one host cannot hold all tables that are in
    host memory, the search also tries to spread these tables evenly over all hosts.

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
        found = self._with_rows_on_hosts(asked, simulator) if self._tries_hosts else self._planned(asked, simulator)
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

    def _planned(self, task: Task, simulator: Simulator) -> Found:
        """Find a plan with the rows of every row-wise table on all devices.

        Tables are split into more than two equal parts if that is predicted to pay, or if nothing else fits.
        """
        first = Attempts.of([partial(self._with_tiers, task, simulator)])
        if first.found:
            return self._with_finer_parts(first.found[0], task, simulator)
        tasks = [task.with_rules(rules) for rules in parts_that_fit(task)]
        finer = Attempts.of(partial(self._with_tiers, one, simulator) for one in tasks)
        return self._cheapest(finer.found or first.plans(), simulator)

    def _with_tiers(self, task: Task, simulator: Simulator) -> Found:
        """Find a plan with the tier assignments that are predicted to cost least, among them those of the task.

        If all tables are in device memory with ample room, other tiers are tried only if nothing fits.
        """
        simulator.models.check(task)
        check_least_bytes(task, known_calls(simulator.models, self.forms))
        as_given = partial(self._with_types, [task], task, simulator)
        known = any(call.tier is not Tier.DEVICE for call in simulator.models.compute.calls)
        if not known or not task.topology.host_bytes:
            return as_given()
        if is_ample(task) and (ample := Attempts.of([as_given])).found:
            return ample.found[0]
        compute = simulator.compute_for(task)
        options = roomier = TierOptions.of(task, compute)
        tasks = tier_variants(task, options, compute)
        if not tasks:
            roomier = options.with_data_parallel(task, self._allowed(task, simulator))
            tasks = tier_variants(task, roomier, compute)
        variants = [task, *(one for one in tasks if one is not task)]
        variants += [spread for one in variants[:2] for spread in host_variants(one) if spread not in variants]
        attempts = Attempts.of([partial(self._with_types, variants, task, simulator)])
        if not attempts.found and not tasks and not roomier.choices(task):
            raise roomier.shortage(task)
        return self._with_improved_tiers(attempts.plans()[0], options, simulator)

    def _with_types(self, variants: Sequence[Task], asked: Task, simulator: Simulator) -> Found:
        """Find the best plan of the task `asked`, with the tier assignments of one of its variants.

        Candidates are the first choices of sharding types (column-wise tables alone, if possible), and the likely
        choices of all variants. If no candidate fits, the first plan of `for_scarce_memory` that fits is returned.

        Raises:
            InfeasibleError: no plan was found.
        """
        allowed = [self._allowed(task, simulator) for task in variants]
        if variants == [asked] and not _has_choice(allowed[0]):
            return self.column_search.find(asked, simulator)
        each = zip(variants, allowed, strict=True)
        tables = [OptionTable.of(task, simulator, may, self.quick, asked) for task, may in each]
        likely = [choice for choice in self._likely(tables) if not choice.is_first]
        others = Attempts.of_choices(likely[: SETTINGS.searched_choices], self.beside_search)
        first = self._first_choices(tables)
        best = [self._cheapest(one.found, simulator) for one in (first, others) if one.found]
        if best:
            return self._accepted(best[0], best[-1], simulator) if len(best) > 1 else best[0]
        scarce = (Choice(one, types) for one in tables for types in one.for_scarce_memory())
        attempts = Attempts.of_choices(scarce, self.column_search, most=1)
        if not attempts.found and first.error is not None:
            raise tables[0].shortage(first.error)
        return attempts.plans()[0]

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

    def _likely(self, tables: Sequence[OptionTable]) -> list[Choice]:
        """List the likely choices of sharding types of all tables, the cheapest first."""
        return sorted((choice for one in tables for choice in one.likely(self.sharding_type_trials)), key=_BOTH_MS)

    def _first_choices(self, tables: Sequence[OptionTable]) -> Attempts:
        """Search the first choices of sharding types with the tiers for which quick plans or estimates are cheap."""
        firsts = [one.first_tried() for one in tables] if len(tables) > 1 else []
        quick, likely = (sorted(firsts, key=key)[: SETTINGS.column_wise_plans] for key in (_QUICK_MS, _ESTIMATE_MS))
        attempts = Attempts.of_choices(dict.fromkeys((*quick, *likely)), self.column_search)
        return attempts if attempts.found else Attempts.of_choices([tables[0].first_choice], self.column_search)

    def _with_improved_tiers(self, found: Found, options: TierOptions, simulator: Simulator) -> Found:
        """Choose tiers again on every device, and place column-wise tables again, as long as that helps."""
        for _ in range(SETTINGS.tier_rounds):
            compute = simulator.compute_for(found.plan.task)
            plan = grow_caches(improve_tiers(found.plan, options, compute), options, simulator)
            attempts = Attempts.of([partial(self._placed_again, plan, simulator)])
            best = self._cheapest([found, replace(found, plan=plan, fewer=None), *attempts.found], simulator)
            if best is found:
                break
            found = best
        return found

    def _placed_again(self, plan: Plan, simulator: Simulator) -> Found:
        """Place the column-wise tables of a plan again; the tiers and all other tables stay.

        Raises:
            InfeasibleError: no plan was found.
        """
        start = fix_tiers(plan)
        fixed = FixedLoad.of_plan(start, simulator.compute_for(start.task))
        return self.column_search.found(fixed, simulator).of(plan.task)

    def _with_finer_parts(self, found: Found, task: Task, simulator: Simulator) -> Found:
        """Split tables into more than two equal parts if the gain over a plan of the task is accepted."""
        plan, tables = fix_tiers(found.plan), []
        for rules in parts_that_cost_less(plan, simulator):
            variant, asked = (one.with_rules(rules) for one in (plan.task, task))
            tables.append(OptionTable.of(variant, simulator, self._allowed(variant, simulator), self.quick, asked))
        finer = Attempts.of_choices(self._likely(tables)[: SETTINGS.searched_choices], self.column_search)
        every = [found, *finer.found]
        costs = [simulator.cost(one.plan.task, one.plan) for one in every]
        if self.acceptance is None or has_own_margins(costs[0]):
            return self._cheapest(every, simulator)
        return every[choose(assess(self.acceptance, costs, found.plan.task, simulator))[0]]

    def _with_rows_on_hosts(self, asked: Task, simulator: Simulator) -> Found:
        """Find a plan with row-wise tables on one host each where that pays, or where they must not be on all devices.

        The search spreads rows over all devices first, whatever the rules; then it moves tables to hosts.
        """
        searched = with_rows_on_all(asked)
        found = self._planned(searched, simulator)
        plan, hosts = fix_tiers(found.plan), len(asked.topology.domains)
        rows = (index for index, layout in enumerate(plan.layouts) if layout.blocks)
        forced = [index for index in rows if not rows_on_all(asked.limits[index].sharding_types, hosts)]
        moved = move_rows_to_hosts(plan, simulator, forced)
        if not forced:
            kept = found if searched is asked else _of_task(found, asked)
            other = replace(kept, plan=replace(moved or plan, task=kept.plan.task))
            return kept if other.plan == kept.plan else self._accepted(kept, other, simulator)
        on_hosts = () if moved is None else (_of_task(replace(found, plan=moved), asked),)
        without = Attempts.of([partial(self._without_rows_on_hosts, asked, simulator)], errors=UserError)
        return self._cheapest((*on_hosts, *without.found) or without.plans(), simulator)

    def _without_rows_on_hosts(self, asked: Task, simulator: Simulator) -> Found:
        """Find a plan in which no table that must have its rows on one host is row-wise.

        Raises:
            UserError: a table may have no other sharding type.
            InfeasibleError: no plan was found.
        """
        return _of_task(self._planned(without_rows_on_hosts(asked), simulator), asked)

    def candidate_plans(self, plan: Plan, simulator: Simulator, count: int) -> tuple[Plan, ...]:
        """List first plans and ends of local searches, for several choices of sharding types and the plan's tiers.

        The choices are the plan's own, column-wise tables alone, and the best choices that leave one sharding type out.
        """
        same = fix_tiers(plan)
        choices = self._other_types(same, simulator)
        share, left = -(-count // (len(choices) + 1)), count - len(choices)  # others may have one plan only
        own = self.column_search.candidate_plans(same, simulator, max(share, left))
        groups = (self._candidate_plans(one, simulator, share) for one in choices)
        every = in_turns(same, [own, *groups], simulator, count)
        return (plan, *(replace(one, task=plan.task) for one in every if one is not same))

    def _other_types(self, plan: Plan, simulator: Simulator) -> list[Choice]:
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
                for one in (choices.first_choice, *choices.likely(self.sharding_type_trials)):
                    distinct.setdefault(one.types.tobytes(), one)
        return [one for forms, one in distinct.items() if forms != own.tobytes()]

    def _candidate_plans(self, choice: Choice, simulator: Simulator, count: int) -> Iterator[Plan]:
        """Yield candidate plans with the chosen sharding types; none if nothing fits."""
        for found in Attempts.of_choices([choice], self.column_search).found:
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
        rule = self.acceptance and self.acceptance.of_forms(simulator.models)
        chosen, rejected = choose(assess(rule, costs, task, simulator))
        if not chosen:
            unsaid = [plan for plan in (columns.rejected, other.plan if rejected else None) if plan is not None]
            least = min(unsaid, key=lambda plan: simulator.cost(task, plan).total_ms, default=None)
            return replace(columns, rejected=least)
        more = len(other.plan.placements) > len(columns.plan.placements)
        return replace(other, fewer=columns.plan if more else other.fewer)


def _of_task(found: Found, task: Task) -> Found:
    """Return what was found with the plan for `task`, which has other rules; fewer shards are not tried then."""
    return replace(found, plan=replace(found.plan, task=task), fewer=None)


def _has_choice(allowed: BoolArray) -> bool:
    """Return True if some table may be row-wise or data-parallel, by sharding types `allowed` (T, F)."""
    return bool(np.delete(allowed, COLUMNS, axis=1).any())
