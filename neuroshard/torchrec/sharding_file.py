"""Save and load TorchRec's plans as JSON: sharding types, compute kernels, ranks and shards of every parameter."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
from msgspec import Meta
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
)

from neuroshard.plumbing.errors import UserError, check_name, raised_by, unknown_name
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.schema import (
    MAX_DIM,
    MAX_ROWS,
    MAX_SHARD_DIM,
    CacheShare,
    Device,
    Name,
    NonNegative,
    of_format,
    parse,
)
from neuroshard.torchrec.kernels import COPIED, SHARDING_TYPES
from neuroshard.torchrec.modules import listed
from neuroshard.torchrec.options import PASSED_ON
from neuroshard.torchrec.parameters import parameters_of
from neuroshard.torchrec.sharding_plan import parameters_in

_FORMAT = "torchrec-sharding-plan-1"
_KERNELS = tuple(kernel.value for kernel in EmbeddingComputeKernel)
_LOST_OF_CACHES = ("precision", "stats", "multipass_prefetch_config")
_log = logging.getLogger(__name__)


def save_sharding_plan(sharding_plan: ShardingPlan, path: str | Path) -> None:
    """Write a TorchRec plan as JSON: sharding types, compute kernels, ranks, shards and caches of every parameter.

    The file cannot store other fields, such as `output_dtype`; a warning names the fields that are set but not stored.
    """
    write_json(Path(path), file_content(sharding_plan))
    if lost := [
        f"{field} of table {name!r}" + (f" in module {module!r}" if module else "")
        for module, name, parameter in parameters_in(sharding_plan)
        for field in _lost(parameter)
    ]:
        _log.warning(
            Message(
                "sharding-plan-fields-lost",
                f"the file {str(path)!r} does not contain {listed(lost)}",
                limit="files of sharding plans cannot store these fields",
                remedy="Set the fields again in the loaded plan",
            )
        )
    if left_out := [path for path, module in sharding_plan.plan.items() if not isinstance(module, dict)]:
        _log.warning(
            Message(
                "sharding-plan-modules-lost",
                f"the file {str(path)!r} does not contain the plans of modules {listed(list(map(repr, left_out)))}",
                limit="files of sharding plans store only modules with embedding tables",
                remedy="Add the plans of these modules to the loaded plan",
            )
        )


def _lost(parameter: ParameterSharding) -> list[str]:
    """Return the names of the fields that are set in a parameter's sharding, but cannot be stored in files."""
    cache = parameter.cache_params
    of_cache = [field for field in _LOST_OF_CACHES if cache is not None and getattr(cache, field) is not None]
    whole = [field for field in PASSED_ON if field != "cache_params" and getattr(parameter, field) is not None]
    return [*whole, *(f"cache_params.{field}" for field in of_cache)]


def file_content(sharding_plan: ShardingPlan, remarks: Sequence[Message] = ()) -> dict[str, Any]:
    """Return the JSON-ready content of a plan's file; `remarks` are for people who read the file."""
    return content_of(modules_json(sharding_plan), remarks)


def content_of(modules: Mapping[str, Any], remarks: Sequence[Message] = ()) -> dict[str, Any]:
    """Return the JSON-ready content of a plan's file, given the plan as `modules_json` returns it.
    `remarks` are for people who read the file.
    """
    said = {"remarks": [str(remark) for remark in remarks]} if remarks else {}
    return {"format": _FORMAT, **said, "modules": dict(modules)}


def modules_json(sharding_plan: ShardingPlan) -> dict[str, Any]:
    """Return a JSON-ready description of every module's parameters; modules without tables are left out."""
    return {
        module: {name: _parameter_json(parameter) for name, parameter in module_plan.items()}
        for module, module_plan in sharding_plan.plan.items()
        if isinstance(module_plan, dict)
    }


def _parameter_json(parameter: ParameterSharding) -> dict[str, Any]:
    spec: Any = parameter.sharding_spec
    shards = spec and [
        {"offsets": list(s.shard_offsets), "sizes": list(s.shard_sizes), "placement": str(s.placement)}
        for s in spec.shards
    ]
    cache = parameter.cache_params
    return {
        "sharding_type": parameter.sharding_type,
        "compute_kernel": parameter.compute_kernel,
        "ranks": parameter.ranks,
        "shards": shards,
        **({} if cache is None else {"cache": _cache_json(cache)}),
    }


