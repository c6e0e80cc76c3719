"""Cost models of kernel times (compute models) that are fitted to measurements.

`AdditiveCompute` adds up a cost of each table and corrects the sum; `NeuralCompute` is the papers' network;
`RegressionCompute` is a linear regression; `ComputeEnsemble` is the mean of several models.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.models.features import FeatureSet
from neuroshard.models.interface import NarrowCalls, ReluHead, SumModel
from neuroshard.models.stored import (
    Mlp,
    Normaliser,
    Offset,
    Scale,
    Stored,
    TensorField,
    Tensors,
    check_bounded,
    tensors_of,
    within,
)
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.plumbing.schema import Dim, parse

_MAX_EXPONENT = 20.0  # tables far outside the training range must not overflow
_MOST_MEMBERS = 1000  # maximum number of models in an ensemble
_LARGEST_WEIGHT = 1e9  # ms; with it, sums over tables stay finite in fp32, whatever the amounts


@dataclass(frozen=True)
class AdditiveCompute(Stored, SumModel):
    """Additive model of kernel times: it adds up the costs of the tables in a kernel call, plus corrections for
    interactions between the tables. Each table has a vector. A head with one hidden layer computes the corrections from
    the sum of the vectors.

    Each table has 1 + K amounts. An amount is a weighted sum of the bytes and lookups that a kernel moves
    (`FeatureSet.amounts`), which extrapolates beyond the samples, plus a number whose logarithm the network gives,
    which covers everything that is not a sum. The first amount is the table's own cost: a kernel that takes tables one
    after the other costs the sum of its tables' costs, over orders of magnitude. The other K amounts are interactions
    between tables: they are summed over a set, and each sum adds to the cost from a limit on (if its weight is
    positive) or up to a limit (if negative). So a set never costs less than a subset. The weights are such that a table
    that makes a kernel move more never costs less (pre-training ensures this).

    Attributes:
        moved: (F, 1 + K) each amount for a unit that is moved; not negative.
        bias, weight: (K,) parameters of the head; `offset` is the fixed cost of a call. All are multiples of
            `scale_ms`.
    """

    kind: ClassVar[str] = "additive"

    features: FeatureSet
    normaliser: Annotated[Normaliser, TensorField("")]
    network: Annotated[Mlp, TensorField("network")]
    moved: Annotated[Float32Array, TensorField("moved", np.float32, 2)]
    bias: Annotated[Float32Array, TensorField("head.bias")]
    weight: Annotated[Float32Array, TensorField("head.weight")]
    offset: Offset
    scale_ms: Scale

    def embed(self, loads: Loads) -> Float32Array:
        """Return a vector for each of n shards (`loads`), (n, 1 + K), which `head` adds up over the shards of a kernel
        call. The first element is the cost of the shard by itself. From the sums of the K other elements, `head`
        computes the interactions between shards.

        Amounts that add to the cost only up to a limit are negative.
        """
        features = self.features(loads)
        outputs = np.exp(np.minimum(self.network(self.normaliser(features)), _MAX_EXPONENT))
        amounts: Float32Array = outputs + (self.features.amounts(features) @ self.moved).astype(np.float32)
        amounts[:, 1:] *= np.where(self.weight < 0, np.float32(-1), np.float32(1))
        return amounts

    @property
    def head(self) -> ReluHead:
        """The head that computes the time of a kernel call in ms from the sum of the vectors of all shards in the call.
        The first element of the sum is the sum of the shards' own costs; the head uses this element unchanged. The K
        other elements pass through the hidden layer, which computes corrections for interactions between shards.
        """
        bias = np.concatenate([np.zeros(1, np.float32), self.bias])
        weight = np.concatenate([np.ones(1, np.float32), self.weight])
        return ReluHead(bias, weight, self.offset, self.scale_ms)

    def check(self) -> None:
        """Raise ValueError if the network does not fit the features or the head, or if costs could overflow."""
        widths = self.network.widths
        fits = widths[0] == len(self.features.columns) and widths[-1] == 1 + len(self.bias) == 1 + len(self.weight)
        if not fits:
            raise ValueError(f"the network has widths {widths}, which do not fit the features or the head")
        if self.moved.shape != (widths[0], widths[-1]) or (self.moved < 0).any() or self.moved.max() > _LARGEST_WEIGHT:
            raise ValueError(f"each feature needs a weight from 0 to {_LARGEST_WEIGHT:g} for the bytes that are moved")
        if max(np.abs(self.bias).max(), np.abs(self.weight).max()) > _LARGEST_WEIGHT:
            raise ValueError(f"the magnitude of a weight of the head is above {_LARGEST_WEIGHT:g}")
        check_bounded(self.normaliser, self.network)


@dataclass(frozen=True)
class ByWidestCompute(AdditiveCompute):
    """Additive model that also predicts how much faster a kernel call is if all of its tables are narrow.
    The model has several limits of the table width (`NarrowCalls`). For each limit, a call saves a share of its cost if
    no table in the call is wider than the limit.

    Attributes:
        kernel_widths: (W,) rising limits.
        saved: (W,) share of the own costs that is saved if no table is wider than each limit.
    """

    kind: ClassVar[str] = "additive_by_widest"

    kernel_widths: tuple[Dim, ...]
    saved: Annotated[Float32Array, TensorField("saved")]

    def embed(self, loads: Loads) -> Float32Array:
        """Return a vector for each of n shards (`loads`), (n, 1 + K + W), which `head` adds up over the shards of a
        kernel call. The first 1 + K numbers of a vector are the vector of `AdditiveCompute`. Each of the last W numbers
        belongs to one limit of the table width, such as 64 columns: the cost that the shard saves if no table in the
        call is wider than the limit.

        The savings of several limits add up. If the shard itself is wider than the limit, the saving is a large
        negative number.
        """
        amounts = super().embed(loads)
        return np.concatenate([amounts, self._narrow.saved_of(amounts[:, 0], loads.dim)], axis=1)

    @property
    def head(self) -> ReluHead:
        """The head that computes the time of a kernel call: the time that `AdditiveCompute` predicts, minus the time
        that the call saves if all tables in the call are narrow.
        """
        return self._narrow.less_saved(super().head)

    @property
    def _narrow(self) -> NarrowCalls:
        return NarrowCalls(self.kernel_widths, self.saved)

    def check(self) -> None:
        """Raise ValueError if the additive model, `kernel_widths` or `saved` is invalid.
        The limits in `kernel_widths` must rise, such as 32, 64, 128 columns. `saved` must have one share for each
        limit, at least 0 and below 1.
        """
        super().check()
        widths, saved = np.array(self.kernel_widths), self.saved
        if saved.shape != widths.shape or not ((saved >= 0) & (saved < 1)).all() or not (np.diff(widths) > 0).all():
            raise ValueError("the widths of narrow calls do not rise, or their savings are not shares from 0 to 1")


@dataclass(frozen=True)
class EnsembleSettings:
    """Settings of `ComputeEnsemble` in a bundle: the settings of each member of the ensemble, as in `bundle.json`."""

    members: Annotated[tuple[dict[str, Any], ...], Meta(min_length=1, max_length=_MOST_MEMBERS)]


@dataclass(frozen=True)
class ComputeEnsemble(Stored, SumModel):
    """Ensemble that predicts the mean of several additive models, which were fitted from different initial weights.
    Because each member is a sum over tables, the mean of the members is also a sum over tables.

    The vector of a load is the concatenation of the members' vectors. The head weights each member's part equally.
    """

    kind: ClassVar[str] = "ensemble"

    members: tuple[AdditiveCompute, ...]

    def embed(self, loads: Loads) -> Float32Array:
        """Return a vector for each of n shards (`loads`), (n, H).
        The vector of a shard consists of the vectors that all members of the ensemble compute for the shard, one after
        the other. H is the total length of these vectors.
        """
        return np.concatenate([member.embed(loads) for member in self.members], axis=1)

    @cached_property
    def head(self) -> ReluHead:
        """The head that computes the mean of the times that the members predict, in ms.
        The head concatenates the biases and the weights of all members' heads. The weights are scaled such that each
        member counts equally.
        """
        heads = [member.head for member in self.members]
        share = 1 / len(heads)
        return ReluHead(
            np.concatenate([head.bias for head in heads]),
            np.concatenate([head.weight * np.float32(head.scale_ms * share) for head in heads]),
            sum(head.offset * head.scale_ms for head in heads) * share,
            1.0,
        )

    def spread_ms(self, sets: LoadSets) -> FloatArray:
        """Return the standard deviation of the members' predictions for each of B kernel calls, (B,) ms."""
        spread: FloatArray = np.std([member.predict(sets) for member in self.members], axis=0)
        return spread

    def settings(self) -> dict[str, Any]:
        """Return the settings of the model, which are all fields that are not tensors, as values that
        JSON can store.
        """
        return {"members": [member.settings() for member in self.members]}

    def tensors(self) -> Tensors:
        """Return the tensors of all members; each name begins with the number of the member."""
        return tensors_of({str(number): member for number, member in enumerate(self.members)})

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "ComputeEnsemble":
        """Return the ensemble that was stored as `settings` and `tensors`, which are the results of the ensemble's
        methods `settings()` and `tensors()`.
        """
        members = parse(settings, EnsembleSettings, "settings").members
        kinds = (ByWidestCompute if "kernel_widths" in member else AdditiveCompute for member in members)
        each = enumerate(zip(kinds, members, strict=True))
        return cls(tuple(kind.restored(member, within(tensors, str(number))) for number, (kind, member) in each))


