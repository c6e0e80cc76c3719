"""The collectives by which devices exchange, their names, and the bytes of what goes through them."""

from enum import IntEnum

from neuroshard.plumbing.errors import check_name
from neuroshard.words.placement import Word

ELEMENT_BYTES = 4  # pooled embeddings and gradients travel as fp32
INDEX_BYTES = 8  # so do indices, and the number of them for each sample and feature, as 64 bits


class Collective(IntEnum):
    """How devices exchange, by its place on the last axis of `Traffic.size_bytes`.

    Attributes:
        ALL_TO_ALL: for table-wise and column-wise tables. Pooled embeddings go to the devices of their samples, and
            their gradients come back. The embeddings of sequence tables, a row for each lookup, take the same way, also
            if the tables are row-wise: nothing is added up.
        REDUCE_SCATTER: for row-wise tables on all devices. Every device has a partial sum of every pooled embedding;
            the devices of the samples get the totals. In the backward pass an all-gather brings all gradients to every
            device.
        HOST_REDUCE_SCATTER: for tables whose rows are on one host: the reduce-scatter among the devices of each host.
        HOST_ALL_TO_ALL: for tables whose rows are on one host: each device sends the sums of HOST_REDUCE_SCATTER to the
            devices with the same place on the other hosts. The gradients come back this way, before they are gathered.
        ALL_REDUCE: for data-parallel tables. All devices add up the gradients of all weights, in the backward pass.
        INPUT: indices and lengths that come to a device for its shards, before all other exchanges. Data-parallel
            tables need none.
    """

    ALL_TO_ALL = 0
    REDUCE_SCATTER = 1
    HOST_REDUCE_SCATTER = 2
    HOST_ALL_TO_ALL = 3
    ALL_REDUCE = 4
    INPUT = 5


IN_STEP = frozenset(Collective) - {Collective.INPUT}  # that embeddings and gradients go by
BACK_ONLY = (Collective.ALL_REDUCE,)
IN_FULL_PRECISION = (Collective.ALL_REDUCE, Collective.INPUT)  # gradients of weights stay in fp32; indices are integers
BETWEEN_HOSTS = (Collective.HOST_REDUCE_SCATTER, Collective.HOST_ALL_TO_ALL)
ADDED_UP = (Collective.REDUCE_SCATTER, Collective.HOST_REDUCE_SCATTER)  # sums are formed at the destination


class Precision(Word):
    """How an element of an exchange is stored on its way."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"

    @property
    def element_bytes(self) -> int:
        """Bytes of an element; scales of rows, which 8 bits need, are left out."""
        return {Precision.FP32: 4, Precision.FP16: 2, Precision.BF16: 2}.get(self, 1)


def name_of(collective: Collective) -> str:
    """Return the name of a collective in settings and records."""
    return collective.name.lower()


def collective_named(name: str) -> Collective:
    """Find the collective of that name.

    Raises:
        UserError: there is none.
    """
    check_name("collective", name, _NAMED)
    return _NAMED[name]


_NAMED = {name_of(collective): collective for collective in Collective}
