"""The class `Model`: a model to be sharded, with its parameters divided between NeuroShard and TorchRec's planner.
Parameters for which the user gives a plan are not planned again.

The module also makes the plan of the parameters that TorchRec plans, and checks loaded plans.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.planners import extract_plan
from torchrec.distributed.planner.planners import to_sharding_plan as plan_of_options
from torchrec.distributed.planner.types import PlanLoader, PlannerError, hash_planner_context_inputs_str
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    ModuleSharder,
    ParameterSharding,
    ShardingPlan,
    ShardingType,
)
from torchrec.types import DataType

from neuroshard.models import CostModels
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError, first_line, raised_by
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.schema import MAX_SHARD_DIM, parse
from neuroshard.torchrec.delegated import delegate, joined, without
from neuroshard.torchrec.kernels import SPLIT, WHOLE, cut_widths, shards_of, widest_shard
from neuroshard.torchrec.modules import EVERYTHING, Division, Served, divide, listed
from neuroshard.torchrec.options import PASSED_ON
from neuroshard.torchrec.parameters import Parameter, sharded_paths
from neuroshard.torchrec.planning_request import PlanningRequest
from neuroshard.torchrec.pods import check_by_pod
from neuroshard.torchrec.prefetching import flagged
from neuroshard.torchrec.releases import CONTEXT_ERRORS, OTHER_CONTEXT
from neuroshard.torchrec.sharding_file import ReadModules, modules_json, sharding_plan_of
from neuroshard.torchrec.sharding_plan import from_sharding_plan, to_sharding_plan
from neuroshard.torchrec.stashing import without_stashed
from neuroshard.torchrec.table_statistics import warn_of_growth, warn_of_guesses

_log = logging.getLogger(__name__)
_ON_ALL = (ShardingType.ROW_WISE.value, ShardingType.DATA_PARALLEL.value)


@dataclass(frozen=True)
class Model:
    """A model to be sharded, with the requirements that the model's plan must meet.

    Attributes:
        module: the model itself.
        sharders: TorchRec's sharders of the modules that have tables.
        division: who plans each parameter.
        tables: the tables that NeuroShard plans, by their names in tasks.
        left: the devices with the memory that the reservation leaves.
        request: the requirements of the plan.
    """

    module: nn.Module
    sharders: Sequence[ModuleSharder[nn.Module]]
    division: Division
    tables: Mapping[str, Parameter]
    left: TorchRecTopology
    request: PlanningRequest

    @classmethod
    def read(
        cls,
        module: nn.Module,
        sharders: Sequence[ModuleSharder[nn.Module]],
        request: PlanningRequest,
        served: Served = EVERYTHING,
    ) -> "Model":
        """Find the parameters of `module` that the sharders can shard, and return these parameters, with the module, as
        a `Model`. Warn about parameters that NeuroShard does not plan, and about tables whose statistics NeuroShard
        must guess.

        `module` may be on any device. `served` says which tables the search and its cost models can place.

        Raises:
            InfeasibleError: the reservation leaves no memory.
            UserError: constraints name devices of another type, or devices of this type do not support a table.
        """
        division = divide(module, sharders, request.constraints, request.fixed, served)
        _check_devices(division.planned + division.delegated, request.topology.compute_device)
        tables = division.tables
        request = request.named_in(tables, division.parameters)
        left = without_stashed(request.left(module, sharders), division.parameters)
        division.warn()
        sharded = sharded_paths(module, sharders)
        for path in sorted(request.fixed.plan):
            given, names = request.fixed.plan[path], {p.name for p in division.parameters if p.path == path}
            if not names and (isinstance(given, EmbeddingModuleShardingPlan) or path not in sharded):
                _log.warning(
                    Message(
                        "given-module-not-sharded",
                        f"the given plan has module {path!r}, which the sharders cannot shard or the model lacks",
                        where="given",
                        limit="the planner does not count the memory of this module",
                        remedy="Remove the module from the given plan, or pass a sharder of the module in sharders=",
                    )
                )
            elif isinstance(given, dict) and (unknown := sorted(set(given) - names)):
                _log.warning(
                    Message(
                        "given-tables-unknown",
                        f"the given plan has tables that module {path!r} of the model lacks ({listed(unknown)})",
                        where="given",
                        limit="the planner does not count the memory of these tables",
                        remedy="Remove these tables from the given plan, or make a plan of this model",
                    )
                )
        division.warn_of_unknown(request.constraints)
        warn_of_guesses({name: parameter.is_guessed for name, parameter in tables.items()}, request.known)
        guessed = [parameter.table(name, request.batch_size, left.world_size) for name, parameter in tables.items()]
        warn_of_growth(guessed, request.known)
        return cls(module, sharders, division, tables, left, request)

    def on(self, request: PlanningRequest) -> "Model":
        """Return a copy of this `Model` with other requirements for the plan. `request` has the new requirements, such
        as another number of sharding groups. The free memory of the devices is computed again.

        The constraints and the fixed plan in `request` must be the same as before.

        Raises:
            InfeasibleError: the reservation leaves no memory.
        """
        request = request.named_in(self.tables, self.division.parameters)
        left = without_stashed(request.left(self.module, self.sharders), self.division.parameters)
        return replace(self, request=request, left=left)

    def others(self) -> tuple[ShardingPlan, TorchRecTopology]:
        """Return a plan of the parameters that NeuroShard does not plan, and a topology with the memory that is left.
        TorchRec's planner plans these parameters, except for parameters for which the user gave a plan. The memory that
        is left is for the tables that NeuroShard plans.

        Raises:
            InfeasibleError: TorchRec finds no plan for the delegated parameters.
            UserError: TorchRec cannot plan the delegated parameters, or the given plan is for another number of ranks.
        """
        request, division = self.request, self.division
        _check_given(division.fixed, request)
        left = without(self.left, request.fixed, division.fixed, request)
        theirs = delegate(division.delegated, self.module, left, request)
        left = without(left, theirs, division.delegated, request)
        return joined(request.fixed, theirs), left

    def whole(self, others: ShardingPlan, plan: Plan | None) -> ShardingPlan:
        """Return the plan of the whole model, which joins two plans. `plan` is NeuroShard's plan, and has the tables
        that NeuroShard plans; `plan` is None if there are no such tables. `others` is the plan of all other parameters.

        The kernel settings of the tables in NeuroShard's plan come from the constraints.
        """
        if plan is None:
            return others
        modules = {name: table.path for name, table in self.tables.items()}
        ours = to_sharding_plan(plan, modules, self.left.compute_device, self.left.local_world_size)
        _pass_on(self.tables.values(), ours)
        return joined(others, ours)

    def restored(self, sharding_plan: ShardingPlan) -> ShardingPlan:
        """Return the plan of the whole model, given a plan that was read from a file (`sharding_plan`).
        A file cannot store all settings of a plan. So the kernel settings in constraints are added again, and so is the
        plan that the user gave for some parameters.
        """
        _pass_on(self.division.planned + self.division.delegated, sharding_plan)
        return joined(sharding_plan, self.request.fixed)

    def forgotten(self, sharding_plan: ShardingPlan) -> str | None:
        """Return a text that names the first setting of a table that would be lost if the plan were saved and loaded
        again. The result is None if no setting would be lost.

        Settings that the file cannot store, but that `restored` takes from the constraints again, are not lost.
        """
        read = parse(modules_json(sharding_plan), ReadModules, "the plan")
        again = self.restored(sharding_plan_of(read, "the plan"))
        for parameter in self.division.planned + self.division.delegated:
            original, restored = parameter.sharding_in(sharding_plan), parameter.sharding_in(again)
            for field in PASSED_ON:
                if getattr(original, field) != getattr(restored, field):
                    return f"{field} of table {parameter.qualified_name!r}"
        return None

    def ours_in(self, sharding_plan: ShardingPlan) -> ShardingPlan:
        """Return the part of a whole model's plan that has only the tables that NeuroShard plans."""
        ours: dict[str, Any] = {}
        for table in self.tables.values():
            ours.setdefault(table.path, EmbeddingModuleShardingPlan())[table.name] = table.sharding_in(sharding_plan)
        return ShardingPlan(ours)


