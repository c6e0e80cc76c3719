"""The parameters of a model that sharders can shard: pooled tables, sequence tables, and other parameters."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from math import ceil, inf
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

from neuroshard.layouts import COLUMN_WISE_LAYOUT, LAYOUTS, ROW_WISE_LAYOUT
from neuroshard.layouts.sharding_types import types_of
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import DIM_MULTIPLE, MAX_FEATURES, padded
from neuroshard.tables import Table
from neuroshard.tables.reuse import ZIPF_EXPONENT, zipf_reuse
from neuroshard.tasks.constraints import TableRule
from neuroshard.torchrec.kernels import COPIED, DENSE, IN_ROWS, KERNELS, SPLIT, WHOLE, kernel_of, shards_of
from neuroshard.torchrec.releases import TORCHREC
from neuroshard.words.form import CUT_FORMS, FORMS, Call, Form
from neuroshard.words.placement import ON_DEVICE, Tier

ELEMENT_BYTES = {DataType.FP32: 4, DataType.FP16: 2, DataType.BF16: 2}
ANY_DEVICE = "cuda"  # the type of device on which a sharder supports all of its sharding types
_DIGITS = 6  # sums of fractional outputs are exact to this many digits, so that rounding up adds no output
_POOLED = (EmbeddingBagCollection, FusedEmbeddingBagCollection)
_OTHERS = {word: layout for layout in LAYOUTS.values() if not layout.free for word in layout.words[:1]}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a module that a sharder can shard: usually a table.

    Only parameters with a config have the properties of a table.

    Attributes:
        path: path of the module inside the model.
        name: name inside the module.
        module: a collection of tables, a feature processor of a collection, or another module.
        sharder: the sharder that can shard the module.
        weights: the weights, on any device; the optimizer of the table is attached to the weights.
        config: TorchRec's config of a table in full precision, pooled or not; None for any other parameter.
        constraints: TorchRec's constraints for the table; None if there are none.
        beside_others: True if NeuroShard does not plan all parameters of the same module.
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
            numbers = getattr(self.user_constraints, word) or ()
            if not all(0 < number < inf for number in numbers):
                raise UserError(
                    "constraints-numbers-not-positive",
                    f"{word} is {numbers}",
                    where=f"constraints of table {self.name!r}",
                    limit="each number must be finite and above 0",
                    remedy=f"Correct {word}",
                )

    @property
    def qualified_name(self) -> str:
        """The name of the parameter, with the path of the module in front.
        No other parameter of the model has this name.
        """
        return f"{self.path}.{self.name}" if self.path else self.name

    @property
    def pooled(self) -> bool:
        """True if the parameter is a table whose lookups are pooled;
        False for a sequence table or another parameter.
        """
        return isinstance(self.config, EmbeddingBagConfig)

    @property
    def deduplicated(self) -> bool:
        """True if the parameter is a sequence table with deduplicated indices:
        a device requests each index of a batch once.
        """
        once = getattr(self.sharder, "_use_index_dedup", False)
        return isinstance(self.config, EmbeddingConfig) and bool(once or get_ec_index_dedup())

    @property
    def unlike_kernels(self) -> bool:
        """True if the parameter is a table whose number of columns is not a multiple of 4.
        FBGEMM's fused kernels do not support this number of columns.
        """
        return self.config is not None and self.config.embedding_dim % DIM_MULTIPLE > 0

    @property
    def is_virtual(self) -> bool:
        """True if the table is one of TorchRec's virtual tables, which may have more rows than fit in memory.
        A virtual table stores only the rows that lookups have requested.
        """
        return bool(getattr(self.config, "use_virtual_table", False))

    @property
    def is_stashed(self) -> bool:
        """True if TorchRec moves the weights of the table to host memory while the dense network runs."""
        return bool(getattr(self.config, "stash_weights", False))

    @property
    def output_bytes(self) -> int:
        """The number of bytes per element of the outputs of lookups.
        The constraints set this number or, if they do not, `fused_params` of the sharder.
        """
        wanted = self.user_constraints.output_dtype or (getattr(self.sharder, "fused_params", None) or {}).get(
            "output_dtype"
        )
        known = data_type_to_sparse_type(wanted or DataType.FP32) if isinstance(wanted, DataType | None) else wanted
        bits: int = known.bit_rate()
        return bits // 8

    @property
    def user_constraints(self) -> ParameterConstraints:
        """The constraints of the table, or TorchRec's default constraints if the table has no constraints."""
        return self.constraints or ParameterConstraints()

    def is_in(self, plan: ShardingPlan) -> bool:
        """Return True if the plan contains the parameter."""
        module_plan = plan.plan.get(self.path)
        return isinstance(module_plan, dict) and self.name in module_plan

    def sharding_in(self, plan: ShardingPlan) -> ParameterSharding:
        """Return the sharding of the parameter in a plan; the plan must contain the parameter."""
        return plan.plan[self.path][self.name]

    def check_extent(self, plan: ShardingPlan) -> None:
        """Raise UserError if the shards in a plan cover more or fewer rows or columns than the table has."""
        sharding, shape = self.sharding_in(plan), tuple(self.weights.shape)
        if sharding.sharding_spec is None or self.config is None or self.is_virtual:
            return
        ends = [np.add(shard.shard_offsets, shard.shard_sizes) for shard in shards_of(sharding)]
        planned = tuple(np.max(ends, axis=0).tolist())
        if planned != shape:
            in_model, in_plan = (" x ".join(map(str, sizes)) for sizes in (shape, planned))
            made_for, remedy = "another table", "Make a plan for this table"
            if planned[0] == shape[0] and shape[1] < planned[1] == padded(shape[1]):
                made_for, remedy = (
                    "the table padded to a multiple of 4",
                    f"Set embedding_dim={planned[1]} for the table",
                )
            raise UserError(
                "planned-table-shape-differs",
                f"table {self.qualified_name!r} has {in_model} rows and columns, but the plan's shards have {in_plan}",
                limit=f"the plan was made for {made_for}",
                remedy=remedy,
            )

    def table(self, name: str, batch_size: int, num_devices: int) -> Table:
        """Return a NeuroShard `Table` for a search, with the rows, columns and lookups of this parameter.
        `name` is the name of the new table. `batch_size` is the batch size of one device, as in TorchRec.

        If several features share a table, the pooling factor of the table is the sum over features, and each feature
        has an output. In a sequence table each lookup has an output. A feature that constraints give several poolings
        per sample (`num_poolings`), or a larger batch (`batch_sizes`), counts as several features: the outputs per
        sample of all features are rounded up to a whole number. A table whose number of columns is not a multiple of 4
        counts as padded to the next multiple, which bounds its memory and cost from above.

        Raises:
            UserError: constraints do not fit the number of features, or set too many outputs per sample.
        """
        pooling, outputs = self._lookups_and_outputs(batch_size)
        if outputs > MAX_FEATURES:
            raise UserError(
                "constraints-outputs-too-many",
                f"num_poolings and batch_sizes set {outputs:,} outputs per sample",
                where=f"constraints of table {self.name!r}",
                limit=f"the maximum is {MAX_FEATURES:,} outputs per sample of the planner's batch_size",
                remedy="Lower num_poolings or batch_sizes, or raise the planner's batch_size",
            )
        rows = int(self.config.num_embeddings)
        made_for = batch_size * num_devices
        reuse = zipf_reuse(rows, made_for * pooling, ZIPF_EXPONENT)
        element_bytes = ELEMENT_BYTES[self.config.data_type]
        dim = padded(int(self.config.embedding_dim))
        return Table(name, rows, dim, pooling, reuse, element_bytes, made_for, features=outputs, pooled=self.pooled)

    @property
    def num_features(self) -> int:
        """The number of features that read the table."""
        return len(self.config.feature_names)

    @property
    def is_guessed(self) -> bool:
        """True if no constraint sets the number of lookups of the table.
        NeuroShard then assumes 1 lookup, which is TorchRec's default.

        Constraints that are all equal to TorchRec's defaults set 1 lookup on purpose, and so does a pooling factor of 1
        that is not TorchRec's default object.
        """
        unsaid = ParameterConstraints()
        constraints = self.constraints
        if constraints is None:
            return True
        if any(factor is not POOLING_FACTOR for factor in constraints.pooling_factors):
            return False
        return constraints != unsaid and _lookups_of(constraints) == _lookups_of(unsaid)

    def _lookups_and_outputs(self, batch_size: int) -> tuple[float, int]:
        """Return two numbers per sample of a device's batch: the number of lookups, and the number of pooled outputs.
        Both are sums over all features of the table. The number of outputs is rounded up to a whole number.
        """
        features, constraints = self.num_features, self.user_constraints
        lookups = _for_each(constraints.pooling_factors, features)
        poolings = _for_each(constraints.num_poolings or [1.0], features)
        batches = _for_each(constraints.batch_sizes or [batch_size], features)
        counts = {"pooling_factors": lookups, "num_poolings": poolings, "batch_sizes": batches}
        if wrong := [word for word, numbers in counts.items() if len(numbers) != features]:
            raise UserError(
                "constraints-numbers-per-feature",
                f"the number of values in {' and '.join(wrong)} differs from the number of features",
                where=f"constraints of table {self.name!r}",
                limit=f"the table has {number_of(features, 'feature')}",
                remedy=f"Set {' and '.join(wrong)} to one value for each feature, or to one value for all features",
            )
        outputs = _over_all([1.0] * features, poolings, batches, batch_size)
        return _over_all(lookups, poolings, batches, batch_size), ceil(round(outputs, _DIGITS))

    def reported_lookups(self, table: Table, batch_size: int) -> list[float]:
        """Return the pooling factor (lookups per sample) of each feature, for TorchRec's reports.
        The pooling factors in the constraints are scaled by one common factor, so that all features together have as
        many lookups per sample as `table`.

        For example, the factors 1 and 3 become 2 and 6 if `table` has 8 lookups per sample, and the constraints set
        neither `num_poolings` nor `batch_sizes`. The pooling factor of `table` may come from measured statistics.
        Reports multiply these lookups by `num_poolings` and `batch_sizes` of the constraints, feature by feature.
        """
        constraints = self.user_constraints
        poolings, batches = constraints.num_poolings or [1.0], constraints.batch_sizes or [batch_size]
        alone = not constraints.num_poolings and not constraints.batch_sizes
        count = self.num_features if alone else max(map(len, (constraints.pooling_factors, poolings, batches)))
        factors = _for_each(constraints.pooling_factors, count)
        total = _over_all(factors, _for_each(poolings, count), _for_each(batches, count), batch_size)
        return [factor * table.pooling_factor / total for factor in factors]

    @property
    def forms(self) -> tuple[Form, ...]:
        """The families of sharding types from which the search may choose the sharding type of the table.
        The three families are column-wise, row-wise and data-parallel; table-wise, for example, belongs to column-wise.

        They follow from the sharding types in the constraints, or otherwise from the sharder's sharding types. Both the
        constraints and the sharder must allow the compute kernel of the sharding type. A table that can only be
        data-parallel, but whose constraints do not name data_parallel, may have no sharding type here.
        """
        tiers, types = self.tiers, self._types
        columns = (COLUMN_WISE_LAYOUT.form,) if tiers and {WHOLE, SPLIT}.intersection(types) else ()
        others = (
            layout
            for sharding_type, layout in _OTHERS.items()
            if sharding_type in types
            and kernel_of(layout, ON_DEVICE) in self._kernels_for(sharding_type)
            and (layout.dense or not columns or Tier.DEVICE in tiers)
        )
        forms = (*columns, *(layout.form for layout in others if layout.form in self._known_forms))
        only_copies = all(LAYOUTS[form].dense for form in forms)
        return () if only_copies and not (self.names_data_parallel or self.unlike_kernels) else forms

    def _kernels_for(self, sharding_type: str) -> frozenset[str]:
        """Return the compute kernels that the table may have with a sharding type.
        Both the constraints and the sharder of the table must allow the kernel.
        """
        offered = frozenset(self.sharder.compute_kernels(sharding_type, ANY_DEVICE))
        return offered.intersection(self.user_constraints.compute_kernels or offered)

    @property
    def _types(self) -> frozenset[str]:
        """The sharding types that NeuroShard may consider for the table.
        If the constraints list sharding types, these are the listed types. Otherwise, they are the types that the
        sharder supports, without the types in `withheld_types`. In both cases, if the number of columns is not a
        multiple of 4, all types except data_parallel are removed.
        """
        types = (
            self.user_constraints.sharding_types or set(self.sharder.sharding_types(ANY_DEVICE)) - self.withheld_types
        )
        return COPIED.intersection(types) if self.unlike_kernels else frozenset(types)

    @property
    def names_data_parallel(self) -> bool:
        """True if the constraints name data_parallel, or the compute kernel that only data-parallel tables have."""
        return not COPIED.isdisjoint(self.user_constraints.sharding_types or ()) or DENSE in (
            self.user_constraints.compute_kernels or ()
        )

    @property
    def withheld_types(self) -> frozenset[str]:
        """Sharding types that TorchRec offers for the table, but with which TorchRec trains wrongly or fails.
        NeuroShard's plans use these sharding types only if constraints name them.

        Row-wise tables that are mean-pooled or have processed features change the outputs of other tables
        (`unsound_remarks`), and data-parallel tables of a fused collection have an optimizer that fails on CPUs.
        """
        in_rows = IN_ROWS if self.mean_pooled or self.processed else frozenset[str]()
        return in_rows | COPIED if self.fused else in_rows

    def failing_types(self, device: str, num_devices: int) -> frozenset[str]:
        """Return the sharding types that TorchRec offers for the table, but that fail with an error on these devices.

        On CPUs, the optimizers of data-parallel tables work only for ordinary pooled tables. Lookups fail on a device
        that has no rows of any row-wise table of a collection; here, a table with an empty row block counts as failing,
        also if another row-wise table of the collection has rows on every device.
        """
        if device != "cpu" or self.config is None:
            return frozenset()
        copies = frozenset[str]() if self.pooled and not self.fused else COPIED
        return copies if ROW_WISE_LAYOUT.fits(self.config.num_embeddings, num_devices) else copies | IN_ROWS

    def without_failing(self, device: str, num_devices: int) -> "Parameter":
        """Return a copy of the parameter, in which the constraints list only sharding types that work on these devices.
        If the constraints list no sharding types, or if all listed types work, return the parameter itself. Raise
        UserError if all listed types fail.
        """
        failing, named = self.failing_types(device, num_devices), self.user_constraints.sharding_types or []
        left = [kind for kind in named if kind not in failing]
        if named and not left:
            raise self.failing_error(named, num_devices)
        return self if left == named else replace(self, constraints=replace(self.user_constraints, sharding_types=left))

    def failing_error(self, types: Sequence[str], num_devices: int) -> UserError:
        """Return the error for a table that can only have the sharding types in `types`.
        All of these sharding types fail on the devices of the job.
        """
        limit = f"{TORCHREC} fails with data_parallel tables of {type(self.module).__name__} on CPUs"
        remedy = "Allow other sharding types in constraints"
        if COPIED.isdisjoint(types):
            rows = number_of(self.config.num_embeddings, "row")
            limit = (
                f"with {rows} over {num_devices} CPUs some devices have no rows, and {TORCHREC} fails there unless "
                "another row-wise table of the collection has rows on every device"
            )
            remedy += ", or pass a ShardingPlan of this table as given="
        if self.unlike_kernels:
            remedy = f"Give the table {padded(self.config.embedding_dim)} columns, which allows other sharding types"
        return UserError(
            "table-types-fail-on-cpu",
            f"table {self.qualified_name!r} can only be {' or '.join(types)}",
            limit=limit,
            remedy=remedy,
        )

    @property
    def fused(self) -> bool:
        """True if the table belongs to a fused collection, which sets the optimizer of the table."""
        return isinstance(self.module, FusedEmbeddingBagCollection)

    @property
    def mean_pooled(self) -> bool:
        """True if the table is pooled, and the rows that a sample looks up are averaged."""
        return self.pooled and self.config.pooling is PoolingType.MEAN

    @property
    def processed(self) -> bool:
        """True if the table belongs to a collection that processes the features before the lookups."""
        return isinstance(self.module, FeatureProcessedEmbeddingBagCollection)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The memory tiers of the table (device, uvm_caching or uvm) whose compute kernels are allowed.
        These tiers apply only if the table is not data-parallel.

        Both the constraints and the sharder must allow the kernel, for each of the types table_wise and column_wise
        that the table may have. If the table may have neither type, the kernels of the other sharding types count.

        With `enforce_hbm` only tier device counts, if its kernel is allowed: FBGEMM then keeps the whole table in
        device memory with the other kernels, too.
        """
        sharded, named = self._types - COPIED, self.user_constraints.compute_kernels
        kernels = [self._kernels_for(kind) for kind in sharded.intersection({WHOLE, SPLIT}) or sharded]
        kernels = kernels or [frozenset(named or KERNELS.values())]  # data-parallel only: the tiers do not apply
        tiers = tuple(tier for tier, kernel in KERNELS.items() if all(kernel in allowed for allowed in kernels))
        return (Tier.DEVICE,) if self.enforces_hbm and Tier.DEVICE in tiers else tiers

    @property
    def enforces_hbm(self) -> bool:
        """True if TorchRec's setting `enforce_hbm` is on for the table.
        FBGEMM then keeps the whole table in device memory, even if the compute kernel is for tables in host memory. The
        setting comes from the constraints or, if the constraints do not set `enforce_hbm`, from `fused_params` of the
        sharder.
        """
        wanted, fused = self.user_constraints.enforce_hbm, getattr(self.sharder, "fused_params", None) or {}
        return bool(fused.get("enforce_hbm") if wanted is None else wanted)

    @property
    def calls(self) -> frozenset[Call]:
        """The types of kernel calls that the constraints allow for the table.
        A type has three parts: the family of sharding types (such as row-wise), the memory tier, and whether lookups
        are pooled.
        """
        tiers = {form: self.tiers if LAYOUTS[form].free else (Tier.DEVICE,) for form in self.forms}
        return frozenset(
            Call(form, self.pooled, tier) for form, tiers_of_form in tiers.items() for tier in tiers_of_form
        )

    @property
    def _known_forms(self) -> tuple[Form, ...]:
        """The families of sharding types that NeuroShard's plans support for the table.
        Pooled tables can be column-wise, row-wise or data-parallel; sequence tables can be column-wise or row-wise.
        """
        return FORMS if self.pooled else CUT_FORMS

    def split_rule(self, name: str) -> TableRule | None:
        """Return the `TableRule` that tells NeuroShard's search into which shards the table may be split.
        The rule follows from constraints, such as `min_partition`, and from TorchRec's limits for sequence tables. The
        result is None if any split is allowed.

        Raises:
            UserError: `min_partition` is below 1 column.
        """
        constraints = self.user_constraints
        if constraints.min_partition is not None and constraints.min_partition < 1:
            raise UserError(
                "constraints-min-partition",
                f"min_partition is {constraints.min_partition}",
                where=f"constraints of table {self.name!r}",
                limit="the minimum is 1 column",
                remedy="Set min_partition to 1 or more",
            )
        may_split = not constraints.sharding_types or SPLIT in constraints.sharding_types
        # In a collection, all sequence tables must be split in the same way.
        may_split &= self.pooled or not self.beside_others
        if may_split and constraints.min_partition is None:
            return None  # thousands of unnecessary rules would slow the search down
        if not may_split and any(LAYOUTS[form].blocks for form in self.forms):
            return TableRule(escape(name), min_dim=self.config.embedding_dim)  # any number of row blocks is allowed
        return TableRule(escape(name), max_shards=None if may_split else 1, min_dim=constraints.min_partition)

    def type_rule(self, name: str) -> TableRule | None:
        """Return the `TableRule` that tells NeuroShard's search which sharding types the table may have.
        The result is None if the table may have any sharding type.
        """
        if set(self.forms) == set(self._known_forms) and not self.user_constraints.sharding_types:
            return None
        types = tuple(kind for kind in types_of(*self.forms) if kind in self._types)
        return TableRule(escape(name), sharding_types=types)

    def tier_rule(self, name: str) -> TableRule | None:
        """Return the `TableRule` that tells NeuroShard's search which memory tiers and cache size the table may have.
        The result is None if neither the memory tiers nor the cache size are limited. The tiers are not limited if the
        constraints allow only the compute kernel of data-parallel tables.

        Raises:
            UserError: the cache's load factor is not a share of the table, or `enforce_hbm` is set and all kernels use
                host memory.
        """
        cache, tiers = self.user_constraints.cache_params, self.tiers
        if self.enforces_hbm and tiers and Tier.DEVICE not in tiers:
            raise self._enforced_error(KERNELS[Tier.DEVICE])
        share = None if cache is None else cache.load_factor
        if share is not None and not 0 < share <= 1:
            raise UserError(
                "constraints-load-factor",
                f"load_factor is {share}",
                where=f"constraints of table {self.name!r}",
                limit="load_factor is the share of the table that is in the cache, above 0 and at most 1",
                remedy="Set load_factor to a number above 0 and at most 1",
            )
        if share is None and len(tiers) in (0, len(KERNELS)):
            return None
        return TableRule(escape(name), tiers=tiers or None, cache_load_factor=share)

    def _enforced_error(self, kernel: str) -> UserError:
        """Return the error for a table with `enforce_hbm` that cannot have `kernel`, the kernel of device memory."""
        set_in = "" if self.user_constraints.enforce_hbm else " in fused_params of the sharder"
        named, sharder = self.user_constraints.compute_kernels, type(self.sharder).__name__
        has, remedy = f"compute_kernels is {named}", f"or compute_kernels, or add {kernel!r} to compute_kernels"
        if not named or kernel in named:
            has = f"compute_kernels() of {sharder} lacks {kernel!r}"
            remedy = f"or pass a sharder whose compute_kernels() include {kernel!r}"
        return UserError(
            "constraints-enforce-hbm",
            f"enforce_hbm is True{set_in}, but {has}",
            where=f"constraints of table {self.qualified_name!r}",
            limit="enforce_hbm=True keeps all weights in device memory, and these kernels use host memory",
            remedy=f"Remove enforce_hbm {remedy}",
        )


def _lookups_of(constraints: ParameterConstraints) -> tuple[object, ...]:
    return constraints.pooling_factors, constraints.num_poolings, constraints.batch_sizes


def _over_all(lookups: Sequence[float], poolings: Sequence[float], batches: Sequence[float], batch_size: int) -> float:
    """Return the lookups in a table per sample of a device's batch, summed over all features that read the table.
    The three lists have one value for each feature, as in TorchRec's constraints: `lookups` has the pooling factors,
    `poolings` has the numbers of poolings, and `batches` has the batch sizes of the features. Each feature adds pooling
    factor * number of poolings * batch size of the feature / `batch_size`.
    """
    each = zip(lookups, poolings, batches, strict=True)
    return float(sum(factor * count * batch / batch_size for factor, count, batch in each))


def _for_each(values: Sequence[float], count: int) -> Sequence[float]:
    return list(values) * count if len(values) == 1 else values


def named(tables: Sequence[Parameter], parameters: Sequence[Parameter]) -> dict[str, Parameter]:
    """Return a dictionary of the tables by name.
    If several collections have a table of the same name, the key of the table is `path.name` instead.

    `parameters` are all parameters of the model, so that the name of a table does not depend on which tables NeuroShard
    plans.
    """
    count = Counter(parameter.name for parameter in parameters if parameter.config is not None)
    return {table.name if count[table.name] == 1 else table.qualified_name: table for table in tables}


def parameters_of(
    module: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]],
    constraints: Mapping[str, ParameterConstraints] | None = None,
) -> Iterator[Parameter]:
    """Yield every parameter that the sharders would shard; a module in several places counts once.

    `constraints` are TorchRec's: by table name, which applies in every collection, or by `path.name`, which has
    priority.
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
            own = constraints.get(found.qualified_name, constraints.get(name))
            yield replace(found, constraints=own)


