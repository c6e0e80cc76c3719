"""Exports to NVIDIA's SparseOperationKit (SOK) for TensorFlow.

SOK has a variable for each table, table-wise or row-wise over all D GPUs. SOK puts row r of a row-wise table on GPU
r % D, instead of using blocks of rows. Each GPU has the same number of rows as with blocks, and if hot rows are next to
each other, the lookups are spread more evenly than with blocks.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from neuroshard.layouts.sharding_types import ROW_WISE, TABLE_WISE
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.tables import Table
from neuroshard.targets.target import Exported, Target
from neuroshard.tasks.memory import LEAST_SLOTS, hash_slots
from neuroshard.words.placement import Placement, Tier

_FORMAT = "neuroshard-sok-1"
_TYPES = {2: "float16", 4: "float32"}
_FLOAT_BYTES = 4
_GIB = 1 << 30
_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\-/]*")  # names that TensorFlow accepts


@dataclass(frozen=True)
class _Static:
    """A table of a plan as a `sok.Variable`, that is, as a SOK variable with all rows in GPU memory.

    Attributes:
        table: name of the table in the plan.
        rows, dimension: rows and columns of the whole table.
        dtype: data type of the elements.
        mode: "localized:g" for a whole table on GPU g, "distributed" for a table that is row-wise over all GPUs.
    """

    table: str
    rows: int
    dimension: int
    dtype: str
    mode: str

    @property
    def call(self) -> str:
        """The Python code that creates the variable: a call of `sok.Variable`."""
        shape = f"shape=[{self.rows}, {self.dimension}]"
        named = f", name={self.table!r}" if _NAME.fullmatch(self.table) else ""
        return f"sok.Variable({shape}, initializer=initializer, dtype=tf.{self.dtype}, mode={self.mode!r}{named})"


@dataclass(frozen=True)
class _Hybrid:
    """A `sok.DynamicVariable` over HierarchicalKV (HKV), NVIDIA's hash table on GPUs. The keys are in GPU memory, and
    the vectors are in GPU and host memory.

    Attributes:
        table: name of the table in the plan.
        rows, dimension: rows and columns of the whole table.
        mode: as in `_Static`.
        capacity: maximum number of vectors on each GPU with rows of the table: a power of two, at least twice the rows
            there, as HKV's `max_load_factor` of 0.5 requires.
        max_hbm_for_vectors: memory for vectors on each such GPU, in whole GiB, which is the unit of SOK.
    """

    table: str
    rows: int
    dimension: int
    mode: str
    capacity: int
    max_hbm_for_vectors: int

    @property
    def call(self) -> str:
        """The Python code that creates the variable: a call of `hybrid`, a function in the exported code."""
        named = f", name={self.table!r}" if _NAME.fullmatch(self.table) else ""
        return (
            f"hybrid({self.dimension}, {self.mode!r}, capacity={self.capacity}, "
            f"max_hbm_for_vectors={self.max_hbm_for_vectors}{named})"
        )


_Variable = _Static | _Hybrid


def _write(plan: Plan) -> Exported:
    """Return the plan as a list of SOK's variables, and Python code that creates them.

    Raises:
        UserError: a GPU has no table, or SOK cannot store a table as planned.
    """
    if (empty := _empty_gpu(plan)) is not None:
        raise empty
    pairs = zip(plan.task.tables, plan.by_table, strict=True)
    variables = [_variable(table, placements) for table, placements in pairs]
    num_gpus = plan.task.topology.num_devices
    content = {"format": _FORMAT, "num_gpus": num_gpus, "variables": [_fields(variable) for variable in variables]}
    return Exported(content, _snippet(num_gpus, variables))


def _variable(table: Table, placed: Sequence[Placement]) -> _Variable:
    """Convert a table of a plan to a variable of SOK, and return the variable.
    `placed` has the placements of the table's shards, which determine the type and the devices of the variable.

    Raises:
        UserError: the table has a cache of less than 1 GiB, or is in host memory with a data type other than fp32.
    """
    assignment, mode = placed[0].tier_assignment, f"localized:{placed[0].device}" if len(placed) == 1 else "distributed"
    if assignment.tier is Tier.DEVICE:
        return _Static(table.name, table.rows, table.dim, _TYPES[table.bytes_per_element], mode)
    if table.bytes_per_element != _FLOAT_BYTES:
        raise UserError(
            "sok-host-element-bytes",
            f"table {table.name!r} has {table.bytes_per_element} bytes per element in host memory",
            where="plan",
            limit=f"SOK stores {_FLOAT_BYTES} bytes per element in host memory",
            remedy=f"Plan the table with bytes_per_element={_FLOAT_BYTES}, or keep the table in device memory",
        )
    rows = max(placement.shard.rows for placement in placed)
    in_gpu = (
        0
        if assignment.cache_load_factor is None
        else int(rows * assignment.cache_load_factor * table.dim * _FLOAT_BYTES)
    )
    if assignment.cache_load_factor is not None and in_gpu < _GIB:
        raise UserError(
            "sok-cache-small",
            f"table {table.name!r} has a cache of {readable_bytes(in_gpu)} on a device",
            where="plan",
            limit="SOK sizes caches in whole GiB (max_hbm_for_vectors), so the minimum is 1 GiB",
            remedy="Add a rule for the table with a larger cache_load_factor, or with tiers=[device] or tiers=[uvm]",
        )
    capacity = int(hash_slots(np.array([rows]))[0])
    return _Hybrid(table.name, table.rows, table.dim, mode, capacity, in_gpu // _GIB)


def _fields(variable: _Variable) -> dict[str, str | int]:
    """Convert a SOK variable to a dict that can be written as JSON, and return the dict.
    The dict has the fields of `variable`, and the type of the variable in SOK's words, such as {"variable": "static"}.
    """
    variable_type = (
        {"variable": "static"} if isinstance(variable, _Static) else {"variable": "dynamic", "var_type": "hybrid"}
    )
    return variable_type | asdict(variable)


def _empty_gpu(plan: Plan) -> UserError | None:
    """Return an error if a GPU has no table, because the function `sok.lookup_sparse` fails if a GPU has no table.
    Return None if every GPU has a table.
    """
    used = {placement.device for placement in plan.placements}
    empty = next((device for device in range(plan.task.topology.num_devices) if device not in used), None)
    if empty is None:
        return None
    return UserError(
        "sok-device-empty",
        f"device {empty} has no table",
        where="plan",
        limit="SOK needs a table on every GPU",
        remedy="Search with fewer devices (topology.num_devices), or with row-wise tables",
    )


def _remarks(plan: Plan) -> tuple[Message, ...]:
    """Return a warning if a GPU has no table, because SOK refuses such a plan.
    Return an empty tuple if every GPU has a table.
    """
    empty = _empty_gpu(plan)
    return () if empty is None else (empty.message,)


def _snippet(num_gpus: int, variables: Sequence[_Variable]) -> str:
    """Return the Python code that creates the given SOK variables, one for each table."""
    calls = "".join(f"        {variable.table!r}: {variable.call},\n" for variable in variables)
    helper = _HYBRID if any(isinstance(variable, _Hybrid) for variable in variables) else ""
    return _SNIPPET.format(num_gpus=num_gpus, calls=calls, helper=helper)


_SNIPPET = '''\
"""Embedding tables for SparseOperationKit on {num_gpus} GPUs, a process each; written by neuroshard export.

