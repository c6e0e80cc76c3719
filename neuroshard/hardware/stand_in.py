"""A model that stands in for a user's: a task's tables under a small dense part, and batches to train it on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.types import DataType

from neuroshard.hardware.drawn_lookups import popular_lookups
from neuroshard.hardware.popular import PopularRows
from neuroshard.plans.plan import Plan
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints

POOLED, SEQUENCES = "pooled", "sequences"
_TYPES = {2: DataType.FP16, 4: DataType.FP32}
_META = torch.device("meta")
_BATCHES = 4  # that steps take by turns
Batch = Mapping[str, KeyedJaggedTensor]  # features by the path of their collection


def renamed(plan: Plan) -> Plan:
    """The same plan of tables with names that a module's parameters can bear."""
    tables = tuple(replace(table, name=f"table{number}") for number, table in enumerate(plan.task.tables))
    return Plan(replace(plan.task, tables=tables, constraints=Constraints()), plan.placements)


def modules_of(tables: Sequence[Table]) -> Mapping[str, str]:
    """The path, in `StandIn`, of the collection that holds each table: one of pooled tables, one a width of others."""
    return {table.name: POOLED if table.pooled else f"{SEQUENCES}.{table.dim}" for table in tables}


class StandIn(nn.Module):
    """Looks up features, and gives a number: the mean of a small network over the pooled outputs of each sample, and of
    all rows of sequences.

    `forward` and `loss` are its two halves, so that what comes between them can be timed.
    """

    def __init__(self, tables: Sequence[Table], dense: Sequence[int]) -> None:
        super().__init__()
        pooled = [table for table in tables if table.pooled]
        widths = sorted({table.dim for table in tables if not table.pooled})
        if pooled:
            self.pooled = EmbeddingBagCollection([_config(EmbeddingBagConfig, table) for table in pooled], device=_META)
        self.sequences = nn.ModuleDict(
            {
                str(dim): EmbeddingCollection(
                    [_config(EmbeddingConfig, table) for table in tables if not table.pooled and table.dim == dim],
                    device=_META,
                )
                for dim in widths
            }
        )
        sizes = [sum(table.dim * table.features for table in pooled), *dense]
        layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.over = nn.Sequential(*layers) if pooled else nn.Sequential()

    def forward(self, batch: Batch) -> list[torch.Tensor]:
        """(b, columns) of pooled tables first, if there are any; then (lookups, columns) of each sequence feature."""
        looked_up = {path: self.get_submodule(path)(features) for path, features in batch.items()}
        pooled = [looked_up[POOLED].values()] if POOLED in looked_up else []
        sequences = [its for path, its in looked_up.items() if path != POOLED]
        return pooled + [one.values() for its in sequences for one in its.values()]

    def loss(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """A number that every output has a part in."""
        first, *rest = outputs
        return torch.stack([self.over(first).square().mean(), *(one.square().mean() for one in rest)]).sum()


def _config(kind: type, table: Table) -> EmbeddingBagConfig | EmbeddingConfig:
    config: EmbeddingBagConfig | EmbeddingConfig = kind(
        name=table.name,
        num_embeddings=table.rows,
        embedding_dim=table.dim,
        feature_names=_features_of(table),
        data_type=_TYPES[table.bytes_per_element],
    )
    return config


def _features_of(table: Table) -> list[str]:
    return [f"{table.name}_feature{number}" for number in range(table.features)]


def batches(
    tables: Sequence[Table], batch_size: int, rank: int, size: int, seed: int, device: torch.device
) -> list[Batch]:
    """Some batches, of which this rank's samples; the seed fixes what all ranks draw."""
    return [share_of(batch, rank, size) for batch in drawn_batches(tables, batch_size, seed, device)]


def drawn_batches(tables: Sequence[Table], batch_size: int, seed: int, device: torch.device) -> list[Batch]:
    """Some batches of all samples; the same rows are popular in all of them, as in training."""
    generator = torch.Generator(device).manual_seed(seed)
    popular = [PopularRows.of(table, batch_size, device) for table in tables]
    return [_batch(tables, popular, batch_size, generator) for _ in range(_BATCHES)]


def _batch(
    tables: Sequence[Table], popular: Sequence[PopularRows], batch_size: int, generator: torch.Generator
) -> Batch:
    paths = modules_of(tables)
    parts: dict[str, list[tuple[list[str], torch.Tensor, torch.Tensor]]] = {path: [] for path in paths.values()}
    for table, rows in zip(tables, popular, strict=True):
        indices, lengths = popular_lookups(table, batch_size, rows, generator)
        parts[paths[table.name]].append((_features_of(table), indices, lengths.to(torch.int32)))
    return {
        path: KeyedJaggedTensor(
            [name for names, *_ in its for name in names],
            torch.cat([values for _, values, _ in its]),
            lengths=torch.cat([n for *_, n in its]),
        )
        for path, its in parts.items()
    }


def share_of(batch: Batch, rank: int, size: int) -> Batch:
    """One rank's equal part of a batch's samples."""
    return {path: _share(features, rank, size) for path, features in batch.items()}


def _share(features: KeyedJaggedTensor, rank: int, size: int) -> KeyedJaggedTensor:
    lengths = features.lengths()
    each = features.stride() // size
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    firsts = range(rank * each, len(lengths), features.stride())
    values = torch.cat([features.values()[ends[first] : ends[first + each]] for first in firsts])
    return KeyedJaggedTensor(
        features.keys(), values, lengths=torch.cat([lengths[first : first + each] for first in firsts])
    )
