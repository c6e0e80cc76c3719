"""Lookups of one batch, read from NumPy arrays, torch tensors on any device, or lists."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import shown

Splits = Literal["offsets", "lengths"]
_CHUNK = 1 << 14  # number of lookups that are counted together, with temporary arrays of a few MiB


@dataclass(frozen=True, eq=False)
class Lookups:
    """The lookups of one feature in a batch of B samples.

    Attributes:
        indices: (L,) indices of rows, whole numbers of any type.
        offsets: (B + 1,) splits of the indices: sample i looks up `indices[offsets[i] : offsets[i + 1]]`.
    """

    indices: NDArray[Any]
    offsets: IntArray

    @classmethod
    def of(cls, indices: object, splits: object, which: Splits, rows: int, where: str) -> "Lookups":
        """Check the lookups of one feature in a batch of B samples, and return these lookups as a `Lookups` object.
        `indices` (L,) are the looked up rows of all samples, one sample after another. `splits` divides the indices
        between the samples: `splits` has B + 1 offsets if `which` is "offsets", or B lengths if `which` is "lengths".

        Args:
            indices: (L,) indices of rows.
            splits: (B + 1,) offsets from 0 to L, or (B,) lengths with the sum L.
            which: whether `splits` are "offsets" or "lengths".
            rows: number of rows of the table.
            where: place of the lookups, with which errors begin.

        Raises:
            UserError: the values are not whole numbers or contradict each other, or an index is outside 0..rows-1.
        """
        looked_up, numbers = _whole_numbers(indices, "indices", where), _whole_numbers(splits, which, where)
        # Lengths out of this range are refused first, because their sum could overflow.
        possible = not len(numbers) or (numbers.min() >= 0 and numbers.max() <= len(looked_up))
        plain = numbers.astype(np.int64)
        offsets = plain if which == "offsets" else np.concatenate([np.zeros(1, dtype=np.int64), plain.cumsum()])
        rise = len(offsets) and offsets[0] == 0 and offsets[-1] == len(looked_up) and (np.diff(offsets) >= 0).all()
        if not possible or not rise:
            wanted = "begin with 0, not decrease, and end with" if which == "offsets" else "be 0 or more, and sum to"
            raise UserError(
                "lookups-splits-mismatch",
                f"{which} do not divide the {number_of(len(looked_up), 'index', 'indices')} into samples",
                where=where,
                limit=f"{which} must {wanted} {len(looked_up)}, the number of indices",
                remedy=f"Give the {which} of the same batch as the indices",
            )
        for index in (int(looked_up.min()), int(looked_up.max())) if len(looked_up) else ():
            if not 0 <= index < rows:
                raise UserError(
                    "lookups-index-outside",
                    f"index {index} is not a row of the table",
                    where=where,
                    limit=f"the table has rows 0 to {rows - 1}",
                    remedy="Correct the index or the table's number of rows",
                )
        return cls(looked_up, offsets)

    @property
    def samples(self) -> int:
        """The number of samples in the batch, B."""
        return len(self.offsets) - 1

    def chunks(self, first: int, last: int) -> Iterator[IntArray]:
        """Yield arrays of the row indices that the samples `first` to `last` - 1 look up, at most 16,384 per array."""
        start, end = int(self.offsets[first]), int(self.offsets[last])
        for begin in range(start, end, _CHUNK):
            yield self.indices[begin : min(begin + _CHUNK, end)].astype(np.int64)


def _whole_numbers(values: object, what: str, where: str) -> NDArray[Any]:
    """Convert `values` to a one-dimensional array of whole numbers; a tensor on a GPU is copied to the CPU first.

    Raises:
        UserError: the values are not a one-dimensional array of whole numbers; `what` is the noun for the values.
    """
    try:
        host: Any = values.detach().cpu() if hasattr(values, "detach") else values
        array = np.asarray(host)
    except (TypeError, ValueError, RuntimeError):  # a dtype unknown to NumPy, a sparse or meta tensor, a ragged list
        raise _not_whole(what, _described(values), where) from None
    if array.ndim == 1 and not array.size:
        return np.zeros(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _not_whole(what, f"{array.dtype} of shape {array.shape}", where)
    return array


def _not_whole(what: str, given: str, where: str) -> UserError:
    """Return the error for indices, offsets or lengths that are not a one-dimensional array of whole numbers."""
    return UserError(
        "lookups-not-whole",
        f"{what} are {given}",
        where=where,
        limit=f"{what} must be a one-dimensional array of whole numbers",
        remedy=f"Convert {what} to a one-dimensional int64 tensor or array",
    )


def _described(values: object) -> str:
    """Return a description of `values` for an error message, such as "a Tensor (torch.int64, torch.strided, cuda:0)".
    If `values` has none of the attributes dtype, layout and device, return a short repr of `values`.
    """
    kinds = [str(getattr(values, name)) for name in ("dtype", "layout", "device") if hasattr(values, name)]
    return f"a {type(values).__name__} ({', '.join(kinds)})" if kinds else shown(values)
