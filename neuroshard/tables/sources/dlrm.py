"""The tables of Meta's public DLRM data set, which the papers use: the file `fbgemm_t856_bs65536.pt` or `.pt.gz`.

The file was written by `torch.save((indices, offsets, lengths))`. The lookups of table t in a batch of B samples are
`indices[offsets[t * B] : offsets[(t + 1) * B]]`, and `lengths` is (T, B). The file contains neither the rows nor the
dims of tables: the number of rows is taken as the largest index + 1, as other users of the data set do, and the caller
chooses `dim`.
"""

import gzip
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import MAX_ROWS, BytesPerElement, Dim, PositiveCount
from neuroshard.tables.reuse import histogram
from neuroshard.tables.table import Table

_COPY_BYTES = 1 << 24
_WHOLE = (torch.int32, torch.int64)


@checked
def dlrm(
    path: str, dim: Dim = 16, bytes_per_element: BytesPerElement = 4, max_tables: PositiveCount | None = None
) -> tuple[Table, ...]:
    """Return the tables of the DLRM data set at `path`; lookups are read one table at a time, through a memory map.

    Args:
        path: path of the data set, a .pt or .pt.gz file; tables=FILE.pt.gz is short for tables.path=FILE.pt.gz.
        dim: number of columns (embedding dim) of every table, a multiple of 4; the file does not contain this number.
        bytes_per_element: 4 | 2: bytes of one weight; 4 is fp32, 2 is fp16.
        max_tables: number of tables to read from the start of the file, including tables without lookups, which are
            then left out; None reads all tables.

    Raises:
        UserError: the file is missing, or does not have the published format.
    """
    source = Path(path)
    if not source.is_file():
        raise UserError(
            "dlrm-file-missing",
            f"there is no DLRM data set at {source}",
            remedy="Set tables.path to the path of the downloaded file: tables.path=FILE.pt or tables.path=FILE.pt.gz",
        )
    with _uncompressed(source) as file:
        indices, offsets, lengths = _load(file, source)
        tables = tuple(_tables(indices, offsets, lengths, dim, bytes_per_element, max_tables, source))
    if not tables:
        is_cut = max_tables is not None and max_tables < len(lengths)
        raise UserError(
            "dlrm-file-no-lookups",
            f"the first tables of the file have no lookups (tables.max_tables={max_tables})"
            if is_cut
            else "the tables of the file have no lookups",
            where=str(source),
            remedy="Set a larger tables.max_tables" if is_cut else "Use a file with lookups",
        )
    return tables


@contextmanager
def _uncompressed(source: Path) -> Iterator[Path]:
    """Yield the path of the uncompressed file: `source` itself, or a temporary copy that is deleted after the block."""
    if source.suffix != ".gz":
        yield source
        return
    with tempfile.NamedTemporaryFile(suffix=".pt") as copy:
        try:
            with gzip.open(source, "rb") as packed:
                shutil.copyfileobj(packed, copy.file, _COPY_BYTES)
                copy.file.flush()
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(
                "dlrm-file-gzip-damaged",
                "the file is not a complete gzip file",
                where=str(source),
                limit=str(error),
                remedy="Download the file again",
            ) from None
        yield Path(copy.name)


def _load(file: Path, source: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    try:
        content = _load_mapped(file)
    except Exception as error:  # torch.load raises errors of many classes for damaged files
        # The text of torch's errors is left out, because some of them advise to load the file unsafely.
        raise UserError(
            "dlrm-file-unreadable",
            "the file cannot be read",
            where=str(source),
            limit=error.strerror
            if isinstance(error, OSError) and error.strerror
            else "the file is damaged, or does not contain exactly three plain tensors",
            remedy="Download the file again, or use a file that torch.save((indices, offsets, lengths), path) wrote",
        ) from None
    if not isinstance(content, tuple) or [_dimensions(tensor) for tensor in content] != [1, 1, 2]:
        raise UserError(
            "dlrm-file-other-content",
            "the file does not contain (indices, offsets, lengths)",
            where=str(source),
            limit="a DLRM data set is a tuple of tensors with 1, 1 and 2 dimensions",
            remedy="Use a file that torch.save((indices, offsets, lengths), path) wrote",
        )
    indices, offsets, lengths = content
    tables, batch_size = lengths.shape
    if indices.dtype not in _WHOLE or offsets.dtype not in _WHOLE:
        raise UserError(
            "dlrm-file-dtype",
            f"indices are {indices.dtype} and offsets are {offsets.dtype}",
            where=str(source),
            limit="both tensors must be torch.int32 or torch.int64",
            remedy="Convert both tensors to torch.int64 and save the file again",
        )
    fits = len(offsets) == tables * batch_size + 1 and offsets.min() >= 0 and offsets.max() <= len(indices)
    if not fits or not batch_size or (offsets.diff() < 0).any():
        raise UserError(
            "dlrm-file-offsets",
            f"offsets do not fit lengths of shape {tuple(lengths.shape)} and {len(indices)} indices",
            where=str(source),
            limit=f"offsets must have {tables * batch_size + 1} values that do not decrease, each from 0 "
            f"to {len(indices)}, the number of indices"
            if batch_size
            else "each table must have lengths for at least one sample",
            remedy=f"Correct the {'offsets' if batch_size else 'lengths'}, or download the file again",
        )
    return indices, offsets, lengths


def _dimensions(value: object) -> int | None:
    """Return the number of dimensions of a strided CPU tensor; None for any other object."""
    plain = isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu"
    return value.dim() if isinstance(value, torch.Tensor) and plain else None


def _load_mapped(file: Path) -> object:
    """Return the content of a file that torch.save wrote; zip files are memory-mapped, older formats are read whole."""
    with file.open("rb") as opened:
        is_zip = opened.read(2) == b"PK"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the caller reports a damaged file as one error
        loaded: object = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
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
            continue  # a table without lookups costs no time and has no histogram
        lookups: IntArray = indices[first:last].numpy()
        rows = int(lookups.max()) + 1
        if lookups.min() < 0 or rows > MAX_ROWS:
            raise UserError(
                "dlrm-file-index-outside",
                f"table {t} has an index that is not from 0 to 2^40 - 1",
                where=str(source),
                remedy="Correct the indices of the table, or download the file again",
            )
        yield Table(
            name=f"dlrm_{t}",
            rows=rows,
            dim=dim,
            pooling_factor=(last - first) / batch_size,
            reuse=histogram(np.unique(lookups, return_counts=True)[1]),
            bytes_per_element=bytes_per_element,
            reuse_batch_size=batch_size,
        )
