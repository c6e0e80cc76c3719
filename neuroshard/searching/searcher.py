"""The interfaces of search methods and of verifiers, which measure candidate plans; both are built by name."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Protocol, TypeVar

from omegaconf import OmegaConf

from neuroshard.layouts.sharding_types import forms_of
from neuroshard.models.simulator import Simulator
from neuroshard.plans.caches import separated
from neuroshard.plans.hosts import assigned_to_hosts
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.configs import choices
from neuroshard.plumbing.errors import InfeasibleError, UserError, check_name
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.registry import build, config_of, instantiate_config
from neuroshard.plumbing.schema import shown
from neuroshard.tasks.task import Task
from neuroshard.words.form import Form, Forms
from neuroshard.words.model_choice import ModelChoice

_Own = TypeVar("_Own", bound="Searcher")
_Find = Callable[[_Own, Task, Simulator], "Found"]


@dataclass(frozen=True)
class Found:
    """A plan that keeps its task's memory limits and constraints, with remarks on how the plan was found.

    Every search returns its plan in a `Found`, so no search returns a plan that breaks a limit.

    Attributes:
        plan: the plan.
        warning: a reason to doubt the plan; None if there is none. Text becomes a message.
        rejected: another plan of the task, predicted to be cheaper, whose gain the search did not accept; None if there
            is none.
        remark: a line on the search that the plan alone doesn't show; None if there is no remark.
        fewer: another plan with fewer shards, predicted to cost more, as long as a search has not chosen between the
            two; else None.

    Raises:
        InfeasibleError: the plan breaks a memory limit or a constraint.
    """

    plan: Plan
    warning: Message | None = None
    rejected: Plan | None = None
    remark: str | None = None
    fewer: Plan | None = None

    def __post_init__(self) -> None:
        if self.plan.violations:
            raise InfeasibleError(
                "plan-breaks-limits",
                "none of the plans found keeps all limits",
                limit=f"in the best plan, {self.plan.violations[0]}",
                remedy="Do one of these: give devices and hosts more memory; loosen the constraints; or set another "
                "searcher",
            )
        if isinstance(self.warning, str):
            object.__setattr__(self, "warning", Message("search-warning", self.warning))

    def of(self, task: Task) -> "Found":
        """Restate what was found as plans of another task of the same tables, on the same devices."""
        rejected, fewer = (None if one is None else replace(one, task=task) for one in (self.rejected, self.fewer))
        return replace(self, plan=replace(self.plan, task=task), rejected=rejected, fewer=fewer)


class Searcher(ABC):
    """Finds a plan for a task. Holds settings only: the same call gives the same plan."""

    def __init_subclass__(cls, **settings: Any) -> None:
        """Check what the class's own `find` returns, whoever calls it."""
        super().__init_subclass__(**settings)
        if "find" in vars(cls):
            cls.find = _checked_find(vars(cls)["find"])  # type: ignore[assignment, method-assign]

    @abstractmethod
    def find(self, task: Task, simulator: Simulator) -> Found:
        """Find a plan that fits in memory and keeps the task's constraints; return `Found(plan)`, with remarks if any.

        The plan's task is `task`, possibly with further rules that the plan keeps, too.
        If a method does not know the memory of hosts, decorate it with `within_hosts`.

        Raises:
            InfeasibleError: this method finds none.
            UserError: the simulator's models can't serve the task.
        """

    @property
    def takes_sequences(self) -> bool:
        """True if the method places sequence tables, in addition to pooled tables."""
        return True

    @property
    def takes_forms(self) -> Forms:
        """The families that a table may be restricted to: column-wise, and those of a setting `sharding_types`."""
        return frozenset({Form.COLUMN_WISE, *forms_of(getattr(self, "sharding_types", ()))})

    def candidate_plans(self, plan: Plan, simulator: Simulator, count: int) -> tuple[Plan, ...]:
        """List candidate plans to measure: `plan`, which this method found, and other plans that may be faster.

        At most `count` plans, all of which differ on hardware (`layout_key`). By default `plan` alone.
        """
        return (plan,)

    def reads(self) -> tuple[str, ...]:
        """Return digests of the files that the search reads; a run resumes only if they are the same."""
        return ()


def _checked_find(find: _Find[_Own]) -> _Find[_Own]:
    """Return a searcher's `find` that raises UserError if it returns anything but a `Found`."""

    @wraps(find)
    def finding(self: _Own, task: Task, simulator: Simulator) -> Found:
        """Find a plan, as a `Found`."""
        return _as_found(self, find(self, task, simulator))

    return finding


