"""Tables of TorchRec modules."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from typing import Any

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder
from torchrec.types import DataType

from neuroshard.errors import UserError
from neuroshard.plans.form import Form
from neuroshard.tables import Table
from neuroshard.tables.reuse import ZIPF_EXPONENT, zipf_reuse
from neuroshard.tasks.constraints import TableRule

_ELEMENT_BYTES = {DataType.FP32: 4, DataType.FP16: 2, DataType.BF16: 2}
_log = logging.getLogger(__name__)
_WHOLE, _SPLIT = "table_wise", "column_wise"
_KERNEL = "fused"
_OTHER_FORMS = {"row_wise": (Form.ROWS, _KERNEL), "data_parallel": (Form.COPIES, "dense")}  # with their kernels


@dataclass(frozen=True)
class BagTable:
    """One table of an EmbeddingBagCollection.

    Attributes:
        path: of the collection inside the model.
        name: of the table inside the collection.
        config: TorchRec's.
        parameter: the weights, on any device; their optimizer is set on them.
        sharder: that would shard the collection.
        constraints: TorchRec's for the table; None if there are none.
    """

    path: str
    name: str
    config: Any
    parameter: Any
    sharder: Any
    constraints: ParameterConstraints | None

    @property
    def qualified_name(self) -> str:
        """The table's name behind the path of its collection: unique in a model."""
        return f"{self.path}.{self.name}" if self.path else self.name

    def table(self, name: str, batch_size: int, num_devices: int) -> Table:
        """What we search with; `batch_size` is one device's, as TorchRec counts it.

        A table that several features share looks up all their values in one go, so its pooling factor is their sum;
        that each of them has a pooled output of its own is left out.

        Raises:
            UserError: weights of a type that no kernel of ours has been measured with.
        """
        if self.config.data_type not in _ELEMENT_BYTES:
            valid = ", ".join(kind.name for kind in _ELEMENT_BYTES)
            raise UserError(f"table {name!r} has weights of type {self.config.data_type.name}, not {valid}")
        pooling = self._pooling_factor(batch_size)
        rows = int(self.config.num_embeddings)
        made_for = batch_size * num_devices
        reuse = zipf_reuse(rows, made_for * pooling, ZIPF_EXPONENT)
        element_bytes = _ELEMENT_BYTES[self.config.data_type]
        return Table(name, rows, int(self.config.embedding_dim), pooling, reuse, element_bytes, made_for)

    def _pooling_factor(self, batch_size: int) -> float:
        """Lookups per sample of a device's batch, over all features."""
        features = len(self.config.feature_names)
        given = self.constraints or ParameterConstraints()
        lookups = _for_each(given.pooling_factors, features)
        poolings = _for_each(given.num_poolings or [1.0], features)
        batches = _for_each(given.batch_sizes or [batch_size], features)
        if not len(lookups) == len(poolings) == len(batches) == features:
            raise UserError(
                f"constraints of table {self.name!r}: pooling_factors, num_poolings and batch_sizes "
                f"need one number for each of its {features} feature(s)"
            )
        each = zip(lookups, poolings, batches, strict=True)
        return float(sum(factor * count * batch / batch_size for factor, count, batch in each))

    @property
    def forms(self) -> tuple[Form, ...]:
        """Columns, and what TorchRec's constraints name besides.

        Rows and copies are never chosen unasked: not every collection has them, and copies are trained by an optimizer
        of their own.
        """
        given = self.constraints or ParameterConstraints()
        named = (_OTHER_FORMS[kind] for kind in given.sharding_types or () if kind in _OTHER_FORMS)
        return (
            Form.COLUMNS,
            *(form for form, kernel in named if not given.compute_kernels or kernel in given.compute_kernels),
        )

    def rule(self, name: str) -> TableRule | None:
        """TorchRec's constraints on splitting, as ours; None if there are none.

        Raises:
            UserError: they allow neither table-wise nor column-wise sharding, or not the fused kernel.
        """
        given = self.constraints
        if given is None:
            return None
        types = given.sharding_types or [_WHOLE, _SPLIT]
        if not {_WHOLE, _SPLIT}.intersection(types):
            raise UserError(
                f"constraints of table {name!r}: sharding_types={types} allow neither {_WHOLE} nor {_SPLIT}"
            )
        if given.compute_kernels and _KERNEL not in given.compute_kernels:
            raise UserError(f"constraints of table {name!r}: compute_kernels={given.compute_kernels} lack {_KERNEL!r}")
        return TableRule(escape(name), max_shards=None if _SPLIT in types else 1, min_dim=given.min_partition)


def form_rules(bags: Mapping[str, BagTable]) -> tuple[TableRule, ...]:
    """The forms that tables may lie in, by name; where that is columns for all, in one rule."""
    if all(bag.forms == (Form.COLUMNS,) for bag in bags.values()):
        return (TableRule("*", forms=(Form.COLUMNS,)),)
    return tuple(TableRule(escape(name), forms=bag.forms) for name, bag in bags.items())


def _for_each(values: Sequence[float], count: int) -> Sequence[float]:
    return list(values) * count if len(values) == 1 else values


def find_bags(
    module: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
    constraints: Mapping[str, ParameterConstraints] | None = None,
) -> tuple[BagTable, ...]:
    """The tables of every EmbeddingBagCollection in a model, in the order of its modules; nothing is materialised.

    Args:
        module: on any device, "meta" too.
        sharders: modules that they shard are looked at; None takes TorchRec's default ones.
        constraints: by name of the table, as TorchRec has them.

    Raises:
        UserError: a sharder would shard a module that holds no pooled tables.
    """
    by_type = {sharder.module_type: sharder for sharder in sharders or get_default_sharders()}
    bags = tuple(_walk("", module, by_type, constraints or {}))
    names = {bag.name for bag in bags}
    for name in sorted(set(constraints or {}) - names):
        _log.warning("constraints name a table %r that no collection of the model has", name)  # TorchRec ignores it
    return bags


def _walk(
    path: str, module: nn.Module, sharders: Mapping[Any, Any], constraints: Mapping[str, ParameterConstraints]
) -> Iterator[BagTable]:
    sharder = sharders.get(type(module))
    if sharder is None:
        for name, child in module.named_children():
            yield from _walk(f"{path}.{name}" if path else name, child, sharders, constraints)
        return
    parameters = sharder.shardable_parameters(module)
    configs = {config.name: config for config in _configs(path, module)} if parameters else {}
    for name, parameter in parameters.items():
        yield BagTable(path, name, configs[name], parameter, sharder, constraints.get(name))


def _configs(path: str, module: Any) -> Any:
    inner = getattr(module, "_embedding_bag_collection", module)  # of a feature-processed collection
    if not hasattr(inner, "embedding_bag_configs"):
        raise UserError(
            f"module {path!r} is a {type(module).__name__}: only pooled tables (EmbeddingBagCollection) are planned; "
            "leave its sharder out of `sharders`, or plan the model with TorchRec's EmbeddingShardingPlanner"
        )
    return inner.embedding_bag_configs()
