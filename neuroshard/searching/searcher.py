"""The interfaces of search methods and of verifiers (which measure candidate plans), and functions that build a search
method or a verifier from the name of a config.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
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
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.registry import build, config_of, instantiate_config
from neuroshard.plumbing.schema import shown
from neuroshard.tasks.task import Task
from neuroshard.words.form import Form, Forms
from neuroshard.words.model_choice import ModelChoice

_Own = TypeVar("_Own", bound="Searcher")
_Find = Callable[[_Own, Task, Simulator], "Found"]
_FindCandidates = Callable[[_Own, Plan, Simulator, int], tuple[Plan, ...]]


@dataclass(frozen=True)
class Found:
    """A plan that keeps its task's memory limits and constraints, with remarks on how the plan was found.

    Every search returns its plan in a `Found`, so no search returns a plan that breaks a limit.

    Attributes:
        plan: the plan.
        warning: a reason to doubt the plan; None if there is none. Text becomes a message.
        rejected: another plan of the task, predicted to be cheaper, whose gain the search did not accept; None if there
            is none.
        remark: a line about the search that the plan does not show; None if there is no remark.

    Raises:
        InfeasibleError: the plan breaks a memory limit or a constraint.
    """

    plan: Plan
    warning: Message | None = None
    rejected: Plan | None = None
    remark: str | None = None

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
        """Return a copy of this search result in which the plans refer to `task` instead of to the task of the search.
        `task` must have the same tables and devices as the task of the search.

        The task is replaced in the plan that was found and, if there is one, in the rejected plan.
        """
        rejected = None if self.rejected is None else replace(self.rejected, task=task)
        return replace(self, plan=replace(self.plan, task=task), rejected=rejected)


class Searcher(ABC):
    """A search method, which finds a plan for a task.

    An object has only settings as state, so the same call of `find` returns the same plan.
    """

    def __init_subclass__(cls, **settings: Any) -> None:
        """Wrap the methods `find` and `candidate_plans` of a new subclass, if the subclass defines these methods.
        The wrapped methods check the plans that they return.
        """
        super().__init_subclass__(**settings)
        if "find" in vars(cls):
            cls.find = _checked_find(vars(cls)["find"])  # type: ignore[assignment, method-assign]
        if "candidate_plans" in vars(cls):
            plans = _checked_candidate_plans(vars(cls)["candidate_plans"])
            cls.candidate_plans = plans  # type: ignore[assignment, method-assign]

    @abstractmethod
    def find(self, task: Task, simulator: Simulator) -> Found:
        """Search for a plan of the task, and return the plan with remarks on the search.
        The plan fits in memory and keeps the task's constraints.

        The plan's task is `task`, possibly with further rules that the plan also keeps. If a method does not check the
        memory of each host, decorate it with `within_hosts`.

        Raises:
            InfeasibleError: this method finds no such plan.
            UserError: the simulator's models do not support the task.
        """

    @property
    def takes_sequences(self) -> bool:
        """True if the method places sequence tables, whose lookups are not summed up, in addition to pooled tables."""
        return True

    @property
    def takes_forms(self) -> Forms:
        """The families of sharding types (column-wise, row-wise or data-parallel) that this search method can place. By
        default, these are the column-wise family, and the families of all sharding types in the attribute
        `sharding_types`. If the search method has no such attribute, only the column-wise family remains.

        If this method searches, the rules of a task can restrict a table only to these families.
        """
        return frozenset({Form.COLUMN_WISE, *forms_of(getattr(self, "sharding_types", ()))})

    def candidate_plans(self, plan: Plan, simulator: Simulator, count: int) -> tuple[Plan, ...]:
        """Return at most `count` candidate plans to measure.
        The candidates are `plan`, which this search method found, and other plans of the same task that may be faster
        than `plan`. All of them keep the memory limits and constraints of the task.

        The layouts of the plans differ on hardware (`layout_key`). By default, the result is only `plan`.
        """
        return (plan,)

    def reads(self) -> tuple[str, ...]:
        """Return digests (hashes) of the files that the search method reads; one digest may be of several files.
        If a digest has changed, an interrupted search cannot be resumed.
        """
        return ()


def _checked_find(find: _Find[_Own]) -> _Find[_Own]:
    """Return a version of the method `find` of a search method that checks its result, as `_as_found` does."""

    @wraps(find)
    def finding(self: _Own, task: Task, simulator: Simulator) -> Found:
        """Call the wrapped method `find`, check the result, and return it."""
        return _as_found(self, task, find(self, task, simulator))

    return finding


def _checked_candidate_plans(find: _FindCandidates[_Own]) -> _FindCandidates[_Own]:
    """Return a version of the method `candidate_plans` of a search method that checks the plans. This version raises
    UserError if there are too many or no plans, or if a plan belongs to another task or breaks a limit of its task.
    """

    @wraps(find)
    def finding(self: _Own, plan: Plan, simulator: Simulator, count: int) -> tuple[Plan, ...]:
        """Call the wrapped method `candidate_plans`, check the plans, and return them."""
        plans, method = find(self, plan, simulator, count), f"{type(self).__name__}.candidate_plans"
        if not 0 < len(plans) <= count:
            raise UserError(
                "searcher-candidate-count",
                f"{method} returned {number_of(len(plans), 'plan')}",
                limit=f"from 1 to {count} plans were requested",
                remedy="Return the plan that was found, and at most count - 1 other plans",
            )
        for candidate in plans:
            _check_task(method, candidate, plan.task)
            if candidate.violations:
                raise UserError(
                    "searcher-candidate-breaks-limits",
                    f"{method} returned a plan that breaks a limit of the task",
                    limit=candidate.violations[0],
                    remedy="Return only plans without violations",
                )
        return plans

    return finding


def _as_found(searcher: Searcher, task: Task, found: object) -> Found:
    """Return `found`, the result of a searcher's method `find` for a task.

    Raises:
        UserError: `found` is not a `Found` object, or the plan belongs to another task.
    """
    if isinstance(found, Found):
        _check_task(f"{type(searcher).__name__}.find", found.plan, task)
        return found
    result = "a Plan" if isinstance(found, Plan) else shown(found)
    raise UserError(
        "searcher-returned-other",
        f"{type(searcher).__name__}.find returned {result}",
        limit="find must return a Found",
        remedy="Return ns.Found(plan) from find",
    )


def _check_task(method: str, plan: Plan, task: Task) -> None:
    """Raise UserError if a plan from `method` is not a plan of `task`. The plan's task may have further rules."""
    if plan.task is task:
        return
    added = plan.task.constraints.rules[len(task.constraints.rules) :]
    differ = [field.name for field in fields(task) if getattr(plan.task, field.name) != getattr(task, field.name)]
    if differ and (differ != ["constraints"] or plan.task.constraints != task.constraints.with_rules(added)):
        raise UserError(
            "searcher-plan-other-task",
            f"{method} returned a plan of another task",
            limit=f"these fields differ from the task to search: {', '.join(differ)}",
            remedy="Make the plan from the task that the method gets: Plan(task, placements)",
        )