def _cache_json(cache: CacheParams) -> dict[str, Any]:
    """Return a JSON-ready description of the cache parameters that files store."""
    return {
        "algorithm": None if cache.algorithm is None else cache.algorithm.name,
        "load_factor": cache.load_factor,
        "reserved_memory": cache.reserved_memory,
        "prefetch_pipeline": cache.prefetch_pipeline,
    }


_Extent = tuple[Annotated[int, Meta(ge=0, le=MAX_ROWS)], Annotated[int, Meta(ge=0, le=MAX_DIM)]]  # rows, columns


@dataclass(frozen=True)
class _ShardFields:
    offsets: _Extent
    sizes: _Extent
    placement: Name


@dataclass(frozen=True)
class _Cache:
    algorithm: str | None
    load_factor: CacheShare | None
    reserved_memory: NonNegative | None
    prefetch_pipeline: bool | None

    def __post_init__(self) -> None:
        if self.algorithm is not None and self.algorithm not in CacheAlgorithm.__members__:
            raise unknown_name("cache algorithm", self.algorithm, CacheAlgorithm.__members__)

    def read(self) -> CacheParams:
        """Return the cache parameters as TorchRec's `CacheParams`."""
        algorithm = None if self.algorithm is None else CacheAlgorithm[self.algorithm]
        return CacheParams(algorithm, self.load_factor, self.reserved_memory, None, self.prefetch_pipeline)


@dataclass(frozen=True)
class ReadParameter:
    """The sharding of a parameter, as it is written in the file of a plan.

    Creating it raises UserError if TorchRec does not support the sharding type or kernel, if a parameter that is not
    data-parallel does not have one rank per shard, or if a shard is wider than FBGEMM's kernels support.
    """

    sharding_type: str
    compute_kernel: str
    ranks: tuple[Device, ...] | None
    shards: tuple[_ShardFields, ...] | None
    cache: _Cache | None = None

    def __post_init__(self) -> None:
        check_name("sharding type", self.sharding_type, SHARDING_TYPES)
        check_name("compute kernel", self.compute_kernel, _KERNELS)
        shards, ranks = len(self.shards or ()), len(self.ranks or ())
        if self.sharding_type not in COPIED and not 0 < shards == ranks:
            raise UserError(
                "parameter-shards-without-ranks",
                f"the parameter has {number_of(shards, 'shard')} and {number_of(ranks, 'rank')}",
                limit=f"a {self.sharding_type} parameter needs 1 shard or more, and exactly one rank for each shard",
                remedy="Correct the ranks or the shards of the parameter",
            )
        if (widest := max((shard.sizes[1] for shard in self.shards or ()), default=0)) > MAX_SHARD_DIM:
            raise UserError(
                "parameter-shard-wide",
                f"a shard has {widest} columns",
                limit=f"FBGEMM's kernels take at most {MAX_SHARD_DIM} columns",
                remedy="Make a plan with narrower shards of this table",
            )


ReadModules = dict[str, dict[str, ReadParameter]]


@dataclass(frozen=True)
class _File:
    modules: ReadModules
    remarks: tuple[str, ...] = ()