def sharded_paths(module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]) -> frozenset[str]:
    """Return the paths of the modules that have a sharder, also of modules without tables, such as tensor pools."""
    by_type = {sharder.module_type: sharder for sharder in sharders}
    return frozenset(path for path, _ in _sharded("", module, by_type))


def dense_bytes(module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]) -> int:
    """Return the bytes of all parameters of a model that are outside the modules that have a sharder."""
    by_type = {sharder.module_type: sharder for sharder in sharders}
    inside = {id(weights) for _, sharded in _sharded("", module, by_type) for weights in sharded.parameters()}
    return sum(its.numel() * its.element_size() for its in module.parameters() if id(its) not in inside)


def _sharded(path: str, module: nn.Module, sharders: Mapping[Any, Any]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the path and the module of each module that has a sharder.
    Modules inside a module that has a sharder are not searched.
    """
    if type(module) in sharders:
        yield path, module
        return
    for name, child in module.named_children():
        yield from _sharded(f"{path}.{name}" if path else name, child, sharders)


def _configs(module: Any) -> Mapping[str, Any]:
    """Return the table configs of a module, by the name of the table.
    The result is empty for a module whose tables NeuroShard cannot plan.
    """
    if isinstance(module, EmbeddingCollection):
        return {config.name: config for config in module.embedding_configs()}
    inner = module._embedding_bag_collection if isinstance(module, FeatureProcessedEmbeddingBagCollection) else module
    return {config.name: config for config in inner.embedding_bag_configs()} if isinstance(inner, _POOLED) else {}
