"""Features of table shards: the numbers from which compute models predict kernel times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard.cost.loads import Loads
from neuroshard.layouts import are
from neuroshard.plumbing.arrays import BoolArray, FloatArray
from neuroshard.plumbing.errors import UserError, check_name
from neuroshard.tables.reuse import MEAN_COUNTS
from neuroshard.tables.table import NUM_REUSE_BINS
from neuroshard.words.collective import ELEMENT_BYTES

_REUSE_NAMES = tuple(f"reuse_{i}" for i in range(NUM_REUSE_BINS))
_BYTES_PER_MIB = 1 << 20
_LANES = (8, 16, 32)
_LOG = "log_"
DIM = "log_dim"
_EITHER_WAY = ("log_unique_rows", "half_precision")


def _paper(loads: Loads) -> FloatArray:
    plain = np.stack([loads.dim, loads.rows, loads.pooling_factor, loads.size_bytes / _BYTES_PER_MIB], axis=1)
    return np.concatenate([plain, loads.reuse], axis=1)


def _paper_batch(loads: Loads) -> FloatArray:
    return np.concatenate([_paper(loads), loads.samples[:, None]], axis=1)


def _pooled(loads: Loads) -> FloatArray:
    """Return the mean number of lookups per sample for each of n shards (`loads`), (n,). For a row-wise shard, the
    lookups of the whole batch count as at least one lookup, so that the result is never 0. The callers take the
    logarithm of the result, and the logarithm of 0 does not exist.
    """
    in_rows = are(loads, lambda layout: layout.blocks)
    return np.where(in_rows, np.maximum(loads.lookups, 1) / loads.samples, loads.pooling_factor)


def _log(loads: Loads) -> FloatArray:
    plain = np.log2(np.stack([loads.dim, loads.rows, _pooled(loads), loads.size_bytes], axis=1))
    return np.concatenate([plain, plain[:, :1] + plain[:, 2:3], loads.reuse], axis=1)


def _physical(loads: Loads) -> FloatArray:
    lookups = np.maximum(loads.lookups, 1)
    unique = np.clip(lookups / (loads.reuse @ MEAN_COUNTS), 1, np.minimum(loads.rows, lookups))
    row_bytes = loads.dim * loads.bytes_per_element
    quantities = np.stack(
        [
            loads.dim, loads.rows, _pooled(loads), loads.samples, lookups, unique, row_bytes,
            lookups * row_bytes, unique * row_bytes, loads.size_bytes, np.maximum(loads.outputs, 1) * loads.dim,
        ],
        axis=1,
    )  # fmt: skip
    aligned = np.stack([loads.dim % lanes == 0 for lanes in _LANES], axis=1)
    return np.concatenate([np.log2(quantities), aligned], axis=1)


def _physical_reuse(loads: Loads) -> FloatArray:
    lookups = loads.reuse * MEAN_COUNTS  # mean lookups of a unique row in each bin
    of_a_lookup = (lookups @ MEAN_COUNTS) / lookups.sum(axis=1)
    half = loads.bytes_per_element < ELEMENT_BYTES
    return np.concatenate([_physical(loads), np.log2(of_a_lookup)[:, None], half[:, None]], axis=1)


def _physical_bags(loads: Loads) -> FloatArray:
    return np.concatenate([_physical_reuse(loads), np.log2(np.maximum(loads.outputs, 1))[:, None]], axis=1)


@dataclass(frozen=True)
class FeatureSet:
    """A named set of features, which are numbers that describe a table shard to a compute model.
    Bundles store the name of the set and the names of the features.

    "paper": dim, rows, pooling factor, size in MiB and reuse histogram as they are (NeuroShard, section 3.2).
    "log": binary logs of the first four, the log of the columns read for a sample (dim x pooling factor), histogram.
    "physical": binary logs of the amounts that a kernel moves in a batch, which depend on the batch size: lookups,
        unique rows, and their bytes; and 1 if the width fills vector registers. Of the reuse histogram only the number
        of unique rows: with the whole histogram, a network learns the training tables by heart.
    "physical_reuse": "physical", and the binary log of the number of times that the row of a lookup is looked up in a
        batch, on average over all lookups: it shows how many lookups hit caches; and 1 if weights have half precision,
        which CPUs must convert.
    "physical_bags": "physical_reuse", and the binary log of the number of outputs of any width: GPUs need a fixed time
        for each bag of lookups.
    "paper_batch": "paper" and the batch size, for comparison.

    Raises:
        UserError: no feature set has the name.
    """

    name: str

    def __post_init__(self) -> None:
        check_name("feature set", self.name, _FEATURES)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the features in this set, (F,)."""
        return _FEATURES[self.name][0]

    @classmethod
    def checked(cls, name: str, columns: Sequence[str]) -> "FeatureSet":
        """Return the feature set called `name`, after checking that the features of this set are `columns`, (F,), in
        this version of NeuroShard.

        Raises:
            UserError: no feature set has the name, or the set has other features in this version.
        """
        features = cls(name)
        if tuple(columns) != features.columns:
            raise UserError(
                "features-of-other-version",
                f"the feature set {name!r} of the model has other features ({', '.join(columns)}) than in this "
                "version of neuroshard",
                limit=f"in this version the features of {name!r} are {', '.join(features.columns)}",
                remedy="Make the model again with `neuroshard pretrain`",
            )
        return features

    @property
    def signs(self) -> tuple[int, ...]:
        """The direction in which each feature changes the cost, (F,): 1 if a larger value raises the cost, -1 if a
        larger value lowers the cost, and 0 if both are possible.

        1: amounts that are moved raise the cost; -1: alignment lowers the cost; 0: the precision, the distribution of
        the lookups and the number of unique rows may raise or lower the cost. Rows that are looked up often are in
        caches, but the updates of one row must wait for each other.
        """
        return tuple(_sign(column) for column in self.columns)

    @property
    def adds_up(self) -> BoolArray:
        """For each of F features, True if the feature is the logarithm of a size or a count, such as bytes or lookups,
        (F,). Sizes and counts of several tables can be added up.

        False for features of the distribution of lookups.
        """
        return np.array([column.startswith(_LOG) and not _of_distribution(column) for column in self.columns])

    def amounts(self, values: FloatArray) -> FloatArray:
        """Return a copy of the features of n shards, `values` (n, F), in which each binary logarithm is replaced by its
        amount: a feature x such as log_bytes_read becomes 2^x. All other features are unchanged.
        """
        logs = [column.startswith(_LOG) for column in self.columns]
        amounts = values.copy()
        amounts[:, logs] = np.exp2(values[:, logs])
        return amounts

    @property
    def sees_batch_size(self) -> bool:
        """True if the batch size, or its logarithm, is one of the features. Then one model can predict for several
        batch sizes.
        """
        return not {"batch_size", "log_batch_size"}.isdisjoint(self.columns)

    def __call__(self, loads: Loads) -> FloatArray:
        """Return the features of each of n shards (`loads`), (n, F)."""
        return _FEATURES[self.name][1](loads)


