"""The class `Table` of embedding tables: size, lookups per sample, and how often a batch looks up the same rows."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from msgspec import Meta

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import (
    DIM_MULTIPLE,
    BatchSize,
    BytesPerElement,
    Dim,
    Features,
    Name,
    PoolingFactor,
    Rows,
    Share,
    as_fields,
    parse,
    shown,
)

NUM_REUSE_BINS = 17
Reuse = Annotated[tuple[Share, ...], Meta(min_length=NUM_REUSE_BINS, max_length=NUM_REUSE_BINS)]
MAX_ROW_BLOCKS = 1024
RowLookups = Annotated[tuple[Share, ...], Meta(max_length=MAX_ROW_BLOCKS)]
_SLACK = 1e-3  # allowed difference of the sum of shares from 1
_RARE = ("row_lookups", "features", "pooled", "unpadded_dim")  # fields that files leave out if they are the default


@dataclass(frozen=True)
@checked
class Table:
    """One embedding table: size, data type, and statistics of the lookups.

    Attributes:
        name: unique within a task.
        rows: number of embedding vectors, at most 2^40.
        dim: width of a vector, a multiple of 4, at most 65,536; plans split tables of more than 2,048 columns.
        pooling_factor: mean lookups per sample, of all features together.
        reuse: (17,) share of the unique rows touched in a batch that are touched
            (0,1], (1,2], (2,4], ..., (16384,32768], >32768 times; sums to 1.
        bytes_per_element: 4 for fp32 weights, 2 for fp16.
        reuse_batch_size: global batch size that the histogram was made for; None if that is unknown. Tables that differ
            only in this field are equal.
        row_lookups: (K,) share of the lookups in each of K equal blocks of rows, in order of rows, K up to 1,024; sums
            to 1. Empty if that is unknown: lookups then count as spread evenly over the rows.
        features: number of features that read the table, up to 1,024; each has its own pooled output for every sample.
        pooled: False for sequence tables, whose lookups are not summed up: each lookup has an output.
        unpadded_dim: columns of the table before it was padded to `dim`, as read from a file; None if it was not
            padded. Plans do not depend on it.
    """

    name: Name
    rows: Rows
    dim: Dim
    pooling_factor: PoolingFactor
    reuse: Reuse
    bytes_per_element: BytesPerElement = 4
    reuse_batch_size: BatchSize | None = field(default=None, compare=False)
    row_lookups: RowLookups = ()
    features: Features = 1
    pooled: bool = True
    unpadded_dim: Rows | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise UserError(
                "table-name-unprintable",
                "the name has characters that cannot be printed",
                where=f"table {self.name!r}",
                remedy="Give the table a name of printable characters",
            )
        if abs(sum(self.reuse) - 1) > _SLACK:
            raise UserError(
                "table-reuse-sum",
                f"the shares of the reuse histogram sum to {sum(self.reuse):.6g}, not to 1",
                where=f"table {self.name!r}",
                remedy="Correct the shares, or divide each share by their sum",
            )
        if self.row_lookups and abs(sum(self.row_lookups) - 1) > _SLACK:
            raise UserError(
                "table-row-lookups-sum",
                f"the shares in row_lookups sum to {sum(self.row_lookups):.6g}, not to 1",
                where=f"table {self.name!r}",
                remedy="Correct the shares, or divide each share by their sum",
            )

    @property
    def size_bytes(self) -> int:
        """Bytes of the weights: rows x dim x bytes per element."""
        return self.rows * self.dim * self.bytes_per_element

    @property
    def outputs(self) -> float:
        """Mean number of output embeddings per sample: one for each feature that reads the table, or one for each
        lookup in a sequence table.
        """
        return self.features if self.pooled else self.pooling_factor

    @property
    def output_columns(self) -> float:
        """Mean number of columns of all output embeddings of a sample together: dim x outputs."""
        return self.dim * self.outputs

    def with_dim(self, dim: int) -> "Table":
        """Return the same table, but with `dim` columns."""
        return self if dim == self.dim else replace(self, dim=dim)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the table for JSON and Parquet.
        A rarely used field is left out if it has the default value.
        """
        named = as_fields(self, _RARE).items()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in named}

    @classmethod
    def from_json(cls, fields: object) -> "Table":
        """Return the table with the given `fields`, as `to_json` returned them.

        Raises:
            UserError: a field is missing, unknown, of the wrong type or out of range.
        """
        name = fields.get("name") if isinstance(fields, dict) else None
        return parse(fields, cls, f"table {shown(name)}" if isinstance(name, str) else "table")


def check_unique_names(tables: tuple[Table, ...], where: str = "") -> None:
    """Raise UserError if two tables have the same name.
    The error message begins with `where`, the place of the tables, such as the path of a file.
    """
    seen: set[str] = set()
    for table in tables:
        if table.name in seen:
            raise shared_name(table.name, where)
        seen.add(table.name)


def shared_name(name: str, where: str = "") -> UserError:
    """Return the error for a name that two tables share.
    The error message begins with `where`, the place of the tables, such as the path of a file.
    """
    return UserError(
        "table-name-shared",
        f"two tables are named {name!r}",
        where=where,
        limit="the names of tables must be unique",
        remedy="Rename one of the two tables",
    )


def halvings(max_dim: int) -> tuple[int, ...]:
    """Return all widths that result from halving `max_dim` again and again: (max_dim, max_dim / 2, ..., 4).

    Raises:
        UserError: max_dim is not 4 times a power of two.
    """
    if max_dim < DIM_MULTIPLE or max_dim % DIM_MULTIPLE or (max_dim // DIM_MULTIPLE).bit_count() != 1:
        raise UserError(
            "max-dim-not-halvable",
            f"max_dim is {max_dim}",
            limit="widths are max_dim halved again and again down to 4, so max_dim must be 4 times a power of two",
            remedy="Set max_dim to 4, 8, 16, 32, 64, 128 or a higher power of two",
        )
    return tuple(max_dim >> i for i in range((max_dim // DIM_MULTIPLE).bit_length()))
