"""Tables of TorchRec modules, pooled ones and sequence tables, as tables that are planned here."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from typing import Any

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig

from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tables.reuse import ZIPF_EXPONENT, zipf_reuse
from neuroshard.tasks.constraints import SEQUENCE_FORMS, TableRule
from neuroshard.torchrec.kernels import kernel_of
from neuroshard.torchrec.modules import ANY_DEVICE, ELEMENT_BYTES, SPLIT, Division, divide
from neuroshard.words.form import Form
from neuroshard.words.home import ON_DEVICE

_log = logging.getLogger(__name__)
_IN_ROWS = ShardingType.ROW_WISE.value
_OTHER_FORMS = {
    sharding_type: (form, kernel_of(form, ON_DEVICE))
    for sharding_type, form in ((_IN_ROWS, Form.ROWS), ("data_parallel", Form.COPIES))
}


@dataclass(frozen=True)
class BagTable:
    """One table of an EmbeddingBagCollection, or of an EmbeddingCollection: a sequence table.

    Attributes:
        path: of the collection inside the model.
        name: of the table inside the collection.
        config: TorchRec's.
        parameter: the weights, on any device; their optimizer is set on them.
        sharder: that would shard the collection.
        constraints: TorchRec's for the table; None if there are none.
        module: the collection, or what processes its features.
        beside_others: whether tables of the same collection are planned elsewhere.
    """

    path: str
    name: str
    config: Any
    parameter: Any
    sharder: Any
    constraints: ParameterConstraints | None
    module: Any
    beside_others: bool = False

    @property
    def qualified_name(self) -> str:
        """The table's name behind the path of its collection: unique in a model."""
        return f"{self.path}.{self.name}" if self.path else self.name

    def table(self, name: str, batch_size: int, num_devices: int) -> Table:
        """What we search with; `batch_size` is one device's, as TorchRec counts it.

        A table that several features share looks up all their values in one go: its pooling factor is their sum; and
        each of them has an output of its own. Of a sequence table every lookup has one.

        Raises:
            UserError: constraints don't fit the number of features.
        """
        pooling = self._pooling_factor(batch_size)
        rows = int(self.config.num_embeddings)
        made_for = batch_size * num_devices
        reuse = zipf_reuse(rows, made_for * pooling, ZIPF_EXPONENT)
        element_bytes = ELEMENT_BYTES[self.config.data_type]
        dim = int(self.config.embedding_dim)
        return Table(
            name, rows, dim, pooling, reuse, element_bytes, made_for, features=self.num_features, pooled=self.pooled
        )

    @property
    def pooled(self) -> bool:
        """Whether lookups are summed up: not those of a sequence table."""
        return isinstance(self.config, EmbeddingBagConfig)

    @property
    def num_features(self) -> int:
        """Features that read the table."""
        return len(self.config.feature_names)

    @property
    def is_guessed(self) -> bool:
        """Whether nobody says how many lookups there are: TorchRec's constraints have one, unless they are given more.

        Constraints in which all is as TorchRec has it by itself were given for the sake of that one.
        """
        unsaid = ParameterConstraints()
        given = self.constraints
        return given is None or (given != unsaid and _lookups_of(given) == _lookups_of(unsaid))

    def _pooling_factor(self, batch_size: int) -> float:
        """Lookups per sample of a device's batch, over all features."""
        features = self.num_features
        given = self.constraints or ParameterConstraints()
        lookups = _for_each(given.pooling_factors, features)
        poolings = _for_each(given.num_poolings or [1.0], features)
        batches = _for_each(given.batch_sizes or [batch_size], features)
        if not len(lookups) == len(poolings) == len(batches) == features:
            raise UserError(
                f"constraints of table {self.name!r}: pooling_factors, num_poolings and batch_sizes "
                f"need one number for each of its {features} feature(s)"
            )
        return _over_all(lookups, poolings, batches, batch_size)

    def told_lookups(self, table: Table, batch_size: int) -> list[float]:
        """Lookups of each feature as TorchRec's reports take them: what constraints say, scaled to those of `table`.

        Reports count `num_poolings` and `batch_sizes` of the constraints besides, feature by feature.
        """
        given = self.constraints or ParameterConstraints()
        poolings, batches = given.num_poolings or [1.0], given.batch_sizes or [batch_size]
        alone = not given.num_poolings and not given.batch_sizes
        count = self.num_features if alone else max(map(len, (given.pooling_factors, poolings, batches)))
        told = _for_each(given.pooling_factors, count)
        total = _over_all(told, _for_each(poolings, count), _for_each(batches, count), batch_size)
        return [factor * table.pooling_factor / total for factor in told]

    @property
    def forms(self) -> tuple[Form, ...]:
        """Columns, and what TorchRec's constraints name besides; or what the sharder has, where they name nothing.

        What is in none of these a search must not choose; what is in them it chooses where the gain is believed.
        """
        given = self.constraints or ParameterConstraints()
        known = Form if self.pooled else SEQUENCE_FORMS
        kernels = given.compute_kernels
        types = given.sharding_types or self.sharder.sharding_types(ANY_DEVICE)
        named = (_OTHER_FORMS[kind] for kind in types if kind in _OTHER_FORMS)
        return (Form.COLUMNS, *(form for form, own in named if form in known and (not kernels or own in kernels)))

    def rule(self, name: str) -> TableRule | None:
        """TorchRec's constraints on splitting, as ours; None if there are none."""
        given = self.constraints or ParameterConstraints()
        may_split = not given.sharding_types or SPLIT in given.sharding_types
        may_split &= self.pooled or not self.beside_others  # collections want all sequence tables cut alike
        if may_split and given.min_partition is None:
            return None  # a rule for each of thousands of tables takes its time
        if not may_split and Form.ROWS in self.forms:
            return TableRule(escape(name), min_dim=self.config.embedding_dim)  # as many blocks of rows as need be
        return TableRule(escape(name), max_shards=None if may_split else 1, min_dim=given.min_partition)