def _as_found(searcher: Searcher, found: object) -> Found:
    if isinstance(found, Found):
        return found
    what = "a Plan" if isinstance(found, Plan) else shown(found)
    raise UserError(
        "searcher-returned-other",
        f"{type(searcher).__name__}.find returned {what}",
        limit="find must return a Found",
        remedy="Return ns.Found(plan) from find",
    )


def within_hosts(find: _Find[_Own]) -> _Find[_Own]:
    """Return a searcher's `find` that tries again by `tried_within_hosts` if it finds no plan."""

    @wraps(find)
    def finding(self: _Own, task: Task, simulator: Simulator) -> Found:
        """Find a plan of the task, or of the task with tables assigned to hosts."""
        return tried_within_hosts(task, lambda tried: _as_found(self, find(self, tried, simulator)))

    return finding


def tried_within_hosts(task: Task, find: Callable[[Task], Found], in_rows: Collection[str] = ()) -> Found:
    """Find a plan of a task; if there is none, of the task with rules for tables in host memory.

    The rules assign tables to hosts, and keep cached tables of unequal widths apart. The tables `in_rows`, by name, are
    row-wise over all hosts, and get no rules. If no plan is found with any rules, the first error is raised: the other
    errors are about the added rules.
    """
    try:
        return find(task)
    except InfeasibleError as error:
        for other in _with_rules_for_hosts(task, in_rows):
            with suppress(InfeasibleError):
                return find(other).of(task)
        raise error from None


def _with_rules_for_hosts(task: Task, in_rows: Collection[str]) -> Iterator[Task]:
    """Yield the task with further rules for its tables in host memory, the likeliest first."""
    assigned = assigned_to_hosts(task, in_rows)
    if assigned is not None:
        yield assigned
    yield from separated(task, in_rows)
    if assigned is not None:
        yield from separated(assigned, in_rows)


def searcher_of(searcher: Searcher | str, **settings: Any) -> Searcher:
    """Build the searcher of `conf/searcher/<searcher>.yaml`, `settings` over its own; or take a search method as it is.

    Raises:
        UserError: no such searcher or setting, or settings for a method that has its own already.
    """
    if isinstance(searcher, str):
        built: Searcher = build("searcher", searcher, **settings)
        return built
    if not isinstance(searcher, Searcher):
        raise UserError(
            "searcher-not-method",
            f"searcher is {shown(searcher)}",
            limit="the name of a search method, or a Searcher, is expected",
            remedy="Set searcher to a name such as 'neuroshard', or to a Searcher",
        )
    if settings:
        (name, value), method = next(iter(settings.items())), type(searcher).__name__
        raise UserError(
            "searcher-setting-twice",
            f"{name}={shown(value)} is set, but searcher is an object ({method})",
            limit="search settings can be passed only with the name of a search method",
            remedy=f"Pass the setting to the object: {method}({name}=...)",
        )
    return searcher


class Verifier(Protocol):
    """Measures a search's candidate plans. Holds settings only."""

    def decided(self, searcher: Searcher, task: Task, simulator: Simulator) -> Found:
        """Find candidate plans of a task, measure them, and return the best one, with a remark on the measurements.

        Raises:
            InfeasibleError: the search finds no plan.
            UserError: the simulator's models can't serve the task, or its plans can't be measured here.
        """
        ...


def verifier_of(
    name: str, model: ModelChoice, device: str, candidate_plans: int, passes: int, hides_input: bool
) -> Verifier | None:
    """Build the verifier of `neuroshard search verify=NAME`; None if NAME is "none".

    Args:
        name: name of a file in `conf/verify/`.
        model: cost models; their exchanges are added if the measured steps have none.
        device: type of device on which plans run: "cpu" or "cuda".
        candidate_plans: maximum number of plans that are measured.
        passes: number of passes over all candidate plans, at least 2.
        hides_input: True if training steps run in a pipeline that hides the input dist.

    Raises:
        UserError: the name is unknown, or a setting is out of range.
    """
    check_name("verify", name, choices("verify"))
    asked = {"verify": name, "model": model.name, "exchange_dtype": model.exchange_dtype, "hardware": device}
    config = config_of("search", asked | {"candidate_plans": candidate_plans, "passes": passes}).verify
    if OmegaConf.select(config, "means.protocol") is not None:
        config.means.protocol.pipeline = "sparse_dist" if hides_input else "none"
    verifier: Verifier | None = instantiate_config(config)
    return verifier
