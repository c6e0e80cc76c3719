"""A model of every kind of tables, to train: pooled, of several features, position-weighted, sequences."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.datasets.utils import Batch
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

from neuroshard.tables import Table
from neuroshard.tables.reuse import zipf_reuse

_META = torch.device("meta")
_WEIGHTED = "weighted"  # names of such tables begin so


def whole_tables(batch_size: int, dim: int) -> tuple[Table, ...]:
    """Eight pooled tables, four that three features share, four position-weighted ones, four sequence tables."""
    rng = np.random.default_rng(0)

    def made(name: str, lookups: int, **fields: int) -> Table:
        rows = int(10 ** rng.uniform(3, 5.5))
        return Table(name, rows, dim, lookups, zipf_reuse(rows, batch_size * lookups), **fields)

    pooled = [made(f"pooled{i}", int(rng.integers(1, 20))) for i in range(8)]
    shared = [made(f"shared{i}", 3 * int(rng.integers(1, 6)), features=3) for i in range(4)]
    weighted = [made(f"{_WEIGHTED}{i}", int(rng.integers(4, 12))) for i in range(4)]
    sequences = [made(f"sequence{i}", int(rng.integers(5, 20)), pooled=False) for i in range(4)]
    return (*pooled, *shared, *weighted, *sequences)


def is_weighted(table: Table) -> bool:
    """Whether lookups of a table are weighted by their positions."""
    return table.name.startswith(_WEIGHTED)


def features_of(table: Table) -> list[str]:
    """The features that read a table."""
    return [f"{table.name}_f{number}" for number in range(table.features)]


def lookups_of(table: Table) -> int:
    """What every sample looks up for each of a table's features."""
    return max(round(table.pooling_factor / table.features), 1)


class WholeModel(nn.Module):
    """Collections of each kind under small layers; sequences are averaged. It is asked and gives what DLRMTrain is."""

    def __init__(self, tables: Sequence[Table], num_dense: int, dim: int) -> None:
        super().__init__()
        weighted = [table for table in tables if is_weighted(table)]
        pooled = [table for table in tables if table.pooled and not is_weighted(table)]
        sequences = [table for table in tables if not table.pooled]
        processors = {
            feature: PositionWeightedModule(lookups_of(table), device=_META)
            for table in weighted
            for feature in features_of(table)
        }
        self.pooled = EmbeddingBagCollection(_configs(EmbeddingBagConfig, pooled), device=_META)
        self.weighted = FeatureProcessedEmbeddingBagCollection(
            EmbeddingBagCollection(_configs(EmbeddingBagConfig, weighted), is_weighted=True, device=_META), processors
        )
        self.sequences = EmbeddingCollection(_configs(EmbeddingConfig, sequences), device=_META)
        self._keys = [[feature for table in kind for feature in features_of(table)] for kind in (pooled, weighted)]
        self._keys.append([feature for table in sequences for feature in features_of(table)])
        self.dense = nn.Linear(num_dense, dim)
        self.over = nn.Sequential(nn.Linear((1 + sum(map(len, self._keys))) * dim, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch: Batch) -> tuple[torch.Tensor, None]:
        """The loss of a batch whose features come in the order of the tables, and nothing else."""
        given = batch.sparse_features.split([len(keys) for keys in self._keys])
        pooled, weighted, sequences = self.pooled(given[0]), self.weighted(given[1]), self.sequences(given[2])
        parts = [self.dense(batch.dense_features)]
        parts += [pooled[key] for key in self._keys[0]] + [weighted[key] for key in self._keys[1]]
        for key in self._keys[2]:  # all samples look up as many
            rows = sequences[key].values()
            parts.append(rows.view(len(batch.labels), -1, rows.shape[1]).mean(dim=1))
        clicked = self.over(torch.cat(parts, dim=1)).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(clicked, batch.labels.float()), None


def _configs(kind: type, tables: Sequence[Table]) -> list:
    return [kind(name=t.name, num_embeddings=t.rows, embedding_dim=t.dim, feature_names=features_of(t)) for t in tables]
