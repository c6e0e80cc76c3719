"""Prints docs/tables.md's comparison: the statistics of `dlrm_like` beside the published ones."""

import numpy as np
import torch

from neuroshard.hardware.lookups import draw_lookups
from neuroshard.tables.dlrm_like import dlrm_like

BATCH_SIZE = 65536
PUBLISHED = {"tables": 856, "indices": 887_017_990, "mean pooling factor": 15.8, "unique rows": 128_435_723}
PUBLISHED_REUSE = (0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001)
PLAN_POOLING = {50: 5, 90: 18, 95: 48, 99: 149, 100: 208}
PLAN_ROWS = {25: 14, 50: 538, 75: 3_000, 90: 500_000, 95: 10_000_000, 99: 25_000_000, 100: 80_000_000}


def main() -> None:
    tables = dlrm_like()
    generator = torch.Generator().manual_seed(0)
    counts = [draw_lookups(table, BATCH_SIZE, generator)[0].unique(return_counts=True)[1].numpy() for table in tables]
    unique = sum(map(len, counts))
    pooling = np.array([table.pooling_factor for table in tables])
    rows = np.array([table.rows for table in tables])
    generated = {
        "tables": len(tables),
        "indices": sum(int(count.sum()) for count in counts),
        "mean pooling factor": round(float(pooling.mean()), 2),
        "unique rows": unique,
    }
    _print("statistic", "published", "generated")
    for name, value in PUBLISHED.items():
        _print(name, f"{value:,}", f"{generated[name]:,}")
    _print(
        "correlation of log rows and log pooling",
        0.14,
        round(float(np.corrcoef(np.log(rows), np.log(pooling))[0, 1]), 2),
    )
    print()
    bins = np.bincount(np.minimum(np.ceil(np.log2(np.concatenate(counts))).astype(int), 16), minlength=17) / unique
    _print("touched", "published share of unique rows", "generated")
    for i, share in enumerate(PUBLISHED_REUSE):
        _print(f"({2 ** (i - 1) if i else 0}, {2**i}]", share, f"{bins[i]:.3f}")
    _print(f"> {2 ** (len(PUBLISHED_REUSE) - 1)}", "~0", f"{bins[len(PUBLISHED_REUSE) :].sum():.3f}")
    for name, published, values in (("pooling factor", PLAN_POOLING, pooling), ("rows", PLAN_ROWS, rows)):
        print()
        _print(f"{name}, percentile", "production plan", "generated")
        for level, value in published.items():
            _print(level, f"{value:,}", f"{np.percentile(values, level):,.0f}")


def _print(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
