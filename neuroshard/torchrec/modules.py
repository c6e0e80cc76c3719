"""What of a model is sharded, and what of that is planned here: the rest is delegated to TorchRec's planner."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ModuleSharder, ShardingPlan, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.types import DataType

from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.torchrec.kernels import KERNELS
from neuroshard.words.home import Tier

ELEMENT_BYTES = {DataType.FP32: 4, DataType.FP16: 2, DataType.BF16: 2}
WHOLE, SPLIT = ShardingType.TABLE_WISE.value, ShardingType.COLUMN_WISE.value
_POOLED = (EmbeddingBagCollection, FusedEmbeddingBagCollection)
ANY_DEVICE = "cuda"  # a sharder has all of its sharding types there
_SHOWN = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parameter:
    """What a sharder would shard of a module: a table, as a rule.

    Attributes:
        path: of the module inside the model.
        name: inside the module.
        module: it is.
        sharder: that would shard the module.
        weights: on any device; their optimizer is set on them.
        config: TorchRec's, of a table in full precision, pooled or not; None for anything else.
    """

    path: str
    name: str
    module: Any
    sharder: Any
    weights: Any
    config: Any

    @property
    def pooled(self) -> bool:
        """Whether it is a pooled table, not a sequence table or anything else."""
        return isinstance(self.config, EmbeddingBagConfig)

    @property
    def qualified_name(self) -> str:
        """The name behind the path of its module: unique in a model."""
        return f"{self.path}.{self.name}" if self.path else self.name


@dataclass(frozen=True)
class Division:
    """Who plans a model's parameters, each in the order of its modules.

    Attributes:
        planned: here.
        delegated: by TorchRec's planner.
        given: by the user, who hands over a plan for them.
        reasons: of each delegated one, why it isn't planned here.
    """

    planned: tuple[Parameter, ...]
    delegated: tuple[Parameter, ...]
    given: tuple[Parameter, ...]
    reasons: tuple[str, ...]

    def warn(self) -> None:
        """Log what isn't planned here, and by whom it is; and what of the sharders costs don't count."""
        if self.delegated:
            pairs = zip(self.delegated, self.reasons, strict=True)
            told = listed([f"{parameter.qualified_name} ({why})" for parameter, why in pairs])
            _log.warning("delegated to TorchRec's EmbeddingShardingPlanner: %s", told)
        if self.given:
            _log.warning("kept as the given plan has them: %s", listed([p.qualified_name for p in self.given]))
        coded = [p.qualified_name for p in self.planned if getattr(p.sharder, "qcomm_codecs_registry", None)]
        if coded:
            _log.warning(
                "qcomm_codecs_registry isn't counted: exchanges of %d table(s) (%s) are predicted in full precision, "
                "and take less than that",
                len(coded),
                listed(coded),
            )


def divide(
    module: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]],
    constraints: Mapping[str, ParameterConstraints],
    given: ShardingPlan | None = None,
    no_sequences: str | None = None,
) -> Division:
    """Who plans each parameter that the sharders would shard; a module in several places counts once, as it is sharded.

    Args:
        module: the model, on any device; nothing is materialised.
        sharders: what they don't shard is left alone.
        constraints: TorchRec's, by name of the table.
        given: a plan whose parameters are kept as they are.
        no_sequences: why no sequence table is planned here; None where they are.
    """
    planned: list[Parameter] = []
    delegated: list[Parameter] = []
    kept: list[Parameter] = []
    reasons: list[str] = []
    for parameter in parameters_of(module, sharders):
        if is_given(given, parameter):
            kept.append(parameter)
        elif (why := why_delegated(parameter, constraints.get(parameter.name), no_sequences)) is None:
            planned.append(parameter)
        else:
            delegated.append(parameter)
            reasons.append(why)
    return Division(tuple(planned), tuple(delegated), tuple(kept), tuple(reasons))


def is_given(given: ShardingPlan | None, parameter: Parameter) -> bool:
    """Whether a plan holds a parameter."""
    module_plan: Any = given.plan.get(parameter.path) if given is not None else None
    return isinstance(module_plan, dict) and parameter.name in module_plan


def why_delegated(
    parameter: Parameter, constraints: ParameterConstraints | None, no_sequences: str | None = None
) -> str | None:
    """Why a parameter is left to TorchRec's planner; None if it is planned here. Nothing else decides on that.

    `no_sequences` says why no sequence table is planned here, if that is so.
    """
    config = parameter.config
    if config is None:
        return type(parameter.module).__name__
    if not {WHOLE, SPLIT}.issubset(parameter.sharder.sharding_types(ANY_DEVICE)):
        return f"its {type(parameter.sharder).__name__} lacks {WHOLE} or {SPLIT}"
    if no_sequences and not parameter.pooled:
        return no_sequences
    return _why_not_costed(config) or _why_not_said(constraints or ParameterConstraints())


def _why_not_costed(config: Any) -> str | None:
    """What of a table no cost model of ours knows."""
    if config.data_type not in ELEMENT_BYTES:
        return f"weights of type {config.data_type.name}"
    if config.embedding_dim % DIM_MULTIPLE:
        return f"{config.embedding_dim} columns are no multiple of {DIM_MULTIPLE}"
    if getattr(config, "enable_embedding_update", False):
        return "written to in training (enable_embedding_update)"
    return "a virtual table" if getattr(config, "use_virtual_table", False) else None


def _why_not_said(constraints: ParameterConstraints) -> str | None:
    """What is asked for that our plans don't say."""
    types, kernels = constraints.sharding_types, constraints.compute_kernels
    if types and not {WHOLE, SPLIT}.intersection(types):
        return f"sharding_types={types}"
    return f"compute_kernels={kernels}" if kernels and KERNELS[Tier.DEVICE] not in kernels else None


def parameters_of(module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]) -> Iterator[Parameter]:
    """Every parameter that the sharders would shard; those of a module in several places once."""
    by_type: dict[Any, Any] = {sharder.module_type: sharder for sharder in sharders}
    seen: set[int] = set()
    for path, found in _sharded("", module, by_type):
        if id(found) in seen:
            continue
        seen.add(id(found))
        sharder, configs = by_type[type(found)], _configs(found)
        for name, weights in sharder.shardable_parameters(found).items():
            yield Parameter(path, name, found, sharder, weights, configs.get(name))


def _sharded(path: str, module: nn.Module, sharders: Mapping[Any, Any]) -> Iterator[tuple[str, nn.Module]]:
    if type(module) in sharders:
        yield path, module
        return
    for name, child in module.named_children():
        yield from _sharded(f"{path}.{name}" if path else name, child, sharders)


def _configs(module: Any) -> Mapping[str, Any]:
    """By name, of a module whose tables may be planned here; none of any other."""
    if isinstance(module, EmbeddingCollection):
        return {config.name: config for config in module.embedding_configs()}
    inner = module._embedding_bag_collection if isinstance(module, FeatureProcessedEmbeddingBagCollection) else module
    return {config.name: config for config in inner.embedding_bag_configs()} if isinstance(inner, _POOLED) else {}


def listed(texts: Sequence[str]) -> str:
    """The first few of some texts, and how many more there are."""
    more = f", ... {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{', '.join(texts[:_SHOWN])}{more}"