@dataclass(frozen=True)
class RegressionCompute(Stored, SumModel):
    """Linear regression of kernel times: a weighted sum of features such as lookups and bytes, added up over the tables
    in a kernel call, plus a fixed cost per call.

    Attributes:
        weight: (F,) ms for a unit of each amount (`FeatureSet.amounts`); not negative, so that a table that moves more
            data never costs less.
        offset_ms: (1,) fixed ms of a call; a cost below 0 is 0.
    """

    kind: ClassVar[str] = "linear"

    features: FeatureSet
    weight: Annotated[FloatArray, TensorField("weight", np.float64)]
    offset_ms: Annotated[FloatArray, TensorField("offset_ms", np.float64)]

    def embed(self, loads: Loads) -> Float32Array:
        """Return the cost of each of n shards (`loads`) in ms, as vectors with one element, (n, 1)."""
        cost = self.features.amounts(self.features(loads)) @ self.weight
        return cost[:, None].astype(np.float32)

    @property
    def head(self) -> ReluHead:
        """The head that computes the time of a kernel call: the sum of the costs of all shards in the call, plus a
        fixed cost per call.
        """
        return ReluHead(self.offset_ms.astype(np.float32), np.ones(1, np.float32), 0.0, 1.0)

    def check(self) -> None:
        """Raise ValueError if the weights do not fit the features or are negative, or if costs could overflow."""
        weight, offset_ms = self.weight, self.offset_ms
        if weight.shape != (len(self.features.columns),) or offset_ms.shape != (1,):
            raise ValueError(f"{len(weight)} weights and {len(offset_ms)} offsets do not fit the features")
        if (weight < 0).any() or max(weight.max(), np.abs(offset_ms).max()) > _LARGEST_WEIGHT:
            raise ValueError(
                f"a weight is not between 0 and {_LARGEST_WEIGHT:g}, or the magnitude of the offset is larger"
            )


