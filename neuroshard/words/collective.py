"""The collective operations by which devices exchange data, their names, and the data types of exchanged elements."""

from enum import IntEnum

from neuroshard.plumbing.errors import check_name
from neuroshard.words.placement import Word

ELEMENT_BYTES = 4  # embeddings and gradients are exchanged as fp32 unless a model's exchange_dtype differs
INDEX_BYTES = 8  # indices, and the number of indices of each sample and feature, are exchanged as 64-bit numbers


class Collective(IntEnum):
    """A collective operation by which devices exchange data, such as an all-to-all. The value of each member is an
    index for arrays with an axis of collectives. For example, ALL_TO_ALL is 0. So in an array (B, D, C) with the bytes
    that each device sends into each of C collectives, the bytes of all-to-alls are at index 0 of the last axis.

    Attributes:
        ALL_TO_ALL: output dist of table-wise and column-wise tables. Pooled embeddings go to the devices of their
            samples, and their gradients come back. Sequence tables use an all-to-all for one embedding per lookup, also
            if they are row-wise, because nothing is summed up.
        REDUCE_SCATTER: output dist of row-wise tables on all devices. Every device has a partial sum of every pooled
            embedding; the devices of the samples get the totals. In the backward pass, an all-gather sends all
            gradients to every device.
        HOST_REDUCE_SCATTER: the reduce-scatter among the devices of each host, for tables whose rows are on one host.
        HOST_ALL_TO_ALL: for tables whose rows are on one host, after HOST_REDUCE_SCATTER: each device sends its sums to
            the devices with the same place on the other hosts. In the backward pass, the gradients come back in the
            same way before they are gathered on the host.
        ALL_REDUCE: for data-parallel tables: in the backward pass, all devices add up the gradients of all weights.
        INPUT: input dist: each device receives the indices and lengths for its shards, before all other exchanges.
            Data-parallel tables need no input dist.
    """

    ALL_TO_ALL = 0
    REDUCE_SCATTER = 1
    HOST_REDUCE_SCATTER = 2
    HOST_ALL_TO_ALL = 3
    ALL_REDUCE = 4
    INPUT = 5


IN_STEP = frozenset(Collective) - {Collective.INPUT}  # collectives for embeddings and gradients
BACK_ONLY = (Collective.ALL_REDUCE,)  # collectives in the backward pass only
IN_FULL_PRECISION = (Collective.ALL_REDUCE, Collective.INPUT)  # gradients of weights stay in fp32; indices are integers
BETWEEN_HOSTS = (Collective.HOST_REDUCE_SCATTER, Collective.HOST_ALL_TO_ALL)
ADDED_UP = (Collective.REDUCE_SCATTER, Collective.HOST_REDUCE_SCATTER)  # sums are formed at the destination


class Precision(Word):
    """The data type of the embeddings and gradients that devices exchange."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of this data type, such as 4 for fp32."""
        return {Precision.FP32: 4, Precision.FP16: 2, Precision.BF16: 2}.get(self, 1)


def name_of(collective: Collective) -> str:
    """Return the name of a collective in settings and records, such as "all_to_all"."""
    return collective.name.lower()


def collective_named(name: str) -> Collective:
    """Return the collective operation with the name `name`, such as "all_to_all".

    Raises:
        UserError: no collective has the name.
    """
    check_name("collective", name, _NAMED)
    return _NAMED[name]


_NAMED = {name_of(collective): collective for collective in Collective}
