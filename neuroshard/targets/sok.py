"""NVIDIA's SparseOperationKit (SOK) for TensorFlow: a variable for each table, whole on a GPU or in rows over all.

SOK gives row r of a table in rows to GPU r % D, not blocks of rows: each has as many rows as with blocks, and where hot
rows lie together, more even lookups.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from neuroshard.errors import UserError
from neuroshard.plans.form import Form
from neuroshard.plans.plan import Plan
from neuroshard.plans.shard import Placement
from neuroshard.tables import Table
from neuroshard.targets.exported import Exported
from neuroshard.targets.target import Splits, Target, placements_by_table

_FORMAT = "neuroshard-sok-1"
_TYPES = {2: "float16", 4: "float32"}
_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\-/]*")  # that TensorFlow takes


@dataclass(frozen=True)
class _Variable:
    """A `sok.Variable`: all rows in GPU memory.

    Attributes:
        table: its name in the plan.
        shape: rows and columns.
        mode: "localized:g" for all of it on GPU g, "distributed" for rows over all GPUs.
    """

    table: str
    shape: list[int]
    dtype: str
    mode: str

    @property
    def call(self) -> str:
        """What makes it."""
        named = f", name={self.table!r}" if _NAME.fullmatch(self.table) else ""
        return (
            f"sok.Variable(shape={self.shape}, initializer=initializer, dtype=tf.{self.dtype}, mode={self.mode!r}"
            f"{named})"
        )


def _write(plan: Plan) -> Exported:
    placed = placements_by_table(plan)
    _check_every_gpu(plan, placed)
    tables = plan.task.tables
    variables = [_variable(table, its) for table, its in zip(tables, placed, strict=True)]
    num_gpus = plan.task.topology.num_devices
    content = {"format": _FORMAT, "num_gpus": num_gpus, "variables": [asdict(variable) for variable in variables]}
    return Exported(content, _snippet(num_gpus, variables))


def _variable(table: Table, placed: Sequence[Placement]) -> _Variable:
    mode = f"localized:{placed[0].device}" if len(placed) == 1 else "distributed"
    return _Variable(table.name, [table.rows, table.dim], _TYPES[table.bytes_per_element], mode)


def _check_every_gpu(plan: Plan, placed: Sequence[Sequence[Placement]]) -> None:
    """Raise UserError if a GPU has no table: `sok.lookup_sparse` refuses that."""
    holding = {placement.device for its in placed for placement in its}
    for device in range(plan.task.topology.num_devices):
        if device not in holding:
            raise UserError(
                f"plan: device {device} holds no table, and SOK wants one on every GPU; search with fewer devices "
                "(topology.num_devices)"
            )


def _snippet(num_gpus: int, variables: Sequence[_Variable]) -> str:
    calls = "".join(f"        {variable.table!r}: {variable.call},\n" for variable in variables)
    return (
        f'"""Embedding tables for SparseOperationKit on {num_gpus} GPUs, a process each; written by neuroshard export.\n'
        "\n"
        "After horovod.init() and sok.init():  tables = make_tables(tf.keras.initializers.GlorotUniform())\n"
        '"""\n'
        "\n"
        "import sparse_operation_kit as sok\n"
        "import tensorflow as tf\n"
        "\n"
        f"NUM_GPUS = {num_gpus}\n"
        "\n\n"
        "def make_tables(initializer):\n"
        '    """The variable of each table, by the table\'s name."""\n'
        "    return {\n"
        f"{calls}"
        "    }\n"
    )


SOK = Target(
    "sok",
    "SOK",
    _write,
    forms=frozenset({Form.COLUMNS, Form.ROWS}),
    sequence_forms=frozenset({Form.ROWS}),
    splits=Splits.NONE,
    rows_over="all",
)