def load_sharding_plan(path: str | Path, model: nn.Module | None = None, *, partial: bool = False) -> ShardingPlan:
    """Read a plan from a file that `save_sharding_plan` or `neuroshard export to=torchrec` wrote.

    Args:
        path: path of the file.
        model: the model, before it is sharded. It is needed if the file has tables without a module, because they were
            exported without one: each such table is assigned to the model's collection that has a table of this name.
            The file must have all tables of the model's collections that TorchRec's default sharders shard.
        partial: True if the file may lack tables of the model, as a plan for the planner's argument `given` may, or if
            the job leaves some collections unsharded.

    Raises:
        UserError: the file is missing or malformed; or a table is in none or in several of the model's collections, or
            has another shape there; or the file lacks a table of the model.
    """
    where = f"sharding plan {path}"
    read = parse(of_format(read_json(Path(path), "sharding plan"), _FORMAT, where), _File, where)
    if model is None:
        return sharding_plan_of(read.modules, where)
    plan = sharding_plan_of(_in_collections(read.modules, model, where), where)
    missing: list[str] = []
    for parameter in parameters_of(model, get_default_sharders()):
        if parameter.is_in(plan):
            parameter.check_extent(plan)
        elif not partial:
            missing.append(parameter.qualified_name)
    if missing:
        raise UserError(
            "sharding-plan-tables-missing",
            f"the file lacks {number_of(len(missing), 'table')} of the model ({listed(missing)})",
            where=where,
            limit="TorchRec cannot shard a collection if the plan lacks some of its tables, and does not shard a "
            "collection that the plan lacks",
            remedy="Export the plan of the whole model, such as the file of keep=, or pass partial=True if another "
            "plan has these tables",
        )
    return plan


def _in_collections(modules: ReadModules, model: nn.Module, where: str) -> ReadModules:
    """Return a copy of `modules`, the content of a plan's file, in which every table is listed under a module. The file
    may list tables without a module. The copy lists such a table under the module of `model` that contains the table.

    In the file, such a table may have the plain name, or the name with the path of the module in front.
    """
    paths: dict[str, list[tuple[str, str]]] = {}
    for sharded in parameters_of(model, get_default_sharders()):
        for table_name in {sharded.name, sharded.qualified_name}:
            paths.setdefault(table_name, []).append((sharded.path, sharded.name))
    placed = {path: dict(tables) for path, tables in modules.items() if path}
    known = {path for places in paths.values() for path, _ in places}
    if unknown := sorted(set(placed) - known):
        raise UserError(
            "sharding-plan-module-unknown",
            f"the model has no collection {unknown[0]!r}",
            where=where,
            limit=f"the collections of the model are {', '.join(map(repr, sorted(known)))}"
            if known
            else "the model has no collections",
            remedy="Correct the path of the collection, or load the plan for the model that the plan was made for",
        )
    for table, parameter in modules.get("", {}).items():
        places = paths.get(table, [])
        if len(places) != 1:
            remedy = "Export the plan with module=PATH of the table's collection"
            if not places:
                remedy = "Correct the name of the table, or load the plan for the model that the plan was made for"
            raise UserError(
                "sharding-plan-table-ambiguous",
                f"the model has {number_of(len(places), 'collection')} with a table {table!r}",
                where=where,
                limit="exactly 1 collection must have the table, because the file does not name the collection",
                remedy=remedy,
            )
        ((path, name),) = places
        placed.setdefault(path, {})[name] = parameter
    return placed


def sharding_plan_of(modules: ReadModules, where: str) -> ShardingPlan:
    """Build TorchRec's `ShardingPlan` from `modules`, the content of a plan's file: the sharding of each parameter, by
    module and name.
    Raise UserError if TorchRec refuses the shards; `where` names the file in the error.
    """
    try:
        return ShardingPlan(
            {
                module: EmbeddingModuleShardingPlan({name: _parameter_of(read) for name, read in parameters.items()})
                for module, parameters in modules.items()
            }
        )
    except (ValueError, RuntimeError) as error:  # TorchRec's checks of shards
        if not raised_by(error, "torchrec", "torch"):
            raise
        raise UserError(
            "sharding-plan-shards-refused",
            "TorchRec refuses the shards of the plan",
            where=where,
            limit=str(error),
            remedy="Correct the shards in the plan, or save the plan again",
        ) from error


def _parameter_of(read: ReadParameter) -> ParameterSharding:
    """Return the sharding of a parameter as TorchRec's own type, ParameterSharding."""
    ranks = None if read.ranks is None else list(read.ranks)
    cache = None if read.cache is None else read.cache.read()
    if read.shards is None:
        return ParameterSharding(read.sharding_type, read.compute_kernel, ranks, None, cache_params=cache)
    spec = EnumerableShardingSpec([ShardMetadata(list(s.offsets), list(s.sizes), s.placement) for s in read.shards])
    return ParameterSharding(read.sharding_type, read.compute_kernel, ranks, spec, cache_params=cache)
