"""The collectives by which devices exchange, their names, and the bytes of what goes through them."""

from enum import IntEnum

from neuroshard.plumbing.errors import check_name
from neuroshard.words.placement import Word

ELEMENT_BYTES = 4  # pooled embeddings and gradients travel as fp32
INDEX_BYTES = 8  # so do indices, and the number of them for each sample and feature, as 64 bits


class Collective(IntEnum):
    """How devices exchange, by its place on the last axis of `Traffic.size_bytes`.

    Attributes:
        ALL_TO_ALL: columns: pooled embeddings go to the devices of their samples, their gradients come back. So do
            those of sequence tables, a row for each lookup, in columns and in rows: nothing of them is added up.
        REDUCE_SCATTER: blocks of rows on all devices: every device has a partial sum of every pooled embedding; these
            are added up on the devices of their samples. On the way back an all-gather brings all gradients to every
            device.
        HOST_REDUCE_SCATTER: the same among the devices of each host, of blocks of rows on those of one host.
        HOST_ALL_TO_ALL: what they have then added up goes to other hosts, each device's to those with its place there;
            gradients come back so, before they are gathered.
        ALL_REDUCE: copies: gradients of all their weights are added up everywhere; on the way back only.
        INPUT: indices and lengths that come to a device for its shards, before anything else; none for copies.
    """

    ALL_TO_ALL = 0
    REDUCE_SCATTER = 1
    HOST_REDUCE_SCATTER = 2
    HOST_ALL_TO_ALL = 3
    ALL_REDUCE = 4
    INPUT = 5


IN_STEP = frozenset(Collective) - {Collective.INPUT}  # that embeddings and gradients go by
BACK_ONLY = (Collective.ALL_REDUCE,)
BETWEEN_HOSTS = (Collective.HOST_REDUCE_SCATTER, Collective.HOST_ALL_TO_ALL)
ADDED_UP = (Collective.REDUCE_SCATTER, Collective.HOST_REDUCE_SCATTER)  # what devices give is added up where it goes


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
    """Name a collective as settings and records do."""
    return collective.name.lower()


def collective_named(name: str) -> Collective:
    """Find the collective of that name.

    Raises:
        UserError: there is none.
    """
    check_name("collective", name, _NAMED)
    return _NAMED[name]


_NAMED = {name_of(collective): collective for collective in Collective}
