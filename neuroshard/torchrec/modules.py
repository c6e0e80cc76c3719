"""Divide a model's parameters between planners: NeuroShard plans some tables, and TorchRec's planner plans the rest."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from neuroshard.layouts import LAYOUTS
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.torchrec.kernels import SPLIT, WHOLE
from neuroshard.torchrec.parameters import ANY_DEVICE, ELEMENT_BYTES, Parameter, named, parameters_of
from neuroshard.words.form import CALLS, Call

_SHOWN = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served:
    """The conditions on the tables that NeuroShard plans; TorchRec's planner plans all other tables. The conditions
    follow from the search method, the cost models and the devices. For example, some cost models do not support
    sequence tables.

    Attributes:
        calls: kernel calls that tables may have.
        no_tables: reason why NeuroShard plans no table; None if it plans tables.
        no_sequences: reason why NeuroShard plans no sequence table; None if it plans sequence tables.
        num_devices: number of devices over which row-wise and data-parallel tables are sharded; None for any number.
        device: type of the devices, as TorchRec names it.
    """

    calls: frozenset[Call]
    no_tables: str | None = None
    no_sequences: str | None = None
    num_devices: int | None = None
    device: str = ANY_DEVICE

    def calls_of(self, parameter: Parameter) -> frozenset[Call]:
        """Return the types of kernel calls with which NeuroShard may plan a table; empty if NeuroShard cannot plan the
        table. A type has three parts: the family of sharding types (such as row-wise), the memory tier, and whether
        lookups are pooled.

        The result has the types that the search and the cost models support, that the constraints of the table allow,
        and for which the table has suitable numbers of rows and columns.
        """
        devices, rows = self.num_devices, int(parameter.config.num_embeddings)
        dim = int(parameter.config.embedding_dim)
        allowed = ((call, LAYOUTS[call.form]) for call in self.calls.intersection(parameter.calls))
        for_width = ((call, layout) for call, layout in allowed if layout.takes(dim))
        fitting = (
            call
            for call, layout in for_width
            if layout.free or devices is None or (devices > 1 and layout.fits(rows, devices))
        )
        return frozenset(fitting)


EVERYTHING = Served(frozenset(CALLS))


@dataclass(frozen=True)
class Division:
    """The parameters of a model in three groups: the parameters that NeuroShard plans, the parameters that TorchRec's
    planner plans, and the parameters that the user has planned.

    Attributes:
        planned: parameters that NeuroShard plans. All groups are in the order of the model's modules.
        delegated: parameters that TorchRec's planner plans.
        fixed: parameters that a user's plan fixes.
        reasons: for each delegated parameter, the reason why NeuroShard does not plan it.
    """

    planned: tuple[Parameter, ...]
    delegated: tuple[Parameter, ...]
    fixed: tuple[Parameter, ...]
    reasons: tuple[str, ...]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters; the parameters that NeuroShard plans come first."""
        return self.planned + self.delegated + self.fixed

    @property
    def tables(self) -> dict[str, Parameter]:
        """The tables that NeuroShard plans, by name.
        Tasks, rules and statistics use these names: the plain name of a table, or `path.name` if several collections
        have a table of this name.
        """
        return named(self.planned, self.parameters)

    def warn(self) -> None:
        """Warn about parameters that NeuroShard does not plan, and name who plans them."""
        if self.delegated:
            pairs = zip(self.delegated, self.reasons, strict=True)
            delegated = listed([f"{parameter.qualified_name} ({why})" for parameter, why in pairs])
            _log.warning(
                Message(
                    "tables-delegated",
                    "TorchRec's EmbeddingShardingPlanner, not NeuroShard, plans "
                    f"{_these(len(self.delegated))}: {delegated}",
                    limit=f"predicted costs do not count {_them(len(self.delegated))}",
                    remedy="To have NeuroShard plan a parameter, change the setting in parentheses behind its name, "
                    "if a setting is there",
                )
            )
        if self.fixed:
            _log.warning(
                Message(
                    "tables-fixed-by-given",
                    f"the plan in given= fixes {_these(len(self.fixed))}: "
                    f"{listed([parameter.qualified_name for parameter in self.fixed])}",
                    limit=f"NeuroShard does not plan {_them(len(self.fixed))}, and predicted costs do not count "
                    f"{_them(len(self.fixed))}",
                    remedy="To have NeuroShard plan a table, remove the table from given=",
                )
            )

    def warn_of_unknown(self, constraints: Mapping[str, ParameterConstraints]) -> None:
        """Warn about entries in constraints that are for a table that the model does not have."""
        names = {name for parameter in self.parameters for name in (parameter.name, parameter.qualified_name)}
        for name in sorted(set(constraints) - names):
            _log.warning(  # TorchRec ignores such constraints without a warning
                Message(
                    "constraints-table-unknown",
                    f"there is an entry for table {name!r}, but no collection of the model has this table",
                    where="constraints",
                    limit="the entry has no effect",
                    remedy="Correct the name, or remove the entry",
                )
            )