def _sign(column: str) -> int:
    if column.startswith("multiple_of_"):
        return -1
    return 0 if _of_distribution(column) or column in _EITHER_WAY else 1


def _of_distribution(column: str) -> bool:
    return "reuse" in column


_PAPER = ("dim", "rows", "pooling_factor", "size_mib", *_REUSE_NAMES)
_LOGS = (DIM, "log_rows", "log_pooling_factor", "log_size_bytes", "log_columns_read", *_REUSE_NAMES)
_PHYSICAL = (
    DIM,
    "log_rows",
    "log_pooling_factor",
    "log_batch_size",
    "log_lookups",
    "log_unique_rows",
    "log_row_bytes",
    "log_bytes_read",
    "log_unique_bytes",
    "log_size_bytes",
    "log_outputs",
    *(f"multiple_of_{lanes}" for lanes in _LANES),
)
_PHYSICAL_REUSE = (*_PHYSICAL, "log_reuse_of_a_lookup", "half_precision")
_FEATURES: dict[
    str, tuple[tuple[str, ...], Callable[[Loads], FloatArray]]
] = {  # by name: names of the features, and the function that computes them
    "paper": (_PAPER, _paper),
    "paper_batch": ((*_PAPER, "batch_size"), _paper_batch),
    "log": (_LOGS, _log),
    "physical": (_PHYSICAL, _physical),
    "physical_reuse": (_PHYSICAL_REUSE, _physical_reuse),
    "physical_bags": ((*_PHYSICAL_REUSE, "log_bags"), _physical_bags),
}