def _check_given(fixed: Iterable[Parameter], request: PlanningRequest) -> None:
    """Raise UserError if the plan that the user gave for some parameters does not fit the job or the model.
    For example, the plan has a parameter on a rank that does not exist in the job, or it has a row-wise table on only
    some of the ranks.
    """
    size = int(request.topology.world_size)
    for parameter in fixed:
        sharding = parameter.sharding_in(request.fixed)
        ranks = list(range(size)) if sharding.ranks is None else list(sharding.ranks)
        parameter.check_extent(request.fixed)
        table = f"table {parameter.qualified_name!r}"
        if any(not 0 <= rank < size for rank in ranks):
            raise UserError(
                "given-rank-outside",
                f"{table} is on rank {max(ranks)} in the given plan",
                where="given",
                limit=f"the job has {number_of(size, 'rank')} (0 to {size - 1})",
                remedy="Pass as given= a plan that was made for this job",
            )
        if sharding.sharding_spec is not None and len(shards_of(sharding)) != len(ranks):
            raise UserError(
                "given-shards-without-ranks",
                f"{table} has {number_of(len(shards_of(sharding)), 'shard')} and {number_of(len(ranks), 'rank')} "
                "in the given plan",
                where="given",
                limit="each shard needs exactly one rank",
                remedy="Pass as given= a plan that was made for this job",
            )
        if sharding.sharding_type in _ON_ALL and len(set(ranks)) < size:
            raise UserError(
                "given-ranks-missing",
                f"{table} of the given plan is {sharding.sharding_type!r} on {len(set(ranks))} of the "
                f"job's {size} ranks",
                where="given",
                limit=f"a {sharding.sharding_type!r} table must be on all ranks",
                remedy="Pass as given= a plan that was made for this job",
            )
        check_by_pod(parameter.qualified_name, sharding, request.topology, "given")
        _check_width("given", parameter, sharding)


