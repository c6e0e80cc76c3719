"""A single embedding table: what everything else is about."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from neuroshard.errors import UserError

NUM_REUSE_BINS = 17
DIM_MULTIPLE = 4  # FBGEMM's rule for the width of a table or shard
BYTES_PER_ELEMENT = (2, 4)  # fp16, fp32
MAX_ROWS = 1 << 40


@dataclass(frozen=True)
class Table:
    """One embedding table.

    Attributes:
        name: unique within a task.
        rows: number of embedding vectors.
        dim: width of a vector, a multiple of 4.
        pooling_factor: mean lookups per sample.
        reuse: (17,) share of the unique rows touched in a batch that are touched
            (0,1], (1,2], (2,4], ..., (16384,32768], >32768 times; sums to 1.
        bytes_per_element: 4 for fp32 weights, 2 for fp16.
    """

    name: str
    rows: int
    dim: int
    pooling_factor: float
    reuse: tuple[float, ...]
    bytes_per_element: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.rows, int) or not 1 <= self.rows <= MAX_ROWS:
            raise UserError(f"table {self.name!r}: rows={self.rows!r} must be a whole number from 1 to 2^40")
        if not isinstance(self.dim, int) or self.dim < DIM_MULTIPLE or self.dim % DIM_MULTIPLE:
            raise UserError(f"table {self.name!r}: dim={self.dim!r} must be a positive multiple of {DIM_MULTIPLE}")
        if not 0 < self.pooling_factor < float("inf"):
            raise UserError(f"table {self.name!r}: pooling_factor={self.pooling_factor!r} must be positive and finite")
        if self.bytes_per_element not in BYTES_PER_ELEMENT:
            raise UserError(
                f"table {self.name!r}: bytes_per_element={self.bytes_per_element!r} must be 2 (fp16) or 4 (fp32)"
            )
        self._check_reuse()

    def _check_reuse(self) -> None:
        if len(self.reuse) != NUM_REUSE_BINS:
            raise UserError(f"table {self.name!r}: reuse has {len(self.reuse)} bins, not {NUM_REUSE_BINS}")
        if not all(0 <= share <= 1 for share in self.reuse):
            raise UserError(f"table {self.name!r}: every share of the reuse histogram must lie in 0..1: {self.reuse}")
        if abs(sum(self.reuse) - 1) > 1e-3:
            raise UserError(f"table {self.name!r}: reuse histogram sums to {sum(self.reuse):.6g}, not to 1")

    @property
    def size_bytes(self) -> int:
        """Bytes of the weights."""
        return self.rows * self.dim * self.bytes_per_element

    def with_dim(self, dim: int) -> "Table":
        """The same table, `dim` columns wide."""
        return replace(self, dim=dim)

    def to_json(self) -> dict[str, Any]:
        """The fields, for JSON and Parquet."""
        return asdict(self) | {"reuse": list(self.reuse)}

    @classmethod
    def from_json(cls, fields: object) -> "Table":
        """The table in `fields`, as `to_json` gives them.

        Raises:
            UserError: a field is missing, unknown or of the wrong type.
        """
        if not isinstance(fields, dict):
            raise UserError(f"a table must be an object of named fields, not {type(fields).__name__}")
        try:
            return cls(**(fields | {"reuse": tuple(float(share) for share in fields["reuse"])}))
        except UserError:
            raise
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise UserError(f"table {fields.get('name', '?')!r}: bad or missing field ({error})") from None


def check_unique_names(tables: tuple[Table, ...]) -> None:
    """Raise UserError if two of the tables share a name."""
    seen: set[str] = set()
    for table in tables:
        if table.name in seen:
            raise UserError(f"two tables are named {table.name!r}; names must be unique")
        seen.add(table.name)
