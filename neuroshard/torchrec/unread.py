"""Settings of TorchRec that no plan follows: warnings, one line for each setting."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from torchrec.distributed.types import CacheParams, ParameterSharding

from neuroshard.layouts import LAYOUTS
from neuroshard.torchrec.kernels import PREFETCH, PREFETCHED
from neuroshard.torchrec.model import Model
from neuroshard.torchrec.modules import Served, listed
from neuroshard.torchrec.options import PASSED_ON
from neuroshard.torchrec.parameters import Parameter
from neuroshard.words.placement import Tier

# Sharders' settings of caches that a plan sets for each table: where the user can set them instead.
_SET_BY_PLANS = {"cache_load_factor": "load_factor", "cache_algorithm": "algorithm"}


def unread_remarks(model: Model) -> Iterator[str]:
    """List the constraints and the sharders' settings that the plan of a model doesn't follow, and what to do."""
    planned = list(model.tables.values())
    for ignored, what in _IGNORED:
        if names := [its.qualified_name for its in planned if ignored(its)]:
            yield f"constraints of {len(names)} table(s) ({listed(names)}) set {what}"
    yield from _of_sharders(model, planned)
    yield from _of_given(model)
    if model.asked.pipeline != PREFETCH and (names := [its.qualified_name for its in _prefetching(model)]):
        yield (
            f"caches of {len(names)} table(s) ({listed(names)}) are set up to prefetch, and pipeline="
            f"{model.asked.pipeline!r} counts no memory for it; set pipeline={PREFETCH!r}, or don't set them up so"
        )


def _is_weighted(table: Parameter) -> bool:
    return bool(table.said.is_weighted)


def _is_called_virtual(table: Parameter) -> bool:
    return bool(table.said.use_virtual_table) and not table.is_virtual


def _has_other_features(table: Parameter) -> bool:
    names = table.said.feature_names
    return names is not None and sorted(names) != sorted(table.config.feature_names)


def _has_cache_statistics(table: Parameter) -> bool:
    cache = table.said.cache_params
    return cache is not None and cache.stats is not None


def _has_other_precision(table: Parameter) -> bool:
    cache = table.said.cache_params
    return cache is not None and cache.precision not in (None, table.config.data_type)


def _has_no_cache(table: Parameter) -> bool:
    kernels, cache = table.said.compute_kernels, table.said.cache_params
    return cache is not None and cache.load_factor is not None and bool(kernels) and PREFETCHED.isdisjoint(kernels)


_IGNORED: tuple[tuple[Callable[[Parameter], bool], str], ...] = (
    (_is_weighted, "is_weighted: memory and costs leave the weights of lookups out, 4 bytes of each"),
    (_is_called_virtual, "use_virtual_table, which their configs don't: they are planned as ordinary tables"),
    (_has_other_features, "feature_names that are not those of their configs, which count"),
    (_has_cache_statistics, "cache_params.stats, which our search doesn't read: give statistics by tables="),
    (_has_no_cache, "cache_params.load_factor, and their compute_kernels have no cache: allow fused_uvm_caching"),
    (_has_other_precision, "cache_params.precision: memory counts caches in the data type of the weights"),
)


def _prefetching(model: Model) -> Iterator[Parameter]:
    """List the tables whose caches would prefetch: by the given plan, constraints, or sharders' `fused_params`."""
    if model.left.compute_device == "cpu":
        return
    for parameter in model.division.parameters:
        given = parameter.sharding_in(model.asked.fixed) if parameter.is_in(model.asked.fixed) else None
        kernels = parameter.said.compute_kernels if given is None else [given.compute_kernel]
        cache = parameter.said.cache_params if given is None else given.cache_params
        flag = None if cache is None else cache.prefetch_pipeline
        prefetches = _fused(parameter).get("prefetch_pipeline") if flag is None else flag
        if prefetches and (not kernels or PREFETCHED.intersection(kernels)):
            yield parameter


def _fused(parameter: Parameter) -> Mapping[str, Any]:
    return getattr(parameter.sharder, "fused_params", None) or {}


def _of_sharders(model: Model, planned: Sequence[Parameter]) -> Iterator[str]:
    """List the settings of sharders that a plan overrides for tables that may be behind a cache."""
    if model.left.compute_device == "cpu":
        return
    cached = [its for its in planned if Tier.UVM_CACHING in its.tiers]
    for setting, field in _SET_BY_PLANS.items():
        set_by = {type(its.sharder).__name__: _fused(its)[setting] for its in cached if setting in _fused(its)}
        for sharder, value in set_by.items():
            yield (
                f"fused_params of {sharder} set {setting}={value}, and the plan sets that for each of the tables "
                f"planned here; give it as cache_params.{field} in constraints"
            )


def _of_given(model: Model) -> Iterator[str]:
    """List the constraints that a given plan doesn't follow: it is kept as it is."""
    differing = [
        f"{its.qualified_name} ({field}={getattr(its.said, field)})"
        for its in model.division.fixed
        for field in _unfollowed(its, model)
    ]
    if differing:
        yield f"given= is kept as it is, and differs from constraints: {listed(differing)}; change one of the two"


def _unfollowed(table: Parameter, model: Model) -> Iterator[str]:
    """Name the fields of a table's constraints that its sharding in the given plan doesn't follow."""
    sharding, said = table.sharding_in(model.asked.fixed), table.said
    if said.sharding_types and sharding.sharding_type not in said.sharding_types:
        yield "sharding_types"
    if said.compute_kernels and sharding.compute_kernel not in said.compute_kernels:
        yield "compute_kernels"
    for field in PASSED_ON:
        asked, has = getattr(said, field), getattr(sharding, field)
        followed = _follows(sharding, asked) if isinstance(asked, CacheParams) else asked in (None, has)
        if not followed:
            yield field


def _follows(sharding: ParameterSharding, asked: CacheParams) -> bool:
    """Return True if a sharding has no cache, or a cache with all that is asked for."""
    if sharding.compute_kernel not in PREFETCHED:
        return True
    has = sharding.cache_params or CacheParams()
    return all(getattr(asked, one.name) in (None, getattr(has, one.name)) for one in fields(CacheParams))


def no_data_parallel_remark(served: Served) -> str | None:
    """Say that a search and its models make no table data-parallel, whatever `data_parallel` is; None if they do."""
    if any(LAYOUTS[call.form].dense for call in served.calls):
        return None
    return (
        "data_parallel=True counts for tables that are left to TorchRec's planner only: this searcher or these models "
        "make no table data-parallel; choose others, such as searcher='neuroshard', or leave data_parallel=True out"
    )


def unused_arguments(
    num_groups: object,
    sync_steps: int,
    use_inter_host_allreduce: bool,
    unkept: bool,
    verify: object,
    **of_verify: tuple[int, int],
) -> Iterator[str]:
    """List the planner's arguments that other arguments leave unused.

    `unkept` is True if `keep_types` is given without `keep`; `of_verify` are values and their defaults, by name.
    """
    if unkept:
        yield "keep_types=True has no effect without keep=; give keep= a file, or pass keep_types to replan()"
    if num_groups == 1 and (sync_steps != 1 or use_inter_host_allreduce):
        yield (
            f"sync_steps={sync_steps} and use_inter_host_allreduce={use_inter_host_allreduce} count with several "
            "groups only; set num_groups"
        )
    if isinstance(verify, str):
        return
    for name, (value, default) in of_verify.items():
        if value != default and verify is None:
            yield f"{name}={value} counts with verify= only, and nothing is measured; set verify"
        elif value != default:
            yield f"{name}={value} goes with the name of a verify= only; give it to the {type(verify).__name__} itself"