def _check_width(where: str, parameter: Parameter, sharding: ParameterSharding) -> None:
    """Raise UserError if a table has a shard that is wider than FBGEMM's kernels support; `where` names the plan."""
    if parameter.config is None:
        return
    widest = widest_shard(sharding, int(parameter.config.embedding_dim))
    if widest > MAX_SHARD_DIM:
        raise UserError(
            "planned-shard-too-wide",
            f"table {parameter.qualified_name!r} has a shard of {widest} columns",
            where=where,
            limit=f"FBGEMM's kernels take at most {MAX_SHARD_DIM} columns",
            remedy="Make a plan with narrower shards of this table",
        )


def _check_devices(parameters: Iterable[Parameter], device: str) -> None:
    """Raise UserError if a parameter cannot be on devices of the type `device`, such as "cpu"."""
    for parameter in parameters:
        config = parameter.config
        if device == "cpu" and config is not None and config.data_type is DataType.BF16:
            raise UserError(
                "table-bf16-on-cpu",
                f"table {parameter.qualified_name!r} has weights of type BF16",
                limit="FBGEMM has no kernels for BF16 weights on CPUs",
                remedy="Set data_type of the table to FP16 or FP32",
            )
        if (group := parameter.user_constraints.device_group) not in (None, device):
            raise UserError(
                "constraints-device-group",
                f"device_group is {group!r}",
                where=f"constraints of table {parameter.name!r}",
                limit=f"the topology has {device!r} devices",
                remedy="Remove device_group, or pass a ShardingPlan of this table as given=",
            )


def _pass_on(parameters: Iterable[Parameter], sharding_plan: ShardingPlan) -> None:
    """Copy kernel settings, such as `output_dtype`, from the constraints of parameters to a plan.
    The load factors of caches are not copied: the plan keeps the load factors that it has.

    Caches that the plan sets up to prefetch still prefetch.
    """
    for parameter in parameters:
        constraints, sharding = parameter.constraints, parameter.sharding_in(sharding_plan)
        if constraints is None:
            continue
        planned = sharding.cache_params
        for field in PASSED_ON:
            if (wanted := getattr(constraints, field)) is not None:
                setattr(sharding, field, wanted)
        if planned is not None:
            wanted, kept = sharding.cache_params or planned, {"load_factor": planned.load_factor}
            if planned.prefetch_pipeline is not None:
                kept["prefetch_pipeline"] = planned.prefetch_pipeline
            sharding.cache_params = replace(wanted, **kept)
        types = constraints.sharding_types or (WHOLE, SPLIT)
        if sharding.sharding_type == SPLIT and SPLIT not in types:
            sharding.sharding_type = WHOLE  # one shard: both types mean the same, and constraints name only table_wise
        only_split = WHOLE not in types and SPLIT in types
        if (
            sharding.sharding_type == WHOLE
            and only_split
            and (parameter.pooled or _none_narrower(parameter, sharding_plan))
        ):
            sharding.sharding_type = SPLIT  # one shard: constraints name only column_wise, which can be split later


def _none_narrower(table: Parameter, sharding_plan: ShardingPlan) -> bool:
    """Return True if a table in one shard may have the sharding type column_wise instead of table_wise in a plan. Both
    types mean the same shard. The table is a sequence table. TorchRec requires that all column-wise shards of sequence
    tables in a module have the same width.

    So the result is True if every column-wise shard in the module is as wide as `table`, and NeuroShard plans all
    parameters of the module.
    """
    widths = {width for sharding in sharding_plan.plan[table.path].values() for width in cut_widths(sharding)}
    return not table.beside_others and widths <= {table.weights.shape[1]}