@dataclass(frozen=True)
class NeuralCompute(Stored, SumModel):
    """The compute model of the papers (NeuroShard, section 3.2): a network encodes each table, the encodings are
    summed, and a head network with one hidden layer predicts the time from the sum.

    The outputs of the head network are multiples of `scale_ms`. A table's vector is the output of the table network,
    multiplied with the first layer of the head network. The sum of such products is the product with the sum, so the
    search multiplies once per table instead of once per candidate.
    """

    features: FeatureSet
    normaliser: Annotated[Normaliser, TensorField("")]
    table_network: Annotated[Mlp, TensorField("table")]
    head_network: Annotated[Mlp, TensorField("head")]
    scale_ms: Scale

    kind: ClassVar[str] = "paper"

    def check(self) -> None:
        """Raise ValueError if the networks do not fit the features or each other, or if costs could overflow."""
        table, head = self.table_network.widths, self.head_network.widths
        fits = table[0] == len(self.features.columns) and table[-1] == head[0]
        if not fits or len(head) != 3 or head[-1] != 1:
            raise ValueError(f"the networks have widths {table} and {head}, which do not fit the features")
        check_bounded(self.normaliser, self.table_network, self.head_network)

    def embed(self, loads: Loads) -> Float32Array:
        """Return a vector for each of n shards (`loads`), (n, H): the output of the table network, multiplied by the
        first layer of the head network. H is the width of this layer.
        """
        embedded = self.table_network(self.normaliser(self.features(loads)))
        return embedded @ self.head_network.weights[0]

    @property
    def head(self) -> ReluHead:
        """The head that computes the time of a kernel call from the sum of the vectors of all shards in the call.
        The head is the paper's head network without the multiplication by the first weight matrix, because `embed` has
        already multiplied the vector of each shard by this matrix.
        """
        weight = np.ascontiguousarray(self.head_network.weights[1][:, 0])
        return ReluHead(self.head_network.biases[0], weight, float(self.head_network.biases[1][0]), self.scale_ms)