def form_rules(bags: Mapping[str, BagTable]) -> tuple[TableRule, ...]:
    """The forms that tables may lie in, by name: in a rule for each, but for those that may lie in any."""
    return tuple(
        TableRule(escape(name), forms=bag.forms)
        for name, bag in bags.items()
        if set(bag.forms) != set(Form if bag.pooled else SEQUENCE_FORMS)
    )


def _lookups_of(given: ParameterConstraints) -> tuple[object, ...]:
    return given.pooling_factors, given.num_poolings, given.batch_sizes


def _over_all(lookups: Sequence[float], poolings: Sequence[float], batches: Sequence[float], batch_size: int) -> float:
    """Lookups per sample of a batch, over features with batches of their own."""
    each = zip(lookups, poolings, batches, strict=True)
    return float(sum(factor * count * batch / batch_size for factor, count, batch in each))


def _for_each(values: Sequence[float], count: int) -> Sequence[float]:
    return list(values) * count if len(values) == 1 else values


def find_bags(
    module: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
    constraints: Mapping[str, ParameterConstraints] | None = None,
) -> tuple[BagTable, ...]:
    """The tables of a model that are planned here, in the order of its modules; nothing is materialised.

    Those are the tables of every EmbeddingBagCollection, also behind processors of its features, and of every
    EmbeddingCollection, if cost models know sequence tables; but for what `why_delegated` names.

    Args:
        module: on any device, "meta" too.
        sharders: modules that they shard are looked at; None takes TorchRec's default ones.
        constraints: by name of the table, as TorchRec has them.
    """
    given = constraints or {}
    return bags_of(divide(module, sharders or get_default_sharders(), given), given)


def bags_of(division: Division, constraints: Mapping[str, ParameterConstraints]) -> tuple[BagTable, ...]:
    """What of a model is planned here; constraints that name nothing in it are warned about."""
    everything = (*division.planned, *division.delegated, *division.given)
    for name in sorted(set(constraints) - {parameter.name for parameter in everything}):
        _log.warning("constraints name a table %r that no collection of the model has", name)  # TorchRec ignores it
    elsewhere = {id(parameter.module) for parameter in (*division.delegated, *division.given)}
    return tuple(
        BagTable(
            found.path,
            found.name,
            found.config,
            found.weights,
            found.sharder,
            constraints.get(found.name),
            found.module,
            id(found.module) in elsewhere,
        )
        for found in division.planned
    )


def named(bags: Sequence[BagTable]) -> dict[str, BagTable]:
    """By the name of the table; by path and name where several collections have one of that name."""
    count = Counter(bag.name for bag in bags)
    return {bag.name if count[bag.name] == 1 else bag.qualified_name: bag for bag in bags}