def divide(
    module: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]],
    constraints: Mapping[str, ParameterConstraints],
    fixed: ShardingPlan | None = None,
    served: Served = EVERYTHING,
) -> Division:
    """Decide for each parameter whether NeuroShard or TorchRec's planner plans the parameter, and return the groups.
    The parameters are all parameters that `sharders` can shard. Parameters in the user's plan `fixed` are a third
    group, because these parameters are planned already.

    A module that occurs several times in the model counts once.

    The model may be on any device, and no weights are materialised. `served` says which tables the search and its cost
    models can place.

    Raises:
        UserError: constraints leave a table only sharding types that fail in TorchRec on these devices.
    """
    planned: list[Parameter] = []
    delegated: list[Parameter] = []
    kept: list[Parameter] = []
    reasons: list[str] = []
    for parameter in parameters_of(module, sharders, constraints):
        if fixed is not None and parameter.is_in(fixed):
            kept.append(parameter)
            continue
        allowed = parameter.without_failing(served.device, served.num_devices or 1)
        if (why := why_delegated(allowed, served)) is None:
            planned.append(allowed)
        else:
            delegated.append(parameter)
            reasons.append(why)
    elsewhere = {id(parameter.module) for parameter in (*delegated, *kept)}
    ours = tuple(replace(parameter, beside_others=id(parameter.module) in elsewhere) for parameter in planned)
    return Division(ours, tuple(delegated), tuple(kept), tuple(reasons))


def find_tables(
    module: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
    constraints: Mapping[str, ParameterConstraints] | None = None,
) -> tuple[Parameter, ...]:
    """Return the tables of a model that NeuroShard plans, in the order of the modules.

    These are the tables of every EmbeddingBagCollection, with or without feature processors, and of every
    EmbeddingCollection, if cost models support sequence tables; except tables for which `why_delegated` returns a
    reason. No weights are materialised.

    Args:
        module: the model, on any device, also on "meta".
        sharders: sharders of the modules that have the tables; None takes TorchRec's default sharders.
        constraints: TorchRec's ParameterConstraints by name of the table; a warning names entries without a table.
    """
    constraints = constraints or {}
    division = divide(module, sharders or get_default_sharders(), constraints)
    division.warn_of_unknown(constraints)
    return division.planned


def why_delegated(parameter: Parameter, served: Served = EVERYTHING) -> str | None:
    """Return the reason why TorchRec's planner plans a parameter; None if NeuroShard plans it.

    No other function decides this. `served` says which tables the search and its cost models can place.
    """
    config = parameter.config
    if config is None:
        return type(parameter.module).__name__
    if served.no_tables:
        return served.no_tables
    if not {WHOLE, SPLIT}.issubset(parameter.sharder.sharding_types(ANY_DEVICE)):
        return f"{type(parameter.sharder).__name__} lacks {WHOLE} or {SPLIT}"
    if served.no_sequences and not parameter.pooled:
        return served.no_sequences
    why = _why_not_costed(parameter) or _why_not_placed(parameter, served)
    if why is not None and parameter.unlike_kernels:
        return f"{config.embedding_dim} columns are not a multiple of {DIM_MULTIPLE}: data_parallel only"
    return why


def _why_not_costed(parameter: Parameter) -> str | None:
    """Return the reason why no cost model can predict the cost of a table; None if some cost model can do so."""
    config = parameter.config
    if config.data_type not in ELEMENT_BYTES:
        return f"weights of type {config.data_type.name}"
    if getattr(config, "enable_embedding_update", False):
        return "training writes to the table: enable_embedding_update"
    return "a virtual table" if parameter.is_virtual else None


def _why_not_placed(parameter: Parameter, served: Served) -> str | None:
    """Return the reason why NeuroShard cannot place a table, as text, or None if NeuroShard can place the table.
    The text begins with the table's constraints on sharding types and compute kernels, if there are any. An example is
    "sharding_types=['row_wise']: on one device NeuroShard plans table-wise only".
    """
    if served.calls_of(parameter):
        return None
    constraints = parameter.user_constraints
    types = [f"sharding_types={constraints.sharding_types}"] if constraints.sharding_types else []
    kernels = [f"compute_kernels={constraints.compute_kernels}"] if constraints.compute_kernels else []
    unknown = "the searcher or the cost models do not support this" if parameter.calls else ""
    if not (parameter.tiers or constraints.compute_kernels or parameter.unlike_kernels):
        unknown = f"the compute kernels of {type(parameter.sharder).__name__} are not among those that NeuroShard plans"
    if served.calls.intersection(parameter.calls):
        unknown = f"the table has too few rows for {served.num_devices} devices, or is too wide"
        if served.num_devices == 1:
            unknown = "on one device NeuroShard plans table-wise only"
    return ": ".join(filter(None, (", ".join(types + kernels), unknown)))


def _these(count: int) -> str:
    return "this parameter" if count == 1 else f"these {number_of(count, 'parameter')}"


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


def listed(texts: Sequence[str]) -> str:
    """Return the texts joined by commas, as one text.
    If there are many texts, return the first few of them, and the number of the remaining texts at the end.
    """
    more = f", ... {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{', '.join(texts[:_SHOWN])}{more}"
