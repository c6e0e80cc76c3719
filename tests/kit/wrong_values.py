"""Changes that keep files well-formed but make values wrong: JSON, CSV, YAML, Parquet, safetensors, torch.save."""

import io
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load, save

Change = Callable[[bytes, np.random.Generator], bytes]


def _nested(depth: int) -> list[Any]:
    return [_nested(depth - 1)] if depth else []


_JUNK: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3.5, -0.0, 5e-324, 1e308, -1e308, 1 << 31, 1 << 40, 1 << 62, 1 << 63, -(1 << 70),
    10**400, float("nan"), float("inf"), -float("inf"), "", " ", "x", "1", "true", "nan", "\n", "\x00", "\u2603" * 40,
    "\ud800", "x" * 5000, "=1+1", "[bold]", "$x$", "${oc.env:HOME}", "../../etc", "../outside.json", "/dev/zero", ".",
    "1e9", [], {}, [[]], {"a": 1}, [None], [0.5] * 17, [1] * 40, _nested(60),
    1e-30, -1e30, 3.4e38, 0.5, "paper", "log", "set", "sorted",
)  # fmt: skip
_WORDS = (
    "", " ", '"', '""', "'", ",", ",,", ";", "\t", "\r", "#", "-", "- ", ":", ": ", "[", "]", "{", "}", "~", "null",
    "yes", "no", "true", "NA", "nan", ".nan", ".inf", "inf", "007", "-1", "0", "3.5", "1e308", "1e999", "1_000",
    "1,000", "0x1f", "1:30", "2024-01-01", "9" * 25, "9" * 5000, "&a", "*a", "&a [*a]", "<<: *a", "!!set",
    "!!python/name:os.system", "? x", "${oc.env:HOME}", "=1+1", "é", "\u2603" * 20, "x" * 200_000,
)  # fmt: skip


def change_for(content: bytes) -> Change | None:
    """Return the function that makes one value of a file wrong, chosen by the file's content; None if unknown."""
    if content[:1] in (b"{", b"["):
        return _changed_json
    if content[:4] == b"PAR1":
        return _changed_parquet
    if content[:2] == b"PK":
        return _changed_saved
    if content[8:9] == b"{":
        return _changed_safetensors
    with suppress(UnicodeDecodeError):
        content.decode()
        return _changed_text
    return None


def _one(choices: Any, rng: np.random.Generator) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _changed_json(content: bytes, rng: np.random.Generator) -> bytes:
    """Replace, remove, nest, move or repeat one value of a JSON file."""
    try:
        tree = json.loads(content)
        places = list(_places(tree))
    except (ValueError, RecursionError):
        return content
    if not places:
        return content
    holder, key = _one(places, rng)
    what = int(rng.integers(8))
    if what == 0:
        del holder[key]
    elif what == 1:
        holder[key] = [holder[key]]
    elif what == 2 and isinstance(holder, list):
        holder.append(_one(holder, rng))
    elif what == 3:
        other, its = _one(places, rng)
        holder[key] = json.loads(json.dumps(other[its]))
    elif what == 4:
        holder[key] = _near(holder[key], rng)
    elif what == 5 and isinstance(holder, dict):
        text = json.dumps(tree)
        name = f"{json.dumps(key)}: "
        return text.replace(name, f"{name}{json.dumps(_one(_JUNK, rng))}, {name}", 1).encode()
    elif what == 6 and isinstance(holder, dict):
        holder[str(_one(_JUNK, rng))] = holder.pop(key)
    else:
        holder[key] = _one(_JUNK, rng)
    return json.dumps(tree).encode()


_MOST = 10**300  # largest number that is changed by arithmetic: an earlier change may have put in a larger one


def _near(value: Any, rng: np.random.Generator) -> Any:
    """Return a value similar to this one, of another type or size."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > _MOST:
        return str(value)
    return _one((str(value), float(value), -value, value + 1, value * 1000, value * 1e-6, value + 0.5, [value]), rng)


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Return the container and the key of every value inside."""
    found: list[tuple[Any, Any]] = []
    stack = [tree]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
        found += [(node, key) for key in keys]
        stack += [node[key] for key in keys]
    return found


def _changed_text(content: bytes, rng: np.random.Generator) -> bytes:
    """Replace, remove or repeat one word or line of a text."""
    text = content.decode(errors="replace")
    pieces = re.findall(r"[\w.*+-]+|\s+|.", text, re.DOTALL)
    lines = text.splitlines(keepends=True)
    if not pieces:
        return content
    number, line = int(rng.integers(len(pieces))), int(rng.integers(len(lines)))
    what = int(rng.integers(6))
    if what == 0:
        del pieces[number]
    elif what == 1:
        pieces.insert(number, _one(pieces, rng))
    elif what == 2:
        return "".join(lines[:line] + lines[line:][:1] + lines[line:]).encode()
    elif what == 3:
        return "".join(lines[:line] + lines[line + 1 :]).encode()
    else:
        pieces[number] = _one(_WORDS, rng)
    return "".join(pieces).encode()


def _changed_parquet(content: bytes, rng: np.random.Generator) -> bytes:
    """Change a cell, or change, rename, repeat or remove a column, or repeat or remove rows, of a Parquet file."""
    try:
        table = pq.read_table(pa.BufferReader(content))
    except (OSError, ValueError, pa.ArrowException):
        return content
    changed = table
    with suppress(pa.ArrowException, ValueError, TypeError, OverflowError, IndexError, UnicodeError):
        changed = _changed_table(table, rng)
        sink = io.BytesIO()
        pq.write_table(changed, sink)
        return sink.getvalue()
    return content


