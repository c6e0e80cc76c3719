"""The default search: it chooses the sharding type, the tier and the devices of every table."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np

from neuroshard.layouts.sharding_types import COLUMN_WISE, ROW_WISE, forms_of, rows_on_all, rows_on_one_host
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import BoolArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.plumbing.schema import Count, NonNegative, PositiveCount
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.starts import EvenLayouts, Start
from neuroshard.stages.search.methods.acceptance import Acceptance, assess, cheapest, choose, likeliest
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy
from neuroshard.stages.search.methods.improved import ImprovedSearch, in_turns
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.options.equal_parts import finer_parts, parts_that_fit
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
from neuroshard.stages.search.options.tier_changes import fix_tiers, grow_caches, unify_tiers
from neuroshard.stages.search.options.tier_variants import tier_variants
from neuroshard.stages.search.options.tiers import TierOptions
from neuroshard.stages.search.options.type_changes import move_rows_to_hosts
from neuroshard.stages.search.published.grid import GridSettings
from neuroshard.stages.search.space.fixed_load import FixedLoad, device_memory
from neuroshard.tasks.constraints import TableRule
from neuroshard.tasks.task import Task
from neuroshard.words.form import FORMS, Form
from neuroshard.words.placement import Tier

_QUICK_MS, _ESTIMATE_MS, _BOTH_MS = (attrgetter(f"{name}_ms") for name in ("quick", "estimate", "both"))

_FEWER_TYPES = (
    "the search tried no other sharding types, because any gain would be within the error margins of the cost models"
)


@dataclass(frozen=True)
@checked
class NeuroShard(Searcher):
    """The default search method: it makes first plans by the published NeuroShard search, by even splits of the tables
    and by heuristics, and improves the cheapest of these plans by local search.

    The plan is never predicted to cost more than the published search's plan, except for `tolerance`. The search keeps
    the published search's plan if a gain may be an error of the models, and does not look for gains that it cannot
    accept. The settings of all stages are attributes of this one class, so that users need not know which stage reads a
    setting.

    Tables are row-wise or data-parallel if that is predicted to cost less, or if nothing else fits. Such tables are
    spread over all devices, wherever the other tables are, so the search places the column-wise tables around them. It
    estimates choices of sharding types, tries the likely choices quickly, searches the best choices, and takes the
    cheapest result if its gain is accepted.

    If hosts have memory for tables, and the models know the costs of host memory, tables are `uvm_caching` or `uvm` if
    devices have too little memory or if that is predicted to pay. The search makes several tier assignments, the
    cheapest within several fractions of the device memory, each with its own choices of sharding types, and searches
    the likely choices of all of them. Then tables of the cheapest plan take the memory that is left on their devices,
    or the tier of the other tables there, and column-wise tables are searched again, as long as that helps. If one host
    cannot hold all tables that are in host memory, the search also tries to spread these tables evenly over all hosts.

    Tables that may only be split into equal parts are whole or halved, or split into more parts: several ways to do so
    limit the share of a device's cost that a part may have, and the search searches the likely ones.

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
        tolerance: maximum extra predicted cost, as a fraction (0.005 is 0.5%), at which the search prefers a plan with
            fewer shards, and then a plan whose fullest device has more free memory, to the cheapest plan; 0 keeps the
            cheapest plan.
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
        """The families of sharding types (column-wise, row-wise, data-parallel) that the setting `sharding_types`
        allows in this search.
        """
        return forms_of(self.sharding_types)

    @property
    def column_search(self) -> ImprovedSearch:
        """The search that places the column-wise tables: the published search, even splits and heuristics make the
        first plans, and local search improves the cheapest of them.
        """
        published = BeamSearch(self.num_candidates, self.beam_width, self.max_splits, self.grid)
        around_fixed = self.column_search_around_fixed
        return replace(around_fixed, starts=(published, *around_fixed.starts), acceptance=self.acceptance)

    @property
    def column_search_around_fixed(self) -> ImprovedSearch:
        """The search that places the column-wise tables when other tables are already placed (row-wise or
        data-parallel). Even splits and heuristics make the first plans, without the published search.

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
        """A fast method to place the column-wise tables, for plans that serve only to rank
        choices of sharding types.
        """
        return EvenLayouts(self.grid, refined=False)

    def find(self, task: Task, simulator: Simulator) -> Found:
        """Return the best plan that the search accepts for the task. If the search rejected a plan with a lower
        predicted cost, the result also has that plan (`Found.rejected`).

        Raises:
            InfeasibleError: there is no plan, or none was found.
        """
        asked = self._restricted(task)
        first, *others = self._searched(asked, simulator)
        found = first
        for other in others:
            found = self._accepted(found, other, simulator)
        found = self._with_rows_on_hosts(found, simulator)
        calls = known_calls(simulator.models, self.forms)
        plan = merge_shards(found.plan, simulator, calls, self.tolerance, first.plan)
        return replace(found, plan=plan if asked is task else replace(plan, task=task))

    @property
    def _tries_hosts(self) -> bool:
        """True if `sharding_types` includes a type that spreads the rows of a table over the devices of one host
        (table_row_wise or grid_shard).
        """
        return rows_on_one_host(self.sharding_types)

    def _restricted(self, task: Task) -> Task:
        """Return the task with a further rule: every table may have only the sharding types that the settings of this
        search allow. If the search needs no such rule, return the task itself.

        The rule is needed if `sharding_types` lacks column_wise, or includes table_row_wise or grid_shard but not
        row_wise.

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

    def _searched(self, asked: Task, simulator: Simulator) -> list[Found]:
        """Return up to three plans: the best plan of each of three groups of choices. A choice gives each table one
        sharding type, and the search looks for a plan with each choice. The groups are:
        - first choices, in which every table is column-wise if possible;
        - other promising choices;
        - choices for variants of the task, in which further rules split some tables into more than two equal parts.

        If no choice of any group fits, choices for scarce memory are searched until one fits.

        Raises:
            InfeasibleError: no plan was found.
        """
        errors = list[InfeasibleError]()
        tables = self._option_tables(asked, simulator, errors)
        firsts, best = self._first_choices(tables), list[Found]()
        if plans := tuple(self._plans(firsts, self.column_search, errors)):
            best.append(self._best(plans, simulator))
        several = [one for one in tables if one.has_choice]
        worth = [one for one in several if self._may_pay(one, best)]
        if len(worth) < len(several):
            best[0] = replace(best[0], remark="; ".join(filter(None, (best[0].remark, _FEWER_TYPES))))
        likely = self._likely(worth)
        finer = [self._options(*tasks, simulator) for tasks in finer_parts([*firsts, *likely], simulator)]
        others = [choice for choice in likely if not choice.is_first][: SETTINGS.searched_choices]
        parts = self._likely(finer)[: SETTINGS.searched_choices]
        for choices, columns in (others, self.column_search_around_fixed), (parts, self.column_search):
            if plans := tuple(self._plans(choices, columns, errors)):
                best.append(self._best(plans, simulator))
        if best:
            return best
        scarce = (choice for one in (*tables, *finer) for choice in one.for_scarce_memory())
        last = next(self._plans(scarce, self.column_search, errors), None)
        if last is None:
            raise _shortage(tables[0], errors[0])
        return [self._with_improved_tiers(last, simulator)]

    def _may_pay(self, options: OptionTable, best: Sequence[Found]) -> bool:
        """Return True if a search with the sharding types in `options` may find a plan that replaces `best[0]`. Return
        False only if even a plan with the lowest estimated cost, `options.least_ms`, would not be accepted in place of
        `best[0]`.

        If plans may cost less than the estimates, the result is always True: for instance if tables may move to host
        memory, or if rows may move to one host.
        """
        simulator, rule, task = options.simulator, self.acceptance, options.task
        if not best or rule is None or not self.sharding_type_trials:
            return True
        if self._tries_hosts or _knows_tiers(task, simulator) or any(limits.equal_widths for limits in task.limits):
            return True
        plan = best[0].plan
        cost = simulator.cost(plan.task, plan)
        return rule.of_forms(simulator.models).may_accept(cost, options.least_ms, plan.task, simulator)

    def _option_tables(self, asked: Task, simulator: Simulator, errors: list[InfeasibleError]) -> list[OptionTable]:
        """Return option tables of the task `asked` and of variants of this task. An option table has the sharding types
        that each table may have, with estimated costs. A variant is the task with further rules, such as rules on
        tiers.

        The errors of variants that cannot fit in memory are appended to `errors`.

        Rows are spread over all devices first, whatever the rules, and moved to hosts later. If rules allow rows only
        on one host, there are variants without such rows too. If no variant can fit, tables are split into more equal
        parts.

        Raises:
            InfeasibleError: the tables take more memory than there is, in any option.
            UserError: a table may have no sharding type that the search and the models know.
        """
        task = with_rows_on_all(asked) if self._tries_hosts else asked
        tables = self._in_tiers([(task, asked)], simulator, errors)
        if task is not asked:
            with suppress(UserError):
                tables += self._in_tiers([(without_rows_on_hosts(asked), asked)], simulator, errors)
        if not tables:
            finer = [(task.with_rules(rules), asked.with_rules(rules)) for rules in parts_that_fit(task)]
            tables = self._in_tiers(finer, simulator, errors)
        if not tables:
            raise errors[0]
        return tables

    def _in_tiers(
        self, tasks: Iterable[tuple[Task, Task]], simulator: Simulator, errors: list[InfeasibleError]
    ) -> list[OptionTable]:
        """Return option tables for several tasks and for variants of these tasks. An `OptionTable` has the sharding
        types that each embedding table of a task may have, with estimated costs. A variant is a task with further
        rules, such as rules that put some embedding tables into host memory.

        A task has variants only if the task does not fit easily in device memory, if hosts have memory for tables, and
        if the cost models know the costs of host memory.

        `tasks` has pairs (task, asked): option tables are for `task` and its variants, and plans are made for `asked`.
        Tasks that cannot fit in memory are left out, and their errors are appended to `errors`.
        """
        tables = list[OptionTable]()
        for task, asked in tasks:
            simulator.models.check(task)
            try:
                check_least_bytes(task, known_calls(simulator.models, self.forms))
            except InfeasibleError as error:
                errors.append(error)
                continue
            given = self._options(task, asked, simulator)
            tables.append(given)
            if _knows_tiers(task, simulator) and not given.fits_easily:
                variants = tier_variants(task, simulator.compute_for(task), given.may_have)
                tables += (self._options(variant, asked, simulator) for variant in variants)
        return tables

    def _options(self, variant: Task, asked: Task, simulator: Simulator) -> OptionTable:
        """Return the option table of `variant`, which is the task `asked` with further rules. An option table has the
        sharding types that each table of a task may have, with estimated costs.
        """
        return OptionTable(variant, simulator, self._allowed(variant, simulator), self.quick, asked)

    def _first_choices(self, tables: Sequence[OptionTable]) -> list[Choice]:
        """Return the first choices of the most promising option tables. A choice gives each embedding table one
        sharding type. In the first choice, this type is column-wise if possible. Each option table is for one variant
        of the task.

        The most promising option tables are the option tables whose first choices have the cheapest quick plans or the
        lowest estimates. If there is only one option table, it is used without a quick plan.
        """
        if len(tables) == 1:
            return [tables[0].first_choice]
        firsts = [one.first_tried() for one in tables]
        quick, likely = (sorted(firsts, key=key)[: SETTINGS.column_wise_plans] for key in (_QUICK_MS, _ESTIMATE_MS))
        return list(dict.fromkeys((*quick, *likely)))

    def _likely(self, tables: Sequence[OptionTable]) -> list[Choice]:
        """Return the most promising choices of sharding types from all given option tables, the best choice first. A
        choice gives each embedding table one sharding type. The best choice has the lowest sum of two costs: the cost
        of a plan that a fast method makes, and a cost that is estimated before any table is placed.

        An option table has the sharding types that the embedding tables may have in one variant of the task.
        """
        return sorted((choice for one in tables for choice in one.likely(self.sharding_type_trials)), key=_BOTH_MS)

    def _plans(
        self, choices: Iterable[Choice], columns: ImprovedSearch, errors: list[InfeasibleError]
    ) -> Iterator[Found]:
        """Yield one plan for each choice of sharding types. The search `columns` places the column-wise tables of the
        plan. If no plan is found for a choice, the error is appended to `errors` instead.
        """
        for choice in choices:
            try:
                found = self._planned(choice, columns)
            except InfeasibleError as error:
                errors.append(error)
            else:
                yield found

    def _planned(self, choice: Choice, columns: ImprovedSearch) -> Found:
        """Return the plan of one choice of sharding types; the search `columns` places the column-wise tables. Rows are
        spread over all devices first. If no plan is found in this way, the rows of each table are on one host, as far
        as rules allow.

        Raises:
            InfeasibleError: no plan was found; the error is about rows on all devices.
        """
        options = choice.options
        try:
            return self._of_load(options.fixed_load(choice.types), options, columns)
        except InfeasibleError:
            if self._tries_hosts:
                with suppress(InfeasibleError):
                    on_hosts = options.fixed_load_on_hosts(choice.types)
                    if on_hosts is not None:
                        return self._of_load(on_hosts, options, columns)
            raise

    def _of_load(self, fixed: FixedLoad, options: OptionTable, columns: ImprovedSearch) -> Found:
        """Return the plan with the load `fixed` of row-wise and data-parallel tables, as a plan of the task that was
        asked for. If rules then move rows to single hosts, the column-wise tables are placed again.
        """
        found = columns.found(fixed, options.simulator)
        if options.asked is options.task:
            return found
        moved = _of_task(found, options.asked, options.simulator)
        if moved.plan.placements == found.plan.placements:
            return moved
        return self._cheapest(self._with_columns_again(moved, options.simulator), options.simulator)

    def _with_columns_again(self, found: Found, simulator: Simulator) -> list[Found]:
        """Return the plan, and the plan after its column-wise tables are placed again, if there is such a plan."""
        with suppress(InfeasibleError):
            return [found, self._placed_again(found.plan, simulator)]
        return [found]

    def _allowed(self, task: Task, simulator: Simulator) -> BoolArray:
        """Return a mask (T, F) of the sharding types that each of T tables may have. An entry is True if the table may
        have a type of one of F families (column-wise, row-wise, data-parallel).

        If a device has no free memory, tables that may be column-wise must be column-wise, because all other types need
        memory on every device.

        Raises:
            UserError: a table may have no sharding type that the search and the models know.
        """
        calls = known_calls(simulator.models, self.forms)
        allowed = allowed_types(task, calls)
        check_allowed_types(task, allowed, calls, self.forms)
        if int(device_memory(task).min()) <= 0:
            allowed[:, OTHERS] &= ~allowed[:, [COLUMNS]]
        return allowed

    def _best(self, found: Sequence[Found], simulator: Simulator) -> Found:
        """Return the cheapest of the plans in `found` and one improved plan. The improved plan is made only if some
        plans have tables in host memory. The search then takes the cheapest of these plans, and improves the memory
        tiers of the tables (device memory, cached host memory or host memory).
        """
        on_hosts = [one for one in found if _uses_hosts(one.plan)]
        improved = [self._with_improved_tiers(self._cheapest(on_hosts, simulator), simulator)] if on_hosts else []
        return self._cheapest([*found, *improved], simulator)

    def _with_improved_tiers(self, found: Found, simulator: Simulator) -> Found:
        """Improve the tiers of the tables in a plan (device memory, cached host memory or host memory), and return the
        resulting plan. Each round enlarges caches, gives all tables on a device the same tier, and places the
        column-wise tables again. The rounds end when the cost no longer falls, or after a fixed number of rounds. A
        plan without tables in host memory is returned as it is.
        """
        if not _uses_hosts(found.plan):
            return found
        options = TierOptions.of(found.plan.task, simulator.compute_for(found.plan.task))
        for _ in range(SETTINGS.tier_rounds):
            plan = unify_tiers(grow_caches(found.plan, options, simulator), options, simulator)
            every = [found, *self._with_columns_again(replace(found, plan=plan), simulator)]
            best = self._cheapest(every, simulator)
            if best is found:
                break
            found = best
        return found

    def _placed_again(self, plan: Plan, simulator: Simulator) -> Found:
        """Place the column-wise tables of a plan again, and return the new plan. The tiers of all tables, and the
        placements of all other tables, stay the same.

        Raises:
            InfeasibleError: no plan was found.
        """
        start = fix_tiers(plan)
        fixed = FixedLoad.of_plan(start, simulator.compute_for(start.task))
        return self.column_search.found(fixed, simulator).of(plan.task)

    def _with_rows_on_hosts(self, found: Found, simulator: Simulator) -> Found:
        """Return the plan with row-wise tables moved from all devices to the devices of one host, if the search accepts
        this change. The host may differ from table to table. Return the given plan if the search rejects the change, if
        no move lowers the predicted cost, or if the setting `sharding_types` allows no such move.
        """
        if not self._tries_hosts:
            return found
        start = fix_tiers(found.plan)
        moved = move_rows_to_hosts(start, simulator) or start
        if moved is start:
            return found
        every = self._with_columns_again(replace(found, plan=replace(moved, task=found.plan.task)), simulator)
        return self._accepted(found, self._cheapest(every, simulator), simulator)

    def candidate_plans(self, plan: Plan, simulator: Simulator, count: int) -> tuple[Plan, ...]:
        """Return at most `count` plans to measure on hardware: `plan` and other plans. The other plans are made by
        several methods, such as local search, with several choices of sharding types. All plans have the tiers of
        `plan`.

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
        """Return promising choices of sharding types (one type per table) that differ from the
        sharding types of the plan.

        The choices are column-wise tables alone, the best choices by quick searches, and the best choices that leave
        one sharding type out.
        """
        if not self._options(plan.task, plan.task, simulator).has_choice:
            return []
        calls = known_calls(simulator.models, self.forms)
        own, distinct = np.array([FORMS.index(form) for form in plan.forms]), dict[bytes, Choice]()
        for left_out in (None, *(FORMS[form] for form in OTHERS)):
            allowed = allowed_types(plan.task, [call for call in calls if call.form is not left_out])
            if allowed.any(axis=1).all():
                choices = OptionTable(plan.task, simulator, allowed, self.quick, plan.task)
                for one in (choices.first_choice, *choices.likely(self.sharding_type_trials)):
                    distinct.setdefault(one.types.tobytes(), one)
        return [one for forms, one in distinct.items() if forms != own.tobytes()]

    def _candidate_plans(self, choice: Choice, simulator: Simulator, count: int) -> Iterator[Plan]:
        """Yield up to `count` candidate plans with the sharding types of `choice`; no plans
        if the tables do not fit.
        """
        for found in self._plans([choice], self.column_search, []):
            yield from self.column_search.candidate_plans(found.plan, simulator, count)

    def _cheapest(self, found: Sequence[Found], simulator: Simulator) -> Found:
        """Return the plan with the lowest expected cost. The expected cost is the predicted cost plus a correction,
        because predicted costs are too low on average. If `acceptance` is None, return the plan with the lowest
        predicted cost instead.
        """
        if len(found) == 1:
            return found[0]
        costs = [simulator.cost(one.plan.task, one.plan) for one in found]
        return found[cheapest(costs) if self.acceptance is None else likeliest(costs)]

    def _accepted(self, found: Found, other: Found, simulator: Simulator) -> Found:
        """Return one of two plans: `other` if the search accepts `other` in place of `found`, and otherwise `found`.
        The search accepts `other` if the gain is large enough by the rule `acceptance`. If `acceptance` is None, the
        search accepts every gain. Both plans have the same tables and devices; the rules of their tasks may differ.

        If `found` is returned and the search has rejected cheaper plans, the result also has the cheapest rejected
        plan.
        """
        task, rule = found.plan.task, self.acceptance
        if rule is not None and _sharding(found.plan) != _sharding(other.plan):
            rule = rule.of_forms(simulator.models)
        costs = simulator.costs(task, [found.plan, other.plan])
        chosen, rejected = choose(assess(rule, costs, task, simulator))
        if chosen:
            return other
        unsaid = [plan for plan in (found.rejected, other.plan if rejected else None) if plan is not None]
        least = min(unsaid, key=lambda plan: simulator.cost(task, plan).total_ms, default=None)
        return replace(found, rejected=least and replace(least, task=task))


def _sharding(plan: Plan) -> list[tuple[Form, int]]:
    """Return a pair for each table of a plan: the family of sharding types, and the number of shards. For column-wise
    tables the number is always 0, so the pairs are equal for two plans that differ only in column-wise shards.
    """
    each = zip(plan.layouts, plan.by_table, strict=True)
    return [(layout.form, 0 if layout.free else len(placed)) for layout, placed in each]


def _of_task(found: Found, task: Task, simulator: Simulator) -> Found:
    """Return the found plan as a plan of `task`. If the rules of `task` allow the rows of a row-wise table on one host
    only, the rows are moved to one host.

    Raises:
        InfeasibleError: the plan breaks a rule.
    """
    plan, hosts = found.plan, len(task.topology.domains)
    forced = [
        index
        for index, (layout, limits) in enumerate(zip(plan.layouts, task.limits, strict=True))
        if layout.blocks and not rows_on_all(limits.sharding_types, hosts)
    ]
    moved = move_rows_to_hosts(fix_tiers(plan), simulator, forced) if forced else plan
    return replace(found, plan=moved or plan).of(task)


def _uses_hosts(plan: Plan) -> bool:
    """Return True if some table of the plan is in host memory, with a cache or without."""
    return any(assignment.tier is not Tier.DEVICE for assignment in plan.tier_assignments)


def _knows_tiers(task: Task, simulator: Simulator) -> bool:
    """Return True if tables can be placed in host memory: the hosts have memory for tables, and the cost models know
    the costs of tables in host memory.
    """
    return bool(task.topology.host_bytes) and any(
        call.tier is not Tier.DEVICE for call in simulator.models.compute.calls
    )


def _shortage(given: OptionTable, error: InfeasibleError) -> UserError:
    """Return the error to raise if the search found no plan. If the search knows that memory is the reason, the error
    is about memory; otherwise, return the argument `error`. The option table `given` has the task, and the sharding
    types that each table of the task may have.
    """
    task, simulator = given.task, given.simulator
    if _knows_tiers(task, simulator):
        options = TierOptions.of(task, simulator.compute_for(task)).with_data_parallel(task, given.may_have)
        if not options.choices(task):
            return options.shortage(task)
    return given.shortage(error)
