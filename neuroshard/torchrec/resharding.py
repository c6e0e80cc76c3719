"""Move tables between devices while a job runs: TorchRec's `reshard` moves the tables that differ between two plans."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.torchrec.kernels import SPLIT, WHOLE, cut_widths, shards_of
from neuroshard.torchrec.modules import listed
from neuroshard.torchrec.options import PASSED_ON
from neuroshard.torchrec.sharding_plan import parameters_in

_log = logging.getLogger(__name__)
_MOVED_STATE = ".momentum1"  # the only optimizer state that TorchRec moves


def reshard(model: DistributedModelParallel, sharding_plan: ShardingPlan) -> tuple[str, ...]:
    """Move the tables of a running job to the places of a new plan, with weights and optimizer states.

    All ranks must call this function. TorchRec moves pooled tables whose sharding type stays `table_wise` or
    `column_wise`. All tables are checked before anything moves; after an error the job is unchanged.

    Args:
        model: the model in training. Afterwards it has the new plan and a new `fused_optimizer` with the same learning
            rate: pass the new optimizer to schedulers and wrappers of the old one.
        sharding_plan: the new plan of all tables, such as `Replanned.sharding_plan`.

    Returns:
        The names of the tables that moved, with the paths of their modules in front.

    Raises:
        UserError: TorchRec cannot move a table whose place differs.
    """
    changed = plan_difference(model.plan, sharding_plan)
    if changed:
        _check_everywhere(model, sharding_plan, changed)
    for path, parameters in changed.items():
        _move(model, path, parameters)
    return tuple(f"{path}.{name}" if path else name for path, parameters in changed.items() for name in parameters)


def _move(model: DistributedModelParallel, path: str, parameters: EmbeddingModuleShardingPlan) -> None:
    """Move tables of the module at `path` to other ranks, as `model.reshard` does.
    The argument `parameters` has the new shardings of the tables.
    Unlike `model.reshard`, this function also works for models in which only tables are trained.

    The move creates new kernels with their initial learning rate. Optimizer settings that changed since then are
    restored, also on ranks that had no part of a table before.
    """
    sharded: Any = model.module.get_submodule(path)
    settings = _settings_everywhere(sharded)
    model._sharder_map[sharded.unsharded_module_type].reshard(sharded, parameters, model._env, model.device)
    sharded._has_features_permute = True  # otherwise features keep their old order, which may be wrong now
    for _, optimizer in sharded.fused_optimizer.optimizers:
        for key in optimizer.params:
            for group in optimizer.param_groups:
                group.update(settings[key])
        optimizer.step()  # only passes the learning rate to the kernel
    model._optim = model._init_optim(model.module)
    model.plan.plan[path] = sharded.module_sharding_plan


def _settings_everywhere(sharded: Any) -> dict[str, dict[str, Any]]:
    """Return the settings of the fused optimizer, such as the learning rate, for each table of a module.
    The result includes tables that are not on this rank. Each rank sends the settings of the tables that it has.
    """
    own = {
        key: {name: value for name, value in group.items() if name != "params"}
        for _, optimizer in sharded.fused_optimizer.optimizers
        for group in optimizer.param_groups
        for key in optimizer.params
    }
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return {key: settings for settings_of_rank in every for key, settings in settings_of_rank.items()}


def plan_difference(before: ShardingPlan, after: ShardingPlan) -> dict[str, EmbeddingModuleShardingPlan]:
    """Return the new shardings of all tables whose ranks or shards differ between the plans `before` and `after`. The
    result is a dict with paths of modules as keys. Each value is an argument for TorchRec's `reshard`: the new
    shardings of tables in the module, by name.

    An unsplit table keeps its sharding type, table_wise or column_wise, because both types mean the same for one shard.
    Every table keeps its kernel settings, such as those of its cache; a warning names the settings that differ in the
    new plan.

    Raises:
        UserError: the plans have different tables, or TorchRec cannot make a change of a table.
    """
    old, new = ({(path, name): sharding for path, name, sharding in parameters_in(plan)} for plan in (before, after))
    if other := sorted(".".join(filter(None, key)) for key in old.keys() ^ new.keys()):
        raise UserError(
            "reshard-tables-differ",
            f"only one of the two plans has {listed(other)}",
            limit="the tables of a running job cannot change",
            remedy="Make the new plan for the same tables",
        )
    changed: dict[str, EmbeddingModuleShardingPlan] = {}
    dropped: list[str] = []
    for (path, name), was in old.items():
        now = new[path, name]
        dropped += (f"{field} of {name!r}" for field in PASSED_ON if getattr(was, field) != getattr(now, field))
        if _places(was) != _places(now):
            changed.setdefault(path, EmbeddingModuleShardingPlan())[name] = _moved(
                f"{path}.{name}" if path else name, was, now
            )
    if dropped:
        _log.warning(
            Message(
                "reshard-settings-kept",
                f"the new plan changes settings of kernels ({listed(dropped)})",
                limit="a running job keeps the settings of its kernels, so these changes have no effect",
                remedy="Restart the job under the new plan if the new settings matter",
            )
        )
    return changed


def _places(sharding: ParameterSharding) -> tuple[object, ...]:
    """Return the ranks, the shards and the kernel of a table, as a tuple. Two plans place the table in the same way if
    their tuples are equal. For a data-parallel table, None replaces the ranks.
    """
    shards = [(*shard.shard_offsets, *shard.shard_sizes) for shard in shards_of(sharding)]
    return sharding.ranks if shards else None, shards, sharding.compute_kernel


def _moved(name: str, was: ParameterSharding, now: ParameterSharding) -> ParameterSharding:
    """Return the sharding of a table of a running job after TorchRec has moved the table as a new plan requires. The
    ranks and shards are taken from the sharding in the new plan (`now`). All other settings are taken from the current
    sharding (`was`). Raise UserError if TorchRec cannot move the table in this way.
    """
    types = was.sharding_type, now.sharding_type
    if not {WHOLE, SPLIT}.issuperset(types):
        raise UserError(
            "reshard-sharding-type",
            f"table {name!r} is {types[0]} now and {types[1]} in the new plan",
            limit=f"in a running job TorchRec moves only {WHOLE} and {SPLIT} tables",
            remedy="Save a checkpoint, and load it under the new plan",
        )
    if was.compute_kernel != now.compute_kernel:
        raise UserError(
            "reshard-kernel",
            f"table {name!r} has the kernel {was.compute_kernel} now and {now.compute_kernel} in the new plan",
            limit="TorchRec cannot change the kernels of a running job",
            remedy="Save a checkpoint, and load it under the new plan",
        )
    if was.sharding_type == WHOLE and len(now.ranks or ()) > 1:
        raise UserError(
            "reshard-table-wise-split",
            f"table {name!r} is {WHOLE} now, but split into shards in the new plan",
            limit="TorchRec cannot change the sharding types of a running job",
            remedy=f"Start the job with sharding_types=[{SPLIT!r}]: a {SPLIT} table in one shard is the same as a "
            f"{WHOLE} table, but TorchRec can split the table later",
        )
    return replace(was, ranks=now.ranks, sharding_spec=now.sharding_spec)


def _check_everywhere(
    model: DistributedModelParallel, after: ShardingPlan, changed: Mapping[str, EmbeddingModuleShardingPlan]
) -> None:
    """Raise UserError on every rank if any rank finds that TorchRec cannot move the tables.

    Each rank knows only the optimizer of its own shards, so the ranks exchange their results.
    """
    refused: UserError | None = None
    try:
        for path, parameters in changed.items():
            _check_widths(path, after)
            _check_movable(model, path, parameters)
        if "gloo" in dist.get_backend():
            _check_gloo(model.plan, changed)
    except UserError as error:
        refused = error
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, (refused, hash(_MOVED_STATE)))
    for first in [error for error, _ in answers if error is not None]:
        raise first
    # Over gloo TorchRec's message numbers are hashes, which depend on the hash seed.
    if "gloo" in dist.get_backend() and len({number for _, number in answers}) > 1:
        raise UserError(
            "reshard-hash-seeds-differ",
            "the processes of the job have different hash seeds",
            limit="over gloo TorchRec numbers messages by hashes, so messages would not reach their receivers",
            remedy="Start all processes with PYTHONHASHSEED=0",
        )


def _check_widths(path: str, after: ShardingPlan) -> None:
    """Raise UserError if tables of a module have shards of unequal width.
    TorchRec would mix up the columns of these tables.
    """
    for name, sharding in after.plan[path].items():
        widths = sorted(set(cut_widths(sharding)))
        if len(widths) > 1:
            dim = sum(cut_widths(sharding))
            equal = next((dim // count for count in range(2, dim) if dim % (count * DIM_MULTIPLE) == 0), dim)
            raise UserError(
                "reshard-widths-unequal",
                f"table {name!r} is split into shards of {' and '.join(map(str, widths))} columns",
                limit="TorchRec's reshard assumes that all shards of a table have the same width",
                remedy="Make a plan with shards of equal width: set min_partition in constraints to a divisor of the "
                f"table's {dim} columns, such as {equal}",
            )


def _check_movable(model: DistributedModelParallel, path: str, parameters: Mapping[str, Any]) -> None:
    """Raise UserError if TorchRec cannot move tables of a module, or cannot move all optimizer states of the tables."""
    sharded = model.module.get_submodule(path)
    sharder = model._sharder_map.get(getattr(sharded, "unsharded_module_type", None))
    if not hasattr(sharder, "reshard"):
        raise UserError(
            "reshard-module-unsupported",
            f"module {path!r} is a {type(sharded).__name__}",
            limit="TorchRec cannot move tables of this class in a running job",
            remedy="Save a checkpoint, and load it under the new plan",
        )
    if getattr(sharded, "_has_mean_pooling_callback", False):
        raise UserError(
            "reshard-mean-pooling",
            f"module {path!r} has tables with mean pooling",
            limit="TorchRec's reshard mixes up the features of such tables",
            remedy="Save a checkpoint, and load it under the new plan",
        )
    before = model.plan.plan[path]
    for key, states in sharded.fused_optimizer.state_dict()["state"].items():
        name = key.split(".")[-2]
        if name not in parameters:
            continue
        if lost := sorted(state for state in states if not state.endswith(_MOVED_STATE)):
            raise UserError(
                "reshard-state-lost",
                f"the optimizer has states that TorchRec would lose ({listed(lost)})",
                limit="TorchRec moves only the first optimizer state of a table",
                remedy="Save a checkpoint, and load it under the new plan",
            )
        if _ranges(before[name]) != _ranges(parameters[name]) and any(
            len(state.size()) > 1 for state in states.values()
        ):
            raise UserError(
                "reshard-state-split",
                f"the new plan splits table {name!r} at other columns, but the optimizer has a state for every element",
                limit="TorchRec moves such a state only with a whole shard, not with a part of a shard",
                remedy="Save a checkpoint, and load it under the new plan",
            )


def _check_gloo(before: ShardingPlan, changed: Mapping[str, EmbeddingModuleShardingPlan]) -> None:
    """Raise UserError if some columns of a table that moves stay on the same device.
    TorchRec would send these columns from a rank to itself, which fails over gloo.
    """
    for path, parameters in changed.items():
        for name, sharding in parameters.items():
            if _columns(before.plan[path][name]) & _columns(sharding):
                raise UserError(
                    "reshard-gloo-own-message",
                    f"a part of table {name!r} would stay on its device",
                    limit="TorchRec sends this part from a process to itself, which works over NCCL but not over gloo",
                    remedy="Run the job with NCCL, or make a plan in which the whole table moves",
                )


def _columns(sharding: ParameterSharding) -> set[tuple[int, int]]:
    """Return all pairs (rank, column) such that the rank has this column of a table."""
    ranges = zip(_ranges(sharding), sharding.ranks or (), strict=True)
    return {(rank, column) for (first, count), rank in ranges for column in range(first, first + count)}


def _ranges(sharding: ParameterSharding) -> list[tuple[int, int]]:
    """Return the first column and the number of columns of every shard of a table."""
    return [(shard.shard_offsets[1], shard.shard_sizes[1]) for shard in shards_of(sharding)]