_TYPES = (
    pa.string(), pa.large_string(), pa.binary(), pa.float64(), pa.float16(), pa.int8(), pa.int64(), pa.uint64(),
    pa.bool_(), pa.date32(), pa.timestamp("ns"), pa.decimal128(20, 3), pa.list_(pa.float64()), pa.list_(pa.string()),
    pa.dictionary(pa.int8(), pa.string()), pa.null(),
)  # fmt: skip


def _changed_table(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    number = int(rng.integers(table.num_columns))
    if rng.random() < 0.4:
        return _changed_columns(table, number, rng)
    name, cells = table.column_names[number], table.column(number).to_pylist()
    row = int(rng.integers(len(cells)))
    cells[row] = _changed_cell(cells[row], rng)
    if rng.random() < 0.2:
        cells = [cells[row]] * len(cells)
    try:
        return table.set_column(number, name, pa.array(cells, type=table.schema.field(number).type))
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return table.set_column(number, name, pa.array(cells))


def _changed_columns(table: pa.Table, number: int, rng: np.random.Generator) -> pa.Table:
    name, column = table.column_names[number], table.column(number)
    what = int(rng.integers(5))
    if what == 0:
        return table.remove_column(number)
    if what == 1:
        return table.append_column(_one(table.column_names, rng), column)
    if what == 2:
        names = [str(_one(_JUNK, rng)) if name == found else found for found in table.column_names]
        return table.rename_columns(names)
    if what == 3:
        rows = rng.integers(0, max(len(column), 1), size=int(rng.integers(0, 2 * len(column) + 1)))
        return table.take(pa.array(rows))
    return table.set_column(number, name, column.cast(_one(_TYPES, rng), safe=False))


def _changed_cell(cell: Any, rng: np.random.Generator) -> Any:
    if isinstance(cell, list) and cell and rng.random() < 0.8:
        inner = list(cell)
        place = int(rng.integers(len(inner)))
        if rng.random() < 0.6:
            inner[place] = _changed_cell(inner[place], rng)
            return inner
        return inner[1:] if rng.random() < 0.5 else [*inner, inner[place]]
    return _near(cell, rng) if rng.random() < 0.3 else _one(_JUNK, rng)


def _changed_safetensors(content: bytes, rng: np.random.Generator) -> bytes:
    """Change, rename, repeat or remove one tensor of a safetensors file, or change its metadata as JSON."""
    try:
        tensors = load(content)
        metadata = _metadata(content)
    except Exception:  # whatever is wrong with it already
        return content
    if metadata and rng.random() < 0.3:
        key = _one(sorted(metadata), rng)
        metadata[key] = _changed_json(metadata[key].encode(), rng).decode(errors="replace")
    elif tensors:
        name = _one(sorted(tensors), rng)
        what = int(rng.integers(6))
        if what == 0:
            del tensors[name]
        elif what == 1:
            tensors[name + "x" if rng.random() < 0.5 else "x." + name] = tensors.pop(name)
        elif what == 2:
            tensors[name] = tensors[_one(sorted(tensors), rng)].clone()
        else:
            tensors[name] = changed_tensor(tensors[name], rng)
    with suppress(Exception):
        return save({key: value.contiguous() for key, value in tensors.items()}, metadata)
    return content


def _metadata(content: bytes) -> dict[str, str]:
    length = int.from_bytes(content[:8], "little")
    found: dict[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    return found


def _changed_saved(content: bytes, rng: np.random.Generator) -> bytes:
    """Change, replace or remove one tensor of a tuple written by torch.save."""
    try:
        parts = list(torch.load(io.BytesIO(content), weights_only=True))
    except Exception:  # whatever is wrong with it already
        return content
    number = int(rng.integers(len(parts)))
    what = int(rng.integers(5))
    if what == 0:
        del parts[number]
    elif what == 1:
        parts[number] = _one(
            (None, 3, "x", [1, 2], {}, torch.zeros(2, 2).to_sparse(), torch.zeros(3, device="meta")), rng
        )
    elif isinstance(parts[number], torch.Tensor) and parts[number].device.type == "cpu":
        parts[number] = changed_tensor(parts[number], rng)
    sink = io.BytesIO()
    torch.save(tuple(parts) if rng.random() < 0.9 else parts, sink)
    return sink.getvalue()


_DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.bool,
    torch.uint8,
)  # fmt: skip
_FACTORS = (0.0, 1e-3, 3.0, 1e3, 1e10, 1e25)
_NUMBERS = (float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1e-38, 3e38, 1e18, -1e18)


def changed_tensor(tensor: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Return a tensor with other numbers, or of another type or shape."""
    with suppress(RuntimeError, IndexError, TypeError, ValueError):
        what = int(rng.integers(7))
        if what == 0:
            return torch.as_tensor(tensor, dtype=_one(_DTYPES, rng))
        if what == 1:
            shapes = (tensor[None], tensor.flatten(), tensor.flatten()[0], tensor.mT, tensor[:0], tensor[:-1])
            return torch.as_tensor(_one(shapes, rng))
        if what == 2:
            return torch.cat([tensor, tensor])
        if what == 3:
            return torch.full_like(tensor, int(_one((0, -1, 1 << 40), rng))) if tensor.dtype == torch.int64 else -tensor
        if what == 4:
            return (tensor * _one(_FACTORS, rng)).to(tensor.dtype)
        changed = tensor.clone().flatten()
        changed[int(rng.integers(len(changed)))] = _one(_NUMBERS, rng)
        return changed.reshape(tensor.shape)
    return tensor
