"""What sharders would shard of a model: embedding tables, pooled ones and sequence tables, and whatever else."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from math import inf
from typing import Any

import numpy as np
from torch import nn
from torchrec.distributed.embedding import get_ec_index_dedup
from torchrec.distributed.planner.constants import POOLING_FACTOR
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingPlan
from torchrec.modules.embedding_configs import (
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
    data_type_to_sparse_type,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.types import DataType

from neuroshard.layouts import COLUMNS, LAYOUTS, ROWS
from neuroshard.layouts.sharding_types import types_of
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import DIM_MULTIPLE, padded
from neuroshard.tables import Table
from neuroshard.tables.reuse import ZIPF_EXPONENT, zipf_reuse
from neuroshard.tasks.constraints import TableRule
from neuroshard.torchrec.kernels import COPIED, DENSE, IN_ROWS, KERNELS, SPLIT, WHOLE, kernel_of, shards_of
from neuroshard.torchrec.releases import TORCHREC
from neuroshard.words.form import CUT_FORMS, FORMS, Call, Form
from neuroshard.words.placement import ON_DEVICE, Tier

ELEMENT_BYTES = {DataType.FP32: 4, DataType.FP16: 2, DataType.BF16: 2}
ANY_DEVICE = "cuda"  # a sharder has all of its sharding types there
_POOLED = (EmbeddingBagCollection, FusedEmbeddingBagCollection)
_OTHERS = {word: layout for layout in LAYOUTS.values() if not layout.free for word in layout.words[:1]}


@dataclass(frozen=True)
class Parameter:
    """What a sharder would shard of a module: a table, as a rule.

    What it says of a table is there for those with a config.

    Attributes:
        path: of the module inside the model.
        name: inside the module.
        module: a collection of tables, what processes its features, or another one.
        sharder: that would shard the module.
        weights: on any device; their optimizer is set on them.
        config: TorchRec's, of a table in full precision, pooled or not; None for anything else.
        constraints: TorchRec's for the table; None if there are none.
        beside_others: whether parameters of the same module are planned elsewhere.
    """

    path: str
    name: str
    module: Any
    sharder: Any
    weights: Any
    config: Any
    constraints: ParameterConstraints | None = None
    beside_others: bool = False

    def __post_init__(self) -> None:
        for word in ("pooling_factors", "num_poolings", "batch_sizes"):
            numbers = getattr(self.said, word) or ()
            if not all(0 < number < inf for number in numbers):
                raise UserError(f"constraints of table {self.name!r}: {word}={numbers} must be numbers above 0")

    @property
    def qualified_name(self) -> str:
        """The name behind the path of its module: unique in a model."""
        return f"{self.path}.{self.name}" if self.path else self.name

    @property
    def pooled(self) -> bool:
        """Whether it is a table whose lookups are summed up, not a sequence table or anything else."""
        return isinstance(self.config, EmbeddingBagConfig)

    @property
    def deduplicated(self) -> bool:
        """Whether it is a sequence table of which each device asks for an index of its batch once."""
        once = getattr(self.sharder, "_use_index_dedup", False)
        return isinstance(self.config, EmbeddingConfig) and bool(once or get_ec_index_dedup())

    @property
    def unlike_kernels(self) -> bool:
        """Whether it is a table that FBGEMM's fused kernels don't take: its columns are no multiple of 4."""
        return self.config is not None and self.config.embedding_dim % DIM_MULTIPLE > 0

    @property
    def is_virtual(self) -> bool:
        """Whether it is a table of more rows than there is memory for, which are kept in buckets as they come up."""
        return bool(getattr(self.config, "use_virtual_table", False))

    @property
    def is_stashed(self) -> bool:
        """Whether TorchRec moves its weights to host memory while the dense network runs."""
        return bool(getattr(self.config, "stash_weights", False))

    @property
    def output_bytes(self) -> int:
        """Bytes of an element that lookups put out, by the constraints, or else by the sharder's `fused_params`."""
        asked = self.said.output_dtype or (getattr(self.sharder, "fused_params", None) or {}).get("output_dtype")
        known = data_type_to_sparse_type(asked or DataType.FP32) if isinstance(asked, DataType | None) else asked
        bits: int = known.bit_rate()
        return bits // 8

    @property
    def said(self) -> ParameterConstraints:
        """TorchRec's constraints; what they say by themselves where there are none."""
        return self.constraints or ParameterConstraints()

    def is_in(self, plan: ShardingPlan) -> bool:
        """Tell whether a plan holds the parameter."""
        module_plan = plan.plan.get(self.path)
        return isinstance(module_plan, dict) and self.name in module_plan

    def sharding_in(self, plan: ShardingPlan) -> ParameterSharding:
        """Look up how a plan that holds the parameter shards it."""
        return plan.plan[self.path][self.name]

    def check_extent(self, plan: ShardingPlan) -> None:
        """Raise UserError unless the shards of a table in a plan that holds it end where the table does."""
        sharding, shape = self.sharding_in(plan), tuple(self.weights.shape)
        if sharding.sharding_spec is None or self.config is None or self.is_virtual:
            return
        ends = [np.add(shard.shard_offsets, shard.shard_sizes) for shard in shards_of(sharding)]
        planned = tuple(np.max(ends, axis=0).tolist())
        if planned != shape:
            its, theirs = (" x ".join(map(str, sizes)) for sizes in (shape, planned))
            do = "was made for another table; plan it again"
            if planned[0] == shape[0] and shape[1] < planned[1] == padded(shape[1]):
                do = f"was made for the table padded to a multiple of 4; give it embedding_dim={planned[1]}"
            raise UserError(
                f"table {self.qualified_name!r} has {its} rows and columns, and the plan's shards end at {theirs}: "
                f"it {do}"
            )

    def table(self, name: str, batch_size: int, num_devices: int) -> Table:
        """Build the table that we search with; `batch_size` is one device's, as TorchRec counts it.

        A table that several features share looks up all their values in one go: its pooling factor is their sum; and
        each of them has an output of its own. Of a sequence table every lookup has one. A table whose columns are not
        a multiple of 4 counts as padded to the next multiple, which bounds its memory and cost from above.

        Raises:
            UserError: constraints don't fit the number of features.
        """
        pooling = self._pooling_factor(batch_size)
        rows = int(self.config.num_embeddings)
        made_for = batch_size * num_devices
        reuse = zipf_reuse(rows, made_for * pooling, ZIPF_EXPONENT)
        element_bytes = ELEMENT_BYTES[self.config.data_type]
        dim = padded(int(self.config.embedding_dim))
        return Table(
            name, rows, dim, pooling, reuse, element_bytes, made_for, features=self.num_features, pooled=self.pooled
        )

    @property
    def num_features(self) -> int:
        """Number of features that read the table."""
        return len(self.config.feature_names)

    @property
    def is_guessed(self) -> bool:
        """Whether nobody says how many lookups there are: TorchRec's constraints have one, unless they say more.

        Constraints in which all is as TorchRec has it by itself are there for the sake of that one, and so is a factor
        of 1 that is not TorchRec's own default object.
        """
        unsaid = ParameterConstraints()
        constraints = self.constraints
        if constraints is None:
            return True
        if any(factor is not POOLING_FACTOR for factor in constraints.pooling_factors):
            return False
        return constraints != unsaid and _lookups_of(constraints) == _lookups_of(unsaid)

    def _pooling_factor(self, batch_size: int) -> float:
        """Compute the lookups per sample of a device's batch, over all features."""
        features, said = self.num_features, self.said
        lookups = _for_each(said.pooling_factors, features)
        poolings = _for_each(said.num_poolings or [1.0], features)
        batches = _for_each(said.batch_sizes or [batch_size], features)
        if not len(lookups) == len(poolings) == len(batches) == features:
            raise UserError(
                f"constraints of table {self.name!r}: pooling_factors, num_poolings and batch_sizes "
                f"need one number for each of its {features} feature(s)"
            )
        return _over_all(lookups, poolings, batches, batch_size)

    def told_lookups(self, table: Table, batch_size: int) -> list[float]:
        """Return the lookups of each feature for TorchRec's reports: those of constraints, scaled to `table`'s lookups.

        Reports multiply them by `num_poolings` and `batch_sizes` of the constraints, feature by feature.
        """
        said = self.said
        poolings, batches = said.num_poolings or [1.0], said.batch_sizes or [batch_size]
        alone = not said.num_poolings and not said.batch_sizes
        count = self.num_features if alone else max(map(len, (said.pooling_factors, poolings, batches)))
        told = _for_each(said.pooling_factors, count)
        total = _over_all(told, _for_each(poolings, count), _for_each(batches, count), batch_size)
        return [factor * table.pooling_factor / total for factor in told]

    @property
    def forms(self) -> tuple[Form, ...]:
        """The families of the sharding types that TorchRec's constraints name, or else of those that the sharder has.

        A search must choose one of these families.
        """
        kernels, types = self.said.compute_kernels, self._types
        columns = (COLUMNS.form,) if self.tiers and {WHOLE, SPLIT}.intersection(types) else ()
        named = (_OTHERS[sharding_type] for sharding_type in types if sharding_type in _OTHERS)
        others = (one for one in named if not kernels or kernel_of(one, ON_DEVICE) in kernels)
        return (*columns, *(one.form for one in others if one.form in self._known_forms))

    @property
    def _types(self) -> frozenset[str]:
        """The sharding types that constraints name, or else those of the sharder, as far as the table may have them."""
        types = self.said.sharding_types or set(self.sharder.sharding_types(ANY_DEVICE)) - self.withheld_types
        return COPIED.intersection(types) if self.unlike_kernels else frozenset(types)

    @property
    def names_data_parallel(self) -> bool:
        """Whether constraints name data_parallel, or the compute kernel that only it has."""
        return not COPIED.isdisjoint(self.said.sharding_types or ()) or DENSE in (self.said.compute_kernels or ())

    @property
    def withheld_types(self) -> frozenset[str]:
        """Sharding types that TorchRec has for the table but runs wrongly; plans need constraints that name them.

        Row-wise tables that are mean-pooled or have processed features change the outputs of other tables
        (`unsound_remarks`), and data-parallel tables of a fused collection have an optimizer that CPUs can't run.
        """
        in_rows = IN_ROWS if self.mean_pooled or self.processed else frozenset[str]()
        return in_rows | COPIED if self.fused else in_rows

    def failing_types(self, device: str, num_devices: int) -> frozenset[str]:
        """Return the sharding types that TorchRec has for the table but that fail on so many devices of this type.

        CPUs can run the optimizers of data-parallel tables only for ordinary pooled tables, and can't look up in blocks
        without rows.
        """
        if device != "cpu" or self.config is None:
            return frozenset()
        copies = frozenset[str]() if self.pooled and not self.fused else COPIED
        return copies if ROWS.fits(self.config.num_embeddings, num_devices) else copies | IN_ROWS

    def without_failing(self, device: str, num_devices: int) -> "Parameter":
        """Leave the types that fail on such devices out of its constraints; raise UserError if they name no other."""
        failing, named = self.failing_types(device, num_devices), self.said.sharding_types or []
        left = [its for its in named if its not in failing]
        if named and not left:
            raise self.failing_error(named, num_devices)
        return self if left == named else replace(self, constraints=replace(self.said, sharding_types=left))

    def failing_error(self, types: Sequence[str], num_devices: int) -> UserError:
        """Make the error for a table that has only these types left, all of which fail on so many devices."""
        what = "data-parallel sequence tables, and data-parallel tables of fused collections,"
        if COPIED.isdisjoint(types):
            what = f"{self.config.num_embeddings} row(s) over {num_devices} devices, some of which would have none,"
        do = f"give it {padded(self.config.embedding_dim)} columns" if self.unlike_kernels else "allow others"
        return UserError(
            f"table {self.qualified_name!r} can be {' or '.join(types)} only, and {TORCHREC} fails with {what} on "
            f"CPUs; {do}"
        )

    @property
    def fused(self) -> bool:
        """Whether its collection brings the optimizer of its tables."""
        return isinstance(self.module, FusedEmbeddingBagCollection)

    @property
    def mean_pooled(self) -> bool:
        """Whether it is a table whose lookups are averaged."""
        return self.pooled and self.config.pooling is PoolingType.MEAN

    @property
    def processed(self) -> bool:
        """Whether the features of its collection are processed before they are looked up."""
        return isinstance(self.module, FeatureProcessedEmbeddingBagCollection)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers that the table may be in, if it is not data-parallel, by the kernels that constraints name.

        With `enforce_hbm` only tier device counts, if its kernel is allowed: FBGEMM then keeps the whole table in
        device memory for the other kernels, too.
        """
        kernels = self.said.compute_kernels
        tiers = tuple(tier for tier, kernel in KERNELS.items() if not kernels or kernel in kernels)
        return (Tier.DEVICE,) if self.enforces_hbm and Tier.DEVICE in tiers else tiers

    @property
    def enforces_hbm(self) -> bool:
        """Whether constraints, or else the sharder, have FBGEMM keep the table in device memory for any kernel."""
        asked, fused = self.said.enforce_hbm, getattr(self.sharder, "fused_params", None) or {}
        return bool(fused.get("enforce_hbm") if asked is None else asked)

    @property
    def calls(self) -> frozenset[Call]:
        """The kernel calls that the constraints allow."""
        tiers = {form: self.tiers if LAYOUTS[form].free else (Tier.DEVICE,) for form in self.forms}
        return frozenset(Call(form, self.pooled, tier) for form, its in tiers.items() for tier in its)

    @property
    def _known_forms(self) -> tuple[Form, ...]:
        """The families of sharding types that plans may have for such a table."""
        return FORMS if self.pooled else CUT_FORMS

    def split_rule(self, name: str) -> TableRule | None:
        """Translate constraints on splitting into our rule, or None; raise UserError if parts have no column."""
        said = self.said
        if said.min_partition is not None and said.min_partition < 1:
            raise UserError(f"constraints of table {self.name!r}: min_partition={said.min_partition} must be 1 or more")
        may_split = not said.sharding_types or SPLIT in said.sharding_types
        may_split &= self.pooled or not self.beside_others  # collections want all sequence tables cut alike
        if may_split and said.min_partition is None:
            return None  # a rule for each of thousands of tables takes its time
        if not may_split and any(LAYOUTS[form].blocks for form in self.forms):
            return TableRule(escape(name), min_dim=self.config.embedding_dim)  # any number of blocks of rows
        return TableRule(escape(name), max_shards=None if may_split else 1, min_dim=said.min_partition)

    def type_rule(self, name: str) -> TableRule | None:
        """Return the rule on the sharding types that the table may have; None if it may have any."""
        if set(self.forms) == set(self._known_forms) and not self.said.sharding_types:
            return None
        types = tuple(its for its in types_of(*self.forms) if its in self._types)
        return TableRule(escape(name), sharding_types=types)

    def tier_rule(self, name: str) -> TableRule | None:
        """Build the rule on the table's memories, where TorchRec's constraints name kernels or the cache's size.

        Raises:
            UserError: the cache is no share of the table, or all kernels are of host memory and `enforce_hbm` is set.
        """
        cache, tiers = self.said.cache_params, self.tiers
        if self.enforces_hbm and tiers and Tier.DEVICE not in tiers:
            raise UserError(
                f"table {self.qualified_name!r}: enforce_hbm=True keeps all weights in device memory, and "
                f"compute_kernels={self.said.compute_kernels} are of host memory; remove one of the two, or allow "
                f"{KERNELS[Tier.DEVICE]!r}"
            )
        share = None if cache is None else cache.load_factor
        if share is not None and not 0 < share <= 1:
            raise UserError(f"constraints of table {self.name!r}: load_factor={share} must be above 0, 1 at most")
        if share is None and len(tiers) in (0, len(KERNELS)):
            return None
        return TableRule(escape(name), tiers=tiers or None, cache_load_factor=share)


def _lookups_of(constraints: ParameterConstraints) -> tuple[object, ...]:
    return constraints.pooling_factors, constraints.num_poolings, constraints.batch_sizes


def _over_all(lookups: Sequence[float], poolings: Sequence[float], batches: Sequence[float], batch_size: int) -> float:
    """Sum up lookups per sample of a batch, over features with batches of their own."""
    each = zip(lookups, poolings, batches, strict=True)
    return float(sum(factor * count * batch / batch_size for factor, count, batch in each))


def _for_each(values: Sequence[float], count: int) -> Sequence[float]:
    return list(values) * count if len(values) == 1 else values


def named(tables: Sequence[Parameter], parameters: Sequence[Parameter]) -> dict[str, Parameter]:
    """Return tables by their names, or by path and name if several collections have a table of the same name.

    `parameters` are all of the model: the name of a table does not depend on which other tables are planned here.
    """
    count = Counter(parameter.name for parameter in parameters if parameter.config is not None)
    return {table.name if count[table.name] == 1 else table.qualified_name: table for table in tables}


def parameters_of(
    module: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]],
    constraints: Mapping[str, ParameterConstraints] | None = None,
) -> Iterator[Parameter]:
    """Yield every parameter that the sharders would shard; those of a module in several places once.

    `constraints` are TorchRec's, by name of the table, which holds in every collection, or by `path.name`, which counts
    before that.
    """
    by_type: dict[Any, Any] = {sharder.module_type: sharder for sharder in sharders}
    constraints = constraints or {}
    seen: set[int] = set()
    for path, sharded in _sharded("", module, by_type):
        if id(sharded) in seen:
            continue
        seen.add(id(sharded))
        sharder, configs = by_type[type(sharded)], _configs(sharded)
        for name, weights in sharder.shardable_parameters(sharded).items():
            found = Parameter(path, name, sharded, sharder, weights, configs.get(name))
            said = constraints.get(found.qualified_name, constraints.get(name))
            yield replace(found, constraints=said)


def _sharded(path: str, module: nn.Module, sharders: Mapping[Any, Any]) -> Iterator[tuple[str, nn.Module]]:
    if type(module) in sharders:
        yield path, module
        return
    for name, child in module.named_children():
        yield from _sharded(f"{path}.{name}" if path else name, child, sharders)


def _configs(module: Any) -> Mapping[str, Any]:
    """Look up the configs, by name, of a module whose tables may be planned here; none of any other."""
    if isinstance(module, EmbeddingCollection):
        return {config.name: config for config in module.embedding_configs()}
    inner = module._embedding_bag_collection if isinstance(module, FeatureProcessedEmbeddingBagCollection) else module
    return {config.name: config for config in inner.embedding_bag_configs()} if isinstance(inner, _POOLED) else {}