def within_hosts(find: _Find[_Own]) -> _Find[_Own]:
    """Decorate the `find` method of a search method that does not check the memory of each host.
    If `find` finds no plan, the decorated method calls `find` again with further constraints, which assign the tables
    in host memory to hosts or reduce the device memory for the tables' caches.

    The function `tried_within_hosts` describes these constraints.
    """

    @wraps(find)
    def finding(self: _Own, task: Task, simulator: Simulator) -> Found:
        """Search for a plan of the task, and return the plan found.
        If no plan is found, search again with further constraints on the tables in host memory.
        """
        return tried_within_hosts(task, lambda tried: _as_found(self, tried, find(self, tried, simulator)))

    return finding


def tried_within_hosts(task: Task, find: Callable[[Task], Found], in_rows: Collection[str] = ()) -> Found:
    """Call the function `find` for a task, and return the result.
    If `find` finds no plan, call `find` again with further constraints on the tables in host memory. The tables named
    in `in_rows` are row-wise over all hosts, and get no further constraints.

    These constraints assign tables to hosts, and keep cached tables of unequal widths apart.

    Raises:
        InfeasibleError: no plan is found, with any rules. This is the error for the task without further rules, because
            the other errors are about the added rules.
    """
    try:
        return find(task)
    except InfeasibleError as error:
        for other in _with_rules_for_hosts(task, in_rows):
            with suppress(InfeasibleError):
                return find(other).of(task)
        raise error from None


