"""The 26 tables of MLPerf's DLRM-DCNv2 (Criteo 1TB, multi-hot), with the published rows and lookups per sample."""

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import BatchSize, BytesPerElement, Dim
from neuroshard.tables.reuse import ZIPF_EXPONENT, Exponent, zipf_reuse
from neuroshard.tables.table import Table

ROWS = (
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10,
    2209, 11938, 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36,
)  # fmt: skip
LOOKUPS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)


@checked
def criteo(
    batch_size: BatchSize = 65536,
    dim: Dim = 128,
    zipf_exponent: Exponent = ZIPF_EXPONENT,
    bytes_per_element: BytesPerElement = 4,
) -> tuple[Table, ...]:
    """Return the 26 embedding tables of MLPerf's recommendation model DLRM-DCNv2.
    The reuse histograms are estimated with a Zipf law, because no histograms are published.

    Args:
        batch_size: global batch size (samples per step over all devices) for the reuse histogram of each table, which
            counts how often a batch looks up the same row.
        dim: number of columns (embedding dim) of every table, a multiple of 4.
        zipf_exponent: exponent of the Zipf distribution of lookups over the rows, from 0 (all rows equally popular) to
            10 (few rows get nearly all lookups).
        bytes_per_element: 4 | 2: bytes of one weight; 4 is fp32, 2 is fp16.
    """
    return tuple(
        Table(
            name=f"criteo_{i}",
            rows=rows,
            dim=dim,
            pooling_factor=float(lookups),
            reuse=zipf_reuse(rows, batch_size * lookups, zipf_exponent),
            bytes_per_element=bytes_per_element,
            reuse_batch_size=batch_size,
        )
        for i, (rows, lookups) in enumerate(zip(ROWS, LOOKUPS, strict=True))
    )
