"""Exports of plans to the embedding collection of NVIDIA's HugeCTR.
An export has a shard matrix and a shard strategy, as HugeCTR's `EmbeddingCollectionConfig.shard` takes them, and Python
code that creates the tables.

The shard matrix lists the tables of each GPU. A table on k GPUs is split over these GPUs: into c column shards of equal
width, if the strategy names c for the table, each of which is row-wise over k / c successive GPUs; c divides k. Columns
are assigned to GPUs in ascending order. Row r is on GPU r modulo the number of GPUs, so each GPU has the same number of
rows as with blocks of rows.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from neuroshard.layouts.sharding_types import types_of
from neuroshard.plans.plan import Plan
from neuroshard.tables import Table
from neuroshard.targets.target import Exported, Target
from neuroshard.words.form import Form
from neuroshard.words.placement import Tier

_FORMAT = "neuroshard-hugectr-1"

_Matrix = list[list[str]]
_Entry = str | tuple[str, int]  # a table, or a table with its number of column shards
_Strategy = list[tuple[str, list[_Entry]]]


def _write(plan: Plan) -> Exported:
    """Return the plan as HugeCTR's shard matrix and shard strategy, with Python code that creates and shards the
    tables.
    """
    tables, (matrix, strategy) = plan.task.tables, _sharding(plan)
    plain = [
        [parallelism, [entry if isinstance(entry, str) else [*entry] for entry in entries]]
        for parallelism, entries in strategy
    ]
    content: dict[str, Any] = {
        "format": _FORMAT,
        "num_gpus": plan.task.topology.num_devices,
        "tables": [{"name": table.name, "max_vocabulary_size": table.rows, "ev_size": table.dim} for table in tables],
        "shard_matrix": matrix,
        "shard_strategy": plain,
    }
    return Exported(content, _snippet(tables, matrix, strategy))


def _sharding(plan: Plan) -> tuple[_Matrix, _Strategy]:
    """Return the shard matrix and the shard strategy for HugeCTR's `EmbeddingCollectionConfig.shard`."""
    matrix: _Matrix = [[] for _ in range(plan.task.topology.num_devices)]
    groups: dict[tuple[str, int], list[_Entry]] = defaultdict(list)
    for table, layout, placed in zip(plan.task.tables, plan.layouts, plan.by_table, strict=True):
        for placement in placed:
            matrix[placement.device].append(table.name)
        columns = table.dim // placed[0].shard.dim
        # HugeCTR looks up the tables of a group together, so sequence tables of different widths need different groups.
        group = "dp" if layout.dense else "mp", 0 if table.pooled else table.dim
        groups[group].append(table.name if columns == 1 else (table.name, columns))
    return matrix, [(parallelism, entries) for (parallelism, _), entries in sorted(groups.items())]


def _snippet(tables: Sequence[Table], matrix: _Matrix, strategy: _Strategy) -> str:
    """Return Python code for HugeCTR. The code creates the tables, and shards an embedding collection as planned."""
    shapes = [(table.name, table.rows, table.dim) for table in tables]
    return _SNIPPET.format(gpus=len(matrix), shapes=_lines(shapes), matrix=_lines(matrix), strategy=_lines(strategy))


def _lines(entries: Iterable[object]) -> str:
    """Return a list as Python code with one entry per line."""
    return "[\n" + "".join(f"    {entry!r},\n" for entry in entries) + "]"


_SNIPPET = '''\
"""Embedding tables for HugeCTR on {gpus} GPUs; written by neuroshard export.

Give config.embedding_lookup the tables of make_tables() for every feature, then call shard(config).
"""

import hugectr

TABLES = {shapes}  # name, rows, columns
SHARD_MATRIX = {matrix}  # of each GPU, the tables that it has a part of
SHARD_STRATEGY = {strategy}


def make_tables():
    """The configuration of each table, by the table's name."""
    return {{
        name: hugectr.EmbeddingTableConfig(name=name, max_vocabulary_size=rows, ev_size=columns)
        for name, rows, columns in TABLES
    }}


def shard(config):
    """Lay the tables of an embedding collection out as planned."""
    config.shard(shard_matrix=SHARD_MATRIX, shard_strategy=SHARD_STRATEGY)
'''

TARGET = Target(
    "hugectr",
    "HugeCTR",
    _write,
    sharding_types=frozenset(types_of(Form.COLUMN_WISE, Form.ROW_WISE, Form.DATA_PARALLEL)),
    sequence_types=frozenset(types_of(Form.ROW_WISE)),
    equal_widths=True,
    tiers=frozenset({Tier.DEVICE}),
    element_bytes=(4,),
    hierarchical=True,  # comm_strategy=Hierarchical, as in its MLPerf runs
)
