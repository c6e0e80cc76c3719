"""The papers' public data set: `fbgemm_t856_bs65536.pt` or `.pt.gz`.

The file is `torch.save((indices, offsets, lengths))`: lookups of table t for a batch of B samples stand at
`indices[offsets[t * B] : offsets[(t + 1) * B]]`, and `lengths` is (T, B). It holds neither rows nor dims: rows are
taken as the largest index + 1, as the data set's users do; `dim` is the caller's.
"""

import gzip
import pickle
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch

from neuroshard.arrays import IntArray
from neuroshard.errors import UserError
from neuroshard.tables.reuse import histogram
from neuroshard.tables.table import Table

_COPY_BYTES = 1 << 24


def dlrm(path: str, dim: int = 16, bytes_per_element: int = 4, max_tables: int | None = None) -> tuple[Table, ...]:
    """The tables of the file at `path`, read one table at a time through a memory map.

    Raises:
        UserError: no such file, or not of the published format.
    """
    source = Path(path)
    if not source.is_file():
        raise UserError(f"no DLRM data set at {source}; give tables.path=FILE.pt or FILE.pt.gz")
    with _uncompressed(source) as file:
        indices, offsets, lengths = _load(file, source)
        return tuple(_tables(indices, offsets, lengths, dim, bytes_per_element, max_tables, source))


@contextmanager
def _uncompressed(source: Path) -> Iterator[Path]:
    """A path to the uncompressed file: the file itself, or a temporary copy that goes away."""
    if source.suffix != ".gz":
        yield source
        return
    with tempfile.NamedTemporaryFile(suffix=".pt") as copy:
        try:
            with gzip.open(source, "rb") as packed:
                _copy(packed, copy.file)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{source} is not a whole gzip file: {error}") from None
        yield Path(copy.name)


def _copy(packed: gzip.GzipFile, plain: IO[bytes]) -> None:
    while block := packed.read(_COPY_BYTES):
        plain.write(block)
    plain.flush()


def _load(file: Path, source: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    try:
        content = _load_mapped(file)
        indices, offsets, lengths = content
        tables, batch_size = lengths.shape
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{source} is not a saved (indices, offsets, lengths): {reason}") from None
    if len(offsets) != tables * batch_size + 1 or (offsets.diff() < 0).any() or int(offsets[-1]) > len(indices):
        raise UserError(f"{source}: offsets don't fit lengths {tuple(lengths.shape)} and {len(indices)} indices")
    return indices, offsets, lengths


def _load_mapped(file: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Memory-mapped where the file's (zip) format allows; the oldest torch.save format is read whole."""
    with file.open("rb") as opened:
        is_zip = opened.read(2) == b"PK"
    loaded: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.load(
        file, map_location="cpu", weights_only=True, mmap=is_zip
    )
    return loaded


def _tables(
    indices: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor,
    dim: int,
    bytes_per_element: int,
    max_tables: int | None,
    source: Path,
) -> Iterator[Table]:
    batch_size = lengths.shape[1]
    for t in range(min(lengths.shape[0], max_tables or lengths.shape[0])):
        first, last = int(offsets[t * batch_size]), int(offsets[(t + 1) * batch_size])
        if first == last:
            continue  # a table nobody looks up costs nothing and has no histogram
        lookups: IntArray = indices[first:last].numpy()
        if lookups.min() < 0:
            raise UserError(f"{source}: table {t} has a negative index")
        yield Table(
            name=f"dlrm_{t}",
            rows=int(lookups.max()) + 1,
            dim=dim,
            pooling_factor=(last - first) / batch_size,
            reuse=histogram(np.unique(lookups, return_counts=True)[1]),
            bytes_per_element=bytes_per_element,
        )
