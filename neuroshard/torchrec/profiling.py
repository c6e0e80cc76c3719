"""Count statistics of a TorchRec model's tables from the batches that the model is trained on."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import torch.distributed as dist
from torch import nn
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import BatchSize, Devices, Size
from neuroshard.tables.statistics.from_batches import MAX_BYTES, RowBlocks, count_batches, watched
from neuroshard.tables.statistics.lookups import Lookups
from neuroshard.tables.statistics.measured import MeasuredTables
from neuroshard.tables.statistics.tally import Features, TableShape
from neuroshard.tables.table import MAX_ROW_BLOCKS
from neuroshard.torchrec.modules import divide
from neuroshard.torchrec.parameters import Parameter
from neuroshard.torchrec.table_statistics import with_statistics


@checked
def profile(
    model: nn.Module,
    batches: Iterable[Any],
    features: Callable[[Any], Any] | None = None,
    global_batch_size: BatchSize | None = None,
    world_size: Devices | None = None,
    *,
    sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
    row_blocks: RowBlocks = MAX_ROW_BLOCKS,
    max_bytes: Size = MAX_BYTES,
) -> MeasuredTables:
    """Count the lookups of a model's tables in batches, and return the tables with these statistics.
    Pass the result to `NeuroShardPlanner` as the argument `tables`: these statistics then override the lookups in
    constraints.

    Pooled and sequence tables are counted as in `ns.tables_from_batches`: batches are joined to global batches, and the
    lookups of all features of a table add up; `Counted.lookups` has the lookups of each feature. The model is not run,
    and may be on the meta device.

    Args:
        model: the model, before it is sharded.
        batches: any number of batches, such as a data loader; they are read one by one. Each batch is a
            KeyedJaggedTensor, or a mapping or list of KeyedJaggedTensors. Features without a table are ignored.
        features: a function that returns the KeyedJaggedTensors of a batch of another type, such as `lambda batch:
            batch.sparse_features`.
        global_batch_size: samples per step over all devices; None takes each batch as the batch of one device, so that
            the global batch size is `world_size` times the samples of the first batch.
        world_size: number of devices; None takes the size of the process group. Not used if `global_batch_size` is set.
        sharders: sharders whose tables are counted; None takes TorchRec's default sharders.
        row_blocks: as in `ns.tables_from_batches`.
        max_bytes: as in `ns.tables_from_batches`.

    Raises:
        UserError: the model has no tables, a batch has another type or lacks a feature, or the number of devices is
            unknown; and as in `ns.tables_from_batches`.
    """
    parameters = divide(model, sharders or get_default_sharders(), {}).tables
    if not parameters:
        raise UserError(
            "profile-model-without-tables",
            "the model has no tables that a sharder would shard",
            limit="without tables there are no lookups to count",
            remedy="Pass the model before it is sharded, and pass sharders= if TorchRec's default sharders do not "
            "shard its tables",
        )
    if isinstance(batches, KeyedJaggedTensor):
        raise UserError(
            "profile-single-batch",
            "batches is a single KeyedJaggedTensor",
            limit="batches must be an iterable of batches",
            remedy="Pass a list of batches, such as [batch]",
        )
    tables = tuple(parameter.table(name, 1, 1) for name, parameter in parameters.items())
    shapes = [TableShape(table.name, table.rows, table.dim, table.bytes_per_element) for table in tables]
    keys = {key for parameter in parameters.values() for key in parameter.config.feature_names}
    devices = 1 if global_batch_size else world_size or _devices()
    with watched(batches) as seen:
        taken = (_by_key(batch, features, keys) for batch in seen)
        first = list(islice(taken, 1))
        size = global_batch_size or _samples(first, keys) * devices
        read = (_read(parameters, shapes, tensors, place) for place, tensors in enumerate(chain(first, taken)))
        counted = count_batches(shapes, read, size, row_blocks, max_bytes)
    return replace(counted, tables=with_statistics(tables, {table.name: table for table in counted.tables}))


def _devices() -> int:
    """Return the number of devices of the process group; raise UserError if there is no process group."""
    if not dist.is_initialized():
        raise UserError(
            "profile-devices-unknown",
            "the number of devices that share a global batch is unknown",
            limit="world_size is not set, and there is no process group that has the number",
            remedy="Set world_size or global_batch_size, or call init_process_group() first",
        )
    return dist.get_world_size()


def _by_key(batch: object, features: Callable[[Any], Any] | None, read: Set[str]) -> dict[str, KeyedJaggedTensor]:
    """Return a dictionary from each feature name (key) in a batch to the KeyedJaggedTensor that has the feature.
    For a batch of one KeyedJaggedTensor with the keys "a" and "b", both names have this tensor as the value.

    The function `features` takes the tensors from the batch; without `features`, the batch itself is searched for
    tensors. `read` has the keys that tables read.

    Raises:
        UserError: the batch has another type, or two tensors have the same key or different numbers of samples for keys
            in `read`.
    """
    taken = batch if features is None else features(batch)
    tensor_of: dict[str, KeyedJaggedTensor] = {}
    for tensor in _tensors(taken):
        if tensor.variable_stride_per_key() and not read.isdisjoint(tensor.keys()):
            raise UserError(
                "profile-batch-variable",
                "the keys of a batch have different numbers of samples",
                limit="all keys of a batch must have the same number of samples",
                remedy="If the batches are deduplicated, pass the batches from before deduplication; otherwise give "
                "every key the same number of samples",
            )
        for key in tensor.keys():  # noqa: SIM118  # it is not a mapping
            if key in tensor_of and key in read:
                raise UserError(
                    "profile-key-twice",
                    f"two tensors of a batch have the key {key!r}",
                    remedy="Pass features=, a function that returns only one of the two tensors",
                )
            tensor_of[key] = tensor
    return tensor_of


def _tensors(taken: object) -> Iterator[KeyedJaggedTensor]:
    """Yield the KeyedJaggedTensors in a batch, also from nested mappings and lists.
    Raise UserError if the batch contains a value of another type.
    """
    if isinstance(taken, KeyedJaggedTensor):
        yield taken
    elif isinstance(taken, (Mapping, list, tuple)):
        for inner in taken.values() if isinstance(taken, Mapping) else taken:
            yield from _tensors(inner)
    else:
        raise UserError(
            "profile-batch-type",
            f"a batch contains a {type(taken).__name__}",
            limit="a batch must be a KeyedJaggedTensor, or a mapping or list of KeyedJaggedTensors",
            remedy="Pass features=, a function that returns the KeyedJaggedTensors of a batch",
        )


def _samples(batches: Sequence[Mapping[str, KeyedJaggedTensor]], read: Set[str]) -> int:
    """Return the number of samples in the first batch; raise UserError if the number is 0.
    `read` has the names of the features that tables read. Only tensors of these features count. If the tensors have
    different numbers of samples, the largest number is returned.
    """
    tensors = (tensor for tensor_of in batches[:1] for key, tensor in tensor_of.items() if key in read)
    samples = max((int(tensor.stride()) for tensor in tensors), default=0)
    if not samples:
        raise UserError(
            "profile-first-batch-empty",
            "the first batch has no samples of the tables' features",
            limit="the global batch size is computed from the number of samples in the first batch",
            remedy="Set global_batch_size, or begin with a batch that has samples",
        )
    return samples


def _read(
    parameters: Mapping[str, Parameter],
    shapes: Sequence[TableShape],
    tensors: Mapping[str, KeyedJaggedTensor],
    place: int,
) -> list[Features]:
    """Return the lookups in one batch, as a list with one dictionary for each table, (T,).
    The keys of a dictionary are the names of the features that the table reads.
    """
    return [
        {key: _lookups(tensors, key, shape, place) for key in parameter.config.feature_names}
        for parameter, shape in zip(parameters.values(), shapes, strict=True)
    ]


def _lookups(tensors: Mapping[str, KeyedJaggedTensor], key: str, shape: TableShape, place: int) -> Lookups:
    """Return the lookups of one feature of a table in a batch; raise UserError if the batch lacks the feature."""
    where = f"batch {place}, table {shape.name!r}"
    if key not in tensors:
        raise UserError(
            "profile-feature-missing",
            f"the batch has no feature {key!r}",
            where=where,
            limit=f"the batch has only these features: {', '.join(sorted(tensors))}"
            if tensors
            else "the batch is empty",
            remedy="Add the feature to every batch, or have the function features= return the feature",
        )
    values = tensors[key][key]
    return Lookups.of(values.values(), values.lengths(), "lengths", shape.rows, f"{where}, feature {key!r}")
