"""What of a model is planned here: the rest is delegated to TorchRec's planner."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from neuroshard.layouts import LAYOUTS
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.torchrec.kernels import SPLIT, WHOLE
from neuroshard.torchrec.parameters import ANY_DEVICE, ELEMENT_BYTES, Parameter, named, parameters_of
from neuroshard.words.form import CALLS, Call

_SHOWN = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served:
    """The tables that a search with its models can place.

    Attributes:
        calls: kernel calls that tables may have.
        no_tables: why no table is planned here; None if tables are planned here.
        no_sequences: why no sequence table is planned here; None if sequence tables are planned here.
        num_devices: number of devices, all of which hold row-wise and data-parallel tables; None for any number.
        device: type of the devices, as TorchRec names it.
    """

    calls: frozenset[Call]
    no_tables: str | None = None
    no_sequences: str | None = None
    num_devices: int | None = None
    device: str = ANY_DEVICE

    def calls_of(self, parameter: Parameter) -> frozenset[Call]:
        """Return the kernel calls that this search can give a parameter, of the calls that its constraints allow."""
        devices, rows = self.num_devices, int(parameter.config.num_embeddings)
        dim = int(parameter.config.embedding_dim)
        named = ((call, LAYOUTS[call.form]) for call in self.calls.intersection(parameter.calls))
        known = ((call, its) for call, its in named if its.takes(dim))
        fitting = (
            call for call, its in known if its.free or devices is None or (devices > 1 and its.fits(rows, devices))
        )
        return frozenset(fitting)


EVERYTHING = Served(frozenset(CALLS))


@dataclass(frozen=True)
class Division:
    """Who plans a model's parameters, in the order of its modules: we, TorchRec's planner, or a user's plan fixes them.

    `reasons` say of each delegated one why it isn't planned here.
    """

    planned: tuple[Parameter, ...]
    delegated: tuple[Parameter, ...]
    fixed: tuple[Parameter, ...]
    reasons: tuple[str, ...]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters, those that are planned here first."""
        return self.planned + self.delegated + self.fixed

    @property
    def tables(self) -> dict[str, Parameter]:
        """The tables that are planned here, by the names that they have in tasks, rules and statistics."""
        return named(self.planned, self.parameters)

    def warn(self) -> None:
        """Log what isn't planned here, and by whom it is."""
        if self.delegated:
            pairs = zip(self.delegated, self.reasons, strict=True)
            told = listed([f"{parameter.qualified_name} ({why})" for parameter, why in pairs])
            _log.warning("predicted costs leave out what is delegated to TorchRec's EmbeddingShardingPlanner: %s", told)
        if self.fixed:
            names = listed([parameter.qualified_name for parameter in self.fixed])
            _log.warning("predicted costs leave out what is kept as the given plan has it: %s", names)

    def warn_of_unknown(self, constraints: Mapping[str, ParameterConstraints]) -> None:
        """Log which constraints, by name of the table, are of nothing in the model."""
        names = {name for parameter in self.parameters for name in (parameter.name, parameter.qualified_name)}
        for name in sorted(set(constraints) - names):
            _log.warning("constraints name a table %r that no collection of the model has", name)  # TorchRec ignores it


def divide(
    module: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]],
    constraints: Mapping[str, ParameterConstraints],
    fixed: ShardingPlan | None = None,
    served: Served = EVERYTHING,
) -> Division:
    """Decide who plans each parameter that the sharders would shard; a module in several places is sharded once.

    The model may be on any device; nothing is materialised. Parameters in the `fixed` plan are kept as they are.
    `served` is what a search with its models can place.

    Raises:
        UserError: constraints leave a table only what TorchRec fails with on such devices.
    """
    planned: list[Parameter] = []
    delegated: list[Parameter] = []
    kept: list[Parameter] = []
    reasons: list[str] = []
    for parameter in parameters_of(module, sharders, constraints):
        if fixed is not None and parameter.is_in(fixed):
            kept.append(parameter)
            continue
        its = parameter.without_failing(served.device, served.num_devices or 1)
        if (why := why_delegated(its, served)) is None:
            planned.append(its)
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
    """Find the tables of a model that are planned here, in the order of its modules; nothing is materialised.

    Those are the tables of every EmbeddingBagCollection, also behind processors of its features, and of every
    EmbeddingCollection, if cost models know sequence tables; but for what `why_delegated` names.

    Args:
        module: on any device, "meta" too.
        sharders: modules that they shard are looked at; None takes TorchRec's default ones.
        constraints: by name of the table, as TorchRec has them; those that name nothing in the model are warned about.
    """
    constraints = constraints or {}
    division = divide(module, sharders or get_default_sharders(), constraints)
    division.warn_of_unknown(constraints)
    return division.planned


def why_delegated(parameter: Parameter, served: Served = EVERYTHING) -> str | None:
    """Say why a parameter is left to TorchRec's planner; None if it is planned here. Nothing else decides on that.

    `served` is what a search with its models can place.
    """
    config = parameter.config
    if config is None:
        return type(parameter.module).__name__
    if served.no_tables:
        return served.no_tables
    if not {WHOLE, SPLIT}.issubset(parameter.sharder.sharding_types(ANY_DEVICE)):
        return f"its {type(parameter.sharder).__name__} lacks {WHOLE} or {SPLIT}"
    if served.no_sequences and not parameter.pooled:
        return served.no_sequences
    why = _why_not_costed(parameter) or _why_not_placed(parameter, served)
    if why is not None and parameter.unlike_kernels:
        return f"{config.embedding_dim} columns are not a multiple of {DIM_MULTIPLE}, so it is data-parallel"
    return why


def _why_not_costed(parameter: Parameter) -> str | None:
    """Say what of a table no cost model of ours knows; None if there is nothing."""
    config = parameter.config
    if config.data_type not in ELEMENT_BYTES:
        return f"weights of type {config.data_type.name}"
    if getattr(config, "enable_embedding_update", False):
        return "written to in training (enable_embedding_update)"
    return "a virtual table" if parameter.is_virtual else None


def _why_not_placed(parameter: Parameter, served: Served) -> str | None:
    """Say what is asked for that our plans can't say, or this search or these models don't know; None if nothing."""
    if served.calls_of(parameter):
        return None
    said = parameter.said
    types = [f"sharding_types={said.sharding_types}"] if said.sharding_types else []
    kernels = [f"compute_kernels={said.compute_kernels}"] if said.compute_kernels else []
    unknown = ", unknown to this search or these models" if parameter.calls else ""
    if served.calls.intersection(parameter.calls):
        unknown = f", which can't have its rows on each of {served.num_devices} devices"
        if served.num_devices == 1:
            unknown = "; on one device NeuroShard's tables are table-wise only"
    return f"{', '.join(types + kernels)}{unknown}"


def listed(texts: Sequence[str]) -> str:
    """List the first few of some texts, and say how many more there are."""
    more = f", ... {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{', '.join(texts[:_SHOWN])}{more}"
