"""Warnings about settings of TorchRec that a plan ignores: one warning for each setting."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from torchrec.distributed.types import CacheParams, ParameterSharding

from neuroshard.layouts import LAYOUTS
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.torchrec.kernels import PREFETCH, PREFETCHED
from neuroshard.torchrec.model import Model
from neuroshard.torchrec.modules import Served, listed
from neuroshard.torchrec.options import PASSED_ON
from neuroshard.torchrec.parameters import Parameter
from neuroshard.words.form import Form
from neuroshard.words.placement import Tier

# Cache settings of sharders that the plan sets for each table, and the field of constraints to use instead.
_SET_BY_PLANS = {"cache_load_factor": "load_factor", "cache_algorithm": "algorithm"}


def unread_remarks(model: Model) -> Iterator[Message]:
    """Yield a warning for each setting in constraints or sharders that the plan of a model ignores."""
    planned = list(model.tables.values())
    for ignored, field, limit, remedy in _IGNORED:
        if names := [table.qualified_name for table in planned if ignored(table)]:
            yield Message(
                "constraints-field-unused",
                f"constraints of {number_of(len(names), 'table')} ({listed(names)}) set {field}",
                limit=limit,
                remedy=remedy,
            )
    yield from _of_sharders(model, planned)
    yield from _of_given(model)
    if model.request.pipeline != PREFETCH and (names := [table.qualified_name for table in _prefetching(model)]):
        yield Message(
            "prefetching-not-counted",
            f"prefetch_pipeline=True is set for caches of {number_of(len(names), 'table')} ({listed(names)})",
            limit=f"with pipeline={model.request.pipeline!r} the planner counts no memory for prefetching",
            remedy=f"Set pipeline={PREFETCH!r} if the job prefetches, or remove prefetch_pipeline=True",
        )


def _is_weighted(table: Parameter) -> bool:
    return bool(table.user_constraints.is_weighted)


def _is_called_virtual(table: Parameter) -> bool:
    return bool(table.user_constraints.use_virtual_table) and not table.is_virtual


def _has_other_features(table: Parameter) -> bool:
    names = table.user_constraints.feature_names
    return names is not None and sorted(names) != sorted(table.config.feature_names)


def _has_cache_statistics(table: Parameter) -> bool:
    cache = table.user_constraints.cache_params
    return cache is not None and cache.stats is not None


def _has_other_precision(table: Parameter) -> bool:
    cache = table.user_constraints.cache_params
    return cache is not None and cache.precision not in (None, table.config.data_type)


def _has_no_cache(table: Parameter) -> bool:
    kernels, cache = table.user_constraints.compute_kernels, table.user_constraints.cache_params
    return cache is not None and cache.load_factor is not None and bool(kernels) and PREFETCHED.isdisjoint(kernels)


# For each warning: a test of a table, the name of the set field, the limit, and the remedy.
_IGNORED: tuple[tuple[Callable[[Parameter], bool], str, str, str], ...] = (
    (
        _is_weighted,
        "is_weighted",
        "the planner counts no memory and no costs for the weights of lookups (4 bytes for each lookup)",
        "Reserve this memory with storage_reservation=",
    ),
    (
        _is_called_virtual,
        "use_virtual_table",
        "the configs of these tables do not set use_virtual_table, so the tables are planned as ordinary tables",
        "Set use_virtual_table in the configs, or remove use_virtual_table from constraints",
    ),
    (
        _has_other_features,
        "other feature_names than the configs",
        "the planner uses the features of the configs",
        "Remove feature_names from constraints",
    ),
    (
        _has_cache_statistics,
        "cache_params.stats",
        "NeuroShard's search does not read these statistics",
        "Pass statistics of these tables as tables=",
    ),
    (
        _has_no_cache,
        "cache_params.load_factor",
        "the compute_kernels of these tables have no cache",
        "Add 'fused_uvm_caching' to compute_kernels, or remove load_factor",
    ),
    (
        _has_other_precision,
        "cache_params.precision",
        "the planner counts the memory of caches in the data type of the weights",
        "Set precision to the data type of the weights, or remove precision",
    ),
)


def _prefetching(model: Model) -> Iterator[Parameter]:
    """Yield the tables for which `prefetch_pipeline` is True and which may have a cache. If the user gives a plan for a
    table, the value comes from this plan; otherwise, the value comes from the constraints. If no value is set there,
    the value comes from `fused_params` of the table's sharder.
    """
    if model.left.compute_device == "cpu":
        return
    for parameter in model.division.parameters:
        given = parameter.sharding_in(model.request.fixed) if parameter.is_in(model.request.fixed) else None
        kernels = parameter.user_constraints.compute_kernels if given is None else [given.compute_kernel]
        cache = parameter.user_constraints.cache_params if given is None else given.cache_params
        flag = None if cache is None else cache.prefetch_pipeline
        prefetches = _fused(parameter).get("prefetch_pipeline") if flag is None else flag
        if prefetches and (not kernels or PREFETCHED.intersection(kernels)):
            yield parameter


def _fused(parameter: Parameter) -> Mapping[str, Any]:
    return getattr(parameter.sharder, "fused_params", None) or {}


def _of_sharders(model: Model, planned: Sequence[Parameter]) -> Iterator[Message]:
    """Yield a warning for each cache setting in a sharder's `fused_params`, such as "cache_load_factor", that a plan
    overrides for each planned table. The function looks only at the sharders of planned tables that may have a cache.
    """
    if model.left.compute_device == "cpu":
        return
    cached = [table for table in planned if Tier.UVM_CACHING in table.tiers]
    for setting, field in _SET_BY_PLANS.items():
        set_by = {type(table.sharder).__name__: _fused(table)[setting] for table in cached if setting in _fused(table)}
        for sharder, value in set_by.items():
            yield Message(
                "fused-params-overridden",
                f"fused_params of {sharder} set {setting}={value}",
                limit=f"the plan sets {setting} for each table that NeuroShard plans",
                remedy=f"Set cache_params.{field} in constraints instead",
            )


def _of_given(model: Model) -> Iterator[Message]:
    """Yield a warning if the plan that the user gives for some tables contradicts the constraints of these tables.

    The planner keeps the user's plan unchanged.
    """
    differing = [
        f"{table.qualified_name} ({field}={getattr(table.user_constraints, field)})"
        for table in model.division.fixed
        for field in _unfollowed(table, model)
    ]
    if differing:
        yield Message(
            "given-constraints-differ",
            f"the plan in given= breaks constraints: {listed(differing)}",
            limit="the planner keeps the plan in given= as it is",
            remedy="Change given= or the constraints",
        )


def _unfollowed(table: Parameter, model: Model) -> Iterator[str]:
    """Yield the names of the constraints of a table, such as "sharding_types", that contradict the plan that the user
    gave for this table.
    """
    sharding, constraints = table.sharding_in(model.request.fixed), table.user_constraints
    if constraints.sharding_types and sharding.sharding_type not in constraints.sharding_types:
        yield "sharding_types"
    if constraints.compute_kernels and sharding.compute_kernel not in constraints.compute_kernels:
        yield "compute_kernels"
    for field in PASSED_ON:
        wanted, has = getattr(constraints, field), getattr(sharding, field)
        followed = _follows(sharding, wanted) if isinstance(wanted, CacheParams) else wanted in (None, has)
        if not followed:
            yield field


def _follows(sharding: ParameterSharding, wanted: CacheParams) -> bool:
    """Return True if `sharding` agrees with `wanted`, the cache parameters that the user set for a table. They agree if
    `sharding` has no cache, or if the cache has every value that `wanted` sets.
    """
    if sharding.compute_kernel not in PREFETCHED:
        return True
    has = sharding.cache_params or CacheParams()
    return all(getattr(wanted, field.name) in (None, getattr(has, field.name)) for field in fields(CacheParams))


def no_data_parallel_remark(served: Served, forms: Collection[Form]) -> Message | None:
    """Return a warning if NeuroShard cannot make tables data-parallel, because the search or the cost models do not
    support data-parallel tables. Return None if both support data-parallel tables.

    `forms` are the families of sharding types that the search can place.
    """
    if any(LAYOUTS[call.form].dense for call in served.calls):
        return None
    limit, remedy = "the searcher makes no table data_parallel", "searcher='neuroshard'"
    if any(LAYOUTS[form].dense for form in forms):
        limit, remedy = "the cost models have no costs of data_parallel tables", "other cost models with models="
    return Message(
        "data-parallel-not-searched",
        "data_parallel=True has no effect on the tables that NeuroShard plans",
        limit=limit,
        remedy=f"Set {remedy}, or remove data_parallel=True",
    )


def unused_arguments(
    num_groups: object,
    sync_steps: int,
    use_inter_host_allreduce: bool,
    unkept: bool,
    verify: object,
    **of_verify: tuple[int, int],
) -> Iterator[Message]:
    """Yield a warning for each of the planner's arguments that has no effect because of other arguments.

    `unkept` is True if `keep_types` is set without `keep`; `of_verify` has pairs of a value and its default, by name.
    """
    if unkept:
        yield Message(
            "planner-keep-types-unused",
            "keep_types=True has no effect without keep=",
            remedy="Set keep= to a file, or pass keep_types=True to replan()",
        )
    if num_groups == 1 and (sync_steps != 1 or use_inter_host_allreduce):
        yield Message(
            "planner-groups-arguments-unused",
            f"sync_steps={sync_steps} and use_inter_host_allreduce={use_inter_host_allreduce} have no effect",
            limit="num_groups is 1, and both arguments apply only to several groups",
            remedy="Set num_groups to 2 or more, or remove these arguments",
        )
    if isinstance(verify, str):
        return
    for name, (value, default) in of_verify.items():
        if value != default and verify is None:
            yield Message(
                "planner-verify-argument-unused",
                f"{name}={value} has no effect without verify=",
                limit="the planner measures no plans",
                remedy=f"Set verify=, or remove {name}=",
            )
        elif value != default:
            yield Message(
                "planner-verifier-argument-unused",
                f"{name}={value} has no effect",
                limit=f"verify= is an object ({type(verify).__name__}), which has its own settings",
                remedy="Give the setting to that object",
            )