def loaded_plan(loader: PlanLoader, model: Model, models: CostModels) -> tuple[ShardingPlan, Plan | None]:
    """Load the plan of the whole model from a plan loader, and return two plans.
    The first is the plan of the whole model. The second is a NeuroShard `Plan` of only the tables that NeuroShard
    plans, or None if there are no such tables.

    The plan must pass the checks of TorchRec's planner: its context hash, if it has one, is the hash of this job, and
    TorchRec's sharding options include the plan. In addition, the plan must have every table, must be trainable and fit
    in memory, and must have sharding types that the cost models support.

    Raises:
        UserError: the plan fails one of these checks.
    """
    request = model.request
    _check_given(model.division.fixed, request)
    try:
        enumerator = EmbeddingEnumerator(request.topology, request.batch_size, dict(request.constraints))
        space = enumerator.enumerate(model.module, list(model.sharders))
        stored = loader.plan_context_hash()
        if stored is not None and stored != _context_hash(request, enumerator):
            raise UserError(
                "plan-loader-context-differs",
                "the context hash of the stored plan differs from the context hash of this job",
                limit=f"the plan was made for {OTHER_CONTEXT}",
                remedy="Store a plan that was made for this job",
            )
        options = loader.load()
        if not options:
            raise UserError(
                "plan-loader-empty",
                "plan_loader returned no plan",
                remedy="Store a plan that was made for this job, or remove plan_loader=",
            )
        loaded = plan_of_options(extract_plan(space, options), request.topology)
        loaded = flagged(loaded, request.pipeline, "the stored plan")
        return _checked(joined(loaded, request.fixed), model, models)
    except (PlannerError, AssertionError, OSError) as error:  # a missing file, a reservation without a topology
        if isinstance(error, AssertionError) and not raised_by(error, "torchrec"):
            raise
        raise UserError(
            "plan-loader-failed",
            "the stored plan cannot be loaded for this job",
            limit=first_line(error),
            remedy="Store a plan that was made for this job, or remove plan_loader=",
        ) from error


def _context_hash(request: PlanningRequest, enumerator: EmbeddingEnumerator) -> str:
    """Return TorchRec's context hash of this job: one hash over all inputs that a plan depends on.
    The caller must call `enumerator.enumerate` first, because the sharding options of the model are one of the inputs.

    Raises:
        UserError: TorchRec cannot compute the hash, for example because statistics of a cache have no fingerprint.
    """
    context = request.topology, request.batch_size, enumerator, request.reservation, dict(request.constraints)
    try:
        return str(hash_planner_context_inputs_str(*context))
    except CONTEXT_ERRORS as error:
        raise UserError(
            "plan-loader-context-hash",
            "TorchRec cannot compute the context hash of this job, which the stored plan must have too",
            limit=str(error.__cause__ or error),
            remedy="Remove the setting that has no fingerprint, or remove plan_loader=",
        ) from error


def _checked(whole: ShardingPlan, model: Model, models: CostModels) -> tuple[ShardingPlan, Plan | None]:
    """Check a plan of the whole model, which a plan loader loaded, and return two plans.
    The first is the plan of the whole model (`whole`). The second is a NeuroShard `Plan` of only the tables that
    NeuroShard plans, or None if there are no such tables.

    Raises:
        UserError: the plan lacks a table, does not fit in memory, or has tables that cannot be trained or costed.
    """
    missing = [parameter.qualified_name for parameter in model.division.parameters if not parameter.is_in(whole)]
    if missing:
        raise UserError(
            "plan-loader-tables-missing",
            f"the stored plan lacks parameters of the model ({listed(missing)})",
            limit="the plan must have all parameters that are sharded",
            remedy="Store a plan of the whole model",
        )
    for parameter in model.division.delegated:
        sharding = parameter.sharding_in(whole)
        check_by_pod(parameter.qualified_name, sharding, model.left, "the stored plan")
        _check_width("the stored plan", parameter, sharding)
    if not model.tables:
        return whole, None
    others = (*model.division.delegated, *model.division.fixed)
    task = model.request.task(model.tables, without(model.left, whole, others, model.request))
    plan = from_sharding_plan(task, model.ours_in(whole))
    if plan.violations:
        raise UserError(
            "plan-loader-plan-invalid",
            "the stored plan breaks a limit of this job",
            limit=str(plan.violations[0]),
            remedy="Store a plan that was made for this job",
        )
    models.check_plan(plan)
    return whole, plan