After horovod's init() and sok.init(): tables = make_tables(tf.keras.initializers.GlorotUniform())
"""

import horovod.tensorflow as hvd
import sparse_operation_kit as sok
import tensorflow as tf

NUM_GPUS = {num_gpus}

{helper}
def make_tables(initializer):
    """The variable of each table, by the table's name; `initializer` fills those in GPU memory."""
    if hvd.size() != NUM_GPUS:
        raise RuntimeError(
            f"{{hvd.size()}} processes are running, but this plan is for {{NUM_GPUS}}. Start {{NUM_GPUS}} processes"
        )
    return {{
{calls}    }}
'''

# SOK also reserves memory on GPUs without rows of the table, so the snippet sets the smallest size there.
_HYBRID = f'''
def hybrid(dimension, mode, capacity, max_hbm_for_vectors, name=None):
    """A table with vectors in host memory; a GPU without rows of the table reserves no memory for the table."""
    if mode not in ("distributed", f"localized:{{hvd.rank()}}"):
        capacity, max_hbm_for_vectors = {LEAST_SLOTS}, 0
    return sok.DynamicVariable(
        dimension=dimension,
        initializer="random",
        var_type="hybrid",
        name=name,
        key_type=tf.int64,
        dtype=tf.float32,
        mode=mode,
        init_capacity=capacity,
        max_capacity=capacity,
        max_hbm_for_vectors=max_hbm_for_vectors,
    )

'''


TARGET = Target(
    "sok",
    "SOK",
    _write,
    sharding_types=frozenset({TABLE_WISE, ROW_WISE}),
    sequence_types=frozenset({ROW_WISE}),
    remarks=_remarks,
    host_tables="hkv",
)