def _with_rules_for_hosts(task: Task, in_rows: Collection[str]) -> Iterator[Task]:
    """Yield copies of the task with further constraints, to search again if no plan of the task was found. The most
    promising copy comes first. The constraints assign the tables in host memory to hosts, reduce the device memory for
    the caches of these tables, or do both. Tables named in `in_rows` get no further constraints.
    """
    assigned = assigned_to_hosts(task, in_rows)
    if assigned is not None:
        yield assigned
    yield from separated(task, in_rows)
    if assigned is not None:
        yield from separated(assigned, in_rows)


def searcher_of(searcher: Searcher | str, **settings: Any) -> Searcher:
    """Return the search method that `conf/searcher/<searcher>.yaml` describes; `settings` replace settings in the file.

    A `Searcher` object is returned unchanged.

    Raises:
        UserError: there is no such searcher or setting, or settings are given for a `Searcher` object.
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


def settings_of(searcher: Searcher) -> dict[str, Any]:
    """Return the settings of a search method as JSON-ready values. A setting that is itself an object, such as another
    search method, becomes a dict of the object's settings.

    Raises:
        UserError: JSON cannot store a setting.
    """
    settings: dict[str, Any] = _as_json(searcher, "searcher")
    return settings


def classes_in(value: object) -> list[str]:
    """Return the full names of the class of a search method and of the classes of all objects among its settings, each
    once, in the order of the settings.
    """
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    else:
        parts = [setting for _, setting in _fields(value)] if _has_settings(value) else []
    own = [f"{type(value).__module__}.{type(value).__qualname__}"] if _has_settings(value) else []
    return list(dict.fromkeys([*own, *(name for part in parts for name in classes_in(part))]))


def _as_json(value: object, name: str) -> Any:
    """Return `value`, the setting `name` of a search method, as a JSON-ready value.
    Raise UserError if JSON cannot store the value.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _as_json(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item, f"{name}[{index}]") for index, item in enumerate(value)]
    if _has_settings(value):
        return {key: _as_json(item, f"{name}.{key}") for key, item in _fields(value)}
    raise UserError(
        "searcher-setting-not-plain",
        f"{name} is {shown(value)}",
        limit="each run stores the settings of its search method as JSON",
        remedy="Make the setting a number, a text, a list or a dataclass of these, and other objects inside find",
    )


def _has_settings(value: object) -> bool:
    return isinstance(value, Searcher) or (is_dataclass(value) and not isinstance(value, type))


def _fields(value: object) -> list[tuple[str, Any]]:
    """Return the names and values of the settings of an object: its fields, or its attributes if the object is not a
    dataclass.
    """
    if is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return list(vars(value).items())


class Verifier(Protocol):
    """The interface of verifiers, which measure the candidate plans of a search and choose the best of these plans.
    A verifier has settings, but no other state.
    """

    def decided(self, searcher: Searcher, task: Task, simulator: Simulator) -> Found:
        """Measure the candidate plans of a searcher, and return the best plan with a remark about the measurements.

        Raises:
            InfeasibleError: the search finds no plan.
            UserError: the simulator's models do not support the task, or the plans cannot be measured here.
        """
        ...


def verifier_of(
    name: str, model: ModelChoice, device: str, candidate_plans: int, passes: int, hides_input: bool
) -> Verifier | None:
    """Return the verifier that measures the candidate plans of `neuroshard search verify=NAME`; None if `name` is
    "none".

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
    settings = {"verify": name, "model": model.name, "exchange_dtype": model.exchange_dtype, "hardware": device}
    config = config_of("search", settings | {"candidate_plans": candidate_plans, "passes": passes}).verify
    if OmegaConf.select(config, "measure.protocol") is not None:
        config.measure.protocol.pipeline = "sparse_dist" if hides_input else "none"
    verifier: Verifier | None = instantiate_config(config)
    return verifier
