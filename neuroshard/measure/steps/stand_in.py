"""A model that stands in for a user's model: a task's tables with a small dense network, and batches to train on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.streamable import Pipelineable
from torchrec.types import DataType

from neuroshard.measure.kernels.drawn_lookups import PopularRows
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.grouping import grouped
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints

POOLED, SEQUENCES = "pooled", "sequences"
_TYPES = {2: DataType.FP16, 4: DataType.FP32}
_META = torch.device("meta")
_BATCHES = 4  # steps use these batches in turn


class Batch(dict[str, KeyedJaggedTensor], Pipelineable):  # type: ignore[misc]
    """A batch of features, as a dict that TorchRec's pipelines can move to a device.
    A key is the path of an embedding collection in the model, such as "pooled". The value is the KeyedJaggedTensor that
    this collection looks up.
    """

    def to(self, device: torch.device, non_blocking: bool) -> "Batch":
        """Return the batch with all features on `device`; features that are already on the device are not copied."""
        return Batch({path: features.to(device, non_blocking) for path, features in self.items()})

    def record_stream(self, stream: torch.Stream) -> None:
        """Mark the memory of all features as used by a stream, like `Tensor.record_stream`. If a feature is freed,
        PyTorch reuses the memory only after the stream has finished the work that is queued on the stream.
        """
        for features in self.values():
            features.record_stream(stream)


def renamed(plan: Plan) -> Plan:
    """Return the plan without constraints, and with tables renamed to table0, table1, ...
    These are valid names of module parameters.
    """
    tables = tuple(replace(table, name=f"table{number}") for number, table in enumerate(plan.task.tables))
    return Plan(replace(plan.task, tables=tables, constraints=Constraints()), plan.placements)


def in_pipeline(plan: Plan, pipeline: str) -> Plan:
    """Return the plan with the task's pipeline replaced by `pipeline`.
    TorchRec then sets the tables up for steps in this pipeline.
    """
    memory = replace(plan.task.memory, pipeline=pipeline)
    return Plan(replace(plan.task, memory=memory), plan.placements)


def modules_of(tables: Sequence[Table]) -> Mapping[str, str]:
    """Return a dict from the name of each table to the path of the embedding collection in `StandIn` that looks up the
    table. The path is "pooled" for all pooled tables. For sequence tables with 64 columns, for example, the path is
    "sequences.64".

    Pooled tables share one collection; sequence tables have one collection for each width.
    """
    return {table.name: _path_of(table) for table in tables}


def _path_of(table: Table) -> str:
    return POOLED if table.pooled else f"{SEQUENCES}.{table.dim}"


class StandIn(nn.Module):
    """A model that looks up features in the tables of a task and returns one number as the loss.

    The number is a sum of mean squares: of a small network over the pooled outputs of each sample, and of all rows of
    each sequence feature.

    The model is divided into `forward` and `loss`, so that the work between them can be timed. TorchRec's pipelines
    trace `forward`, so `forward` does not depend on a batch's values.
    """

    def __init__(self, tables: Sequence[Table], dense: Sequence[int]) -> None:
        super().__init__()
        self._features = {path: _features_of(*group) for path, group in grouped(tables, _path_of).items()}
        pooled = [table for table in tables if table.pooled]
        by_width = grouped([table for table in tables if not table.pooled], lambda table: table.dim)
        if pooled:
            self.pooled = EmbeddingBagCollection([_config(EmbeddingBagConfig, table) for table in pooled], device=_META)
        self.sequences = nn.ModuleDict(
            {
                str(dim): EmbeddingCollection([_config(EmbeddingConfig, table) for table in group], device=_META)
                for dim, group in sorted(by_width.items())
            }
        )
        sizes = [sum(table.dim * table.features for table in pooled), *dense]
        layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.over = nn.Sequential(*layers) if pooled else nn.Sequential()

    def forward(self, batch: Batch) -> list[torch.Tensor]:
        """Return the outputs of all lookups, as a list of tensors.
        If any table is pooled, the first tensor has the outputs of all pooled tables, (b, columns), for b samples.
        After this tensor, there is a tensor (lookups, columns) for each sequence feature.
        """
        looked_up = {path: self.get_submodule(path)(batch[path]) for path in self._features}
        pooled = [looked_up[POOLED].values()] if POOLED in looked_up else []
        sequences = [(path, name) for path, names in self._features.items() if path != POOLED for name in names]
        return pooled + [looked_up[path][name].values() for path, name in sequences]

    def loss(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a number that depends on every output, as the loss of the model."""
        first, *rest = outputs
        return torch.stack([self.over(first).square().mean(), *(output.square().mean() for output in rest)]).sum()


def _config(config_type: type, table: Table) -> EmbeddingBagConfig | EmbeddingConfig:
    config: EmbeddingBagConfig | EmbeddingConfig = config_type(
        name=table.name,
        num_embeddings=table.rows,
        embedding_dim=table.dim,
        feature_names=_features_of(table),
        data_type=_TYPES[table.bytes_per_element],
    )
    return config


def _features_of(*tables: Table) -> list[str]:
    return [f"{table.name}_feature{number}" for table in tables for number in range(table.features)]


def drawn_batches(tables: Sequence[Table], batch_size: int, seed: int, device: torch.device) -> list[Batch]:
    """Draw several batches with the samples of all ranks; the seed fixes the batches.

    As in training, the same rows are popular in all batches.
    """
    generator = torch.Generator(device).manual_seed(seed)
    popular = [PopularRows.of(table, batch_size, device) for table in tables]
    return [_batch(popular, generator) for _ in range(_BATCHES)]


def _batch(popular: Sequence[PopularRows], generator: torch.Generator) -> Batch:
    drawn = [(rows.table, *rows.batch(generator)) for rows in popular]
    return Batch(
        {path: _joined(members) for path, members in grouped(drawn, lambda member: _path_of(member[0])).items()}
    )


def _joined(drawn: Sequence[tuple[Table, torch.Tensor, torch.Tensor]]) -> KeyedJaggedTensor:
    """Join the lookups in all tables of one collection into one KeyedJaggedTensor.
    `drawn` has a tuple for each table: the table, the indices of the lookups in this table, and the lengths, which
    count the lookups of each feature and sample.
    """
    tables, indices, lengths = zip(*drawn, strict=True)
    return KeyedJaggedTensor(_features_of(*tables), torch.cat(indices), lengths=torch.cat(lengths).to(torch.int32))


def share_of(batch: Batch, rank: int, size: int) -> Batch:
    """Return the part of a batch that one of `size` ranks gets; all ranks get equal numbers of samples."""
    return Batch({path: _share(features, rank, size) for path, features in batch.items()})


def _share(features: KeyedJaggedTensor, rank: int, size: int) -> KeyedJaggedTensor:
    lengths = features.lengths()
    each = features.stride() // size
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    firsts = range(rank * each, len(lengths), features.stride())
    values = torch.cat([features.values()[ends[first] : ends[first + each]] for first in firsts])
    return KeyedJaggedTensor(
        features.keys(), values, lengths=torch.cat([lengths[first : first + each] for first in firsts])
    )
