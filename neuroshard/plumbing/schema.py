"""Parsing of external input: files, settings and sizes are converted to typed values, or refused with a one-line error.

Types are annotations such as `Annotated[int, Meta(ge=1)]`. msgspec checks them, because msgspec imports in 20 ms. The
limits below are large enough for the largest task that NeuroShard supports, and small enough that every number of bytes
fits in 64 bits.
"""

import json
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from math import ceil, floor, isfinite, log10
from reprlib import Repr
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from neuroshard.plumbing.errors import UserError, unknown_name
from neuroshard.plumbing.messages import number_of

MAX_TABLES = 100_000
MAX_TASKS = 100_000
MAX_DEVICES = 4096
MAX_ROWS = 1 << 40
MAX_DIM = 1 << 16
MAX_POOLING_FACTOR = 1 << 20
MAX_FEATURES = 1 << 10
MAX_BATCH_SIZE = 1 << 30
DIM_MULTIPLE = 4  # FBGEMM's rule for the width of a table or shard
MAX_SHARD_DIM = 2048  # the widest shard that FBGEMM's CUDA kernels take, fused and dense (`max_embedding_dim` there)
_MAX_COUNT = 1 << 31

Count = Annotated[int, Meta(ge=0, le=_MAX_COUNT)]  # number of things, 0 allowed
PositiveCount = Annotated[int, Meta(ge=1, le=_MAX_COUNT)]
TableCount = Annotated[int, Meta(ge=1, le=MAX_TABLES)]
SEEDS = 1 << 62  # number of seeds: a seed plus a count still fits in 63 bits
Seed = Annotated[int, Meta(ge=0, le=SEEDS - 1)]
Rows = Annotated[int, Meta(ge=1, le=MAX_ROWS)]
Dim = Annotated[int, Meta(ge=DIM_MULTIPLE, le=MAX_DIM, multiple_of=DIM_MULTIPLE)]
ShardDim = Annotated[int, Meta(ge=DIM_MULTIPLE, le=MAX_SHARD_DIM, multiple_of=DIM_MULTIPLE)]
Offset = Annotated[int, Meta(ge=0, lt=MAX_DIM, multiple_of=DIM_MULTIPLE)]  # index of a shard's first column
FirstRow = Annotated[int, Meta(ge=0, lt=MAX_ROWS)]  # index of a shard's first row
PoolingFactor = Annotated[float, Meta(gt=0, le=MAX_POOLING_FACTOR)]
Features = Annotated[int, Meta(ge=1, le=MAX_FEATURES)]  # number of features that read one table
Share = Annotated[float, Meta(ge=0, le=1)]
CacheShare = Annotated[float, Meta(gt=0, le=1)]  # share of a table's rows in a cache
BytesPerElement = Annotated[int, Meta(ge=2, le=4, multiple_of=2)]  # 2 for fp16, 4 for fp32
Devices = Annotated[int, Meta(ge=1, le=MAX_DEVICES)]
Device = Annotated[int, Meta(ge=0, lt=MAX_DEVICES)]
BatchSize = Annotated[int, Meta(ge=1, le=MAX_BATCH_SIZE)]
Name = Annotated[str, Meta(min_length=1, max_length=1000)]
FileName = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^/\x00]+$")]
PathName = Annotated[str, Meta(min_length=1, max_length=4096)]
NonNegative = Annotated[float, Meta(ge=0, le=1e18)]
Positive = Annotated[float, Meta(gt=0, le=1e18)]

Seconds = Annotated[float, Meta(gt=0, le=1e8)]  # time to wait, at most three years

_T = TypeVar("_T")
_BOM = b"\xef\xbb\xbf"
MAX_DEPTH = 50  # maximum levels of nested lists and fields
_LONGEST_VALUE = 60  # maximum letters of a value in an error
_LONGEST_INT = 160  # maximum bits of a number that errors write out in full
_BOUNDS = {  # msgspec's comparison: (the limit as a clause, a value within the limit)
    ">=": ("the minimum{} is {}", "{} or more"),
    "<=": ("the maximum{} is {}", "{} or less"),
    ">": ("the value{} must be above {}", "more than {}"),
    "<": ("the value{} must be below {}", "less than {}"),
}
_WORDS = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
    "object": "a mapping of fields", "null": "null",
}  # fmt: skip
MAX_BYTES = 1 << 60  # maximum of every size: the sum of a few sizes still fits in 64 bits
AS_SIZE = "size"
ByteSize = Annotated[int, Meta(ge=0, le=MAX_BYTES), AS_SIZE]  # `checked` also accepts text such as "4GiB"
Size = int | float | str  # bytes as people write them: 34359738368, 1e9, "32GiB", "16 GB"
_MOST_NAMED = 9.995e14  # larger numbers have no name that every reader knows
_FOUR_DIGITS = 999.5  # from this number on, rounding to three digits gives 1e+03
_GIB, _MIB, _KIB = 1 << 30, 1 << 20, 1 << 10
_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15,
    "kib": 1 << 10, "mib": _MIB, "gib": _GIB, "tib": 1 << 40, "pib": 1 << 50,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d{1,25}(?:\.\d{0,25})?(?:e[+-]?\d{1,3})?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


def parse(content: object, hint: type[_T], where: str) -> _T:
    """Convert plain values from JSON or YAML to a value of the type `hint`, such as a dataclass.

    Raises:
        UserError: a field is missing, unknown, of the wrong type or out of range; the error begins with `where`, the
            place of the content, such as a file.
    """
    try:
        refuse_unknown(content, hint)
        return msgspec.convert(content, hint)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if not isinstance(cause, UserError):
            raise refusal(str(error), content).at(where) from None
        named = (cause.message.where or cause.message.what).startswith(where)
        raise (cause if named else cause.at(", ".join(filter(None, (where, _path_in(str(error))))))) from None
    except UserError as error:
        raise error.at(where) from None


def decode(text: str | bytes, where: str) -> Any:
    """Parse a JSON text, and return the content as plain values: dicts, lists, numbers and text.

    Raises:
        UserError: the text is not JSON in UTF-8, has a field twice in one object or a number that is not finite, or is
            nested too deeply; the error begins with `where`, the place of the text, such as a file.
    """
    try:
        plain = text.removeprefix(_BOM) if isinstance(text, bytes) else text
        # Python's parser calls `_check_fields` for each object; msgspec below words the errors about syntax. `len`
        # replaces the conversion of whole numbers, which Python refuses for very long numbers.
        with suppress(json.JSONDecodeError, UnicodeDecodeError):
            json.loads(plain, parse_int=len, object_pairs_hook=_check_fields)
        content = msgspec.json.decode(plain)
        check_depth(content)
    except (msgspec.DecodeError, UnicodeError) as error:
        what = "the text is not valid JSON"
        remedy = "Correct the JSON text, or write the file again"
        raise UserError("json-unreadable", what, where=where, limit=str(error), remedy=remedy) from None
    except UserError as error:
        raise error.at(where) from None
    except RecursionError:
        raise nested_too_deeply(MAX_DEPTH).at(where) from None
    return content


def _check_fields(pairs: list[tuple[str, object]]) -> None:
    """Raise UserError if a JSON object has a field twice, or has a number that is not finite.

    msgspec would keep the last of two equal fields, and its error about such a number does not name the field.
    """
    seen: set[str] = set()
    for key, value in pairs:
        if key in seen:
            remedy = "Delete one of these two fields"
            raise UserError("json-field-twice", f"field {shown(key)} occurs twice in one object", remedy=remedy)
        if isinstance(value, float) and not isfinite(value):
            limit, remedy = "numbers must be finite, and below 1.8e308", "Correct the number"
            raise UserError("json-number-infinite", f"field {shown(key)} is {value}", limit=limit, remedy=remedy)
        seen.add(key)


def as_fields(value: Any, rare: Collection[str]) -> dict[str, Any]:
    """Return the fields of a dataclass as a JSON-ready dict.
    A field in `rare` is left out if it has the default value.
    """
    defaults = {field.name: field.default for field in fields(value) if field.name in rare}
    named = asdict(value).items()
    return {name: plain for name, plain in named if name not in defaults or getattr(value, name) != defaults[name]}


def padded(columns: int) -> int:
    """Round a number of columns up to a multiple of 4, because FBGEMM needs such widths for tables and shards."""
    return -(-columns // DIM_MULTIPLE) * DIM_MULTIPLE


def of_format(content: object, name: str, where: str) -> dict[str, Any]:
    """Check the format of a file's content, and return all fields of the content except "format".

    Raises:
        UserError: the content does not have the format `name`; the error begins with `where`, the place of the content.
    """
    file_format = content.get("format") if isinstance(content, dict) else None
    if not isinstance(content, dict) or file_format != name:
        ours = isinstance(file_format, str) and file_format.rpartition("-")[0] == name.rpartition("-")[0]
        raise UserError(
            "file-format-other",
            "there is no field 'format'" if file_format is None else f"the format is {shown(file_format)}",
            where=where,
            limit=f"this version of NeuroShard reads format {name!r}",
            remedy="Make the file again with this version" if ours else f"Give a file of format {name!r}",
        )
    return {key: value for key, value in content.items() if key != "format"}


def check_depth(content: object, left: int = MAX_DEPTH) -> None:
    """Raise UserError if lists and dicts in `content` are nested more than `left` levels deep."""
    if not isinstance(content, (list, dict)):
        return
    if not left:
        raise nested_too_deeply(MAX_DEPTH)
    for inner in content.values() if isinstance(content, dict) else content:
        check_depth(inner, left - 1)


def nested_too_deeply(levels: int) -> UserError:
    """Return the error for a value in which lists or fields are nested more than `levels` levels deep."""
    limit = f"the maximum is {number_of(levels, 'level')}"
    remedy = "Write the value with fewer levels"
    return UserError("value-nested-deeply", "the value is nested too deeply", limit=limit, remedy=remedy)


def refuse_unknown(content: object, hint: Any) -> None:
    """Raise UserError if an object in `content` has an unknown field, that is, a field that the object's dataclass
    lacks.

    `hint` is the annotation for `content`, which contains the dataclass.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated or origin in (Union, UnionType):
        for inner_hint in inner[:1] if origin is Annotated else inner:
            refuse_unknown(content, inner_hint)
    elif origin in (tuple, list, Sequence) and isinstance(content, (list, tuple)):
        for value in content:
            refuse_unknown(value, inner[0])  # tuples of several types contain only plain values
    elif origin is dict and isinstance(content, dict):
        for value in content.values():
            refuse_unknown(value, inner[1])
    elif is_dataclass(hint) and isinstance(content, Mapping):
        hints = _hints(cast(Hashable, hint))
        for key, value in content.items():
            if key not in hints:
                raise unknown_name("field", str(key), hints)
            if hints[key] is not None:
                refuse_unknown(value, hints[key])


@cache
def _hints(hint: Hashable) -> dict[str, Any]:
    """Return a dict from the name of each field of the dataclass `hint` to the annotation of the field.
    If an annotation contains no dataclass, the dict has None instead of the annotation.

    The value of a field without a dataclass cannot have unknown fields, so it needs no check for unknown fields.
    """
    target: Any = hint
    hints = get_type_hints(target, include_extras=True)
    return {field.name: hints[field.name] if _has_fields(hints[field.name]) else None for field in fields(target)}


def _has_fields(hint: Any) -> bool:
    """Return True if an annotation is or contains a dataclass."""
    return is_dataclass(hint) or any(_has_fields(inner) for inner in get_args(hint))


def refusal(message: str, content: object, name: str = "") -> UserError:
    """Return a UserError that explains why msgspec refused a value.
    The reason and the remedy are derived from the text of msgspec's own error.

    Args:
        message: msgspec's text.
        content: all that msgspec was given; the refused value is `content` or a part of it.
        name: name of the setting whose value `content` is; empty if `content` is not a setting.
    """
    text = message.partition(" - at `")[0]
    path = _path_in(message)
    field = f"{name}{path}" if name and path[:1] in ("", "[") else ".".join(filter(None, (name, path)))
    if missing := re.fullmatch(r"Object missing required field `(.*)`", text):
        remedy = f"Add the field {missing[1]!r}"
        return UserError("field-missing", f"there is no field {missing[1]!r}", where=field, remedy=remedy)
    at_a_name = "[...]" in path  # msgspec doesn't say at which name
    value = _value_at(content, path)
    what = f"{field or 'the value'} is {shown(value)}"
    if at_a_name:
        what = f"a value in {field.partition('[...]')[0] or 'the mapping'} is wrong"
    limit, right = _wanted(text)
    if name and right.startswith("a list") and not path and isinstance(value, (str, int, float)):
        remedy = f"Write a list, such as {name}=[{value if isinstance(value, str) else shown(value)}]"
        if isinstance(value, str) and value.startswith("["):  # Hydra reads a list with an umlaut, for example, as text
            remedy = f"Put double quotes around texts with special characters in the list, such as '{name}=[\"x\"]'"
    else:
        remedy = f"Set {field} to {right}" if name and right else "Correct the value"
    return UserError("value-outside-limits", what, limit=limit, remedy=remedy)


def _path_in(message: str) -> str:
    """Return the path of the refused value in a message of msgspec, such as `tables[3].rows`.
    Return an empty text if msgspec refuses the whole content.
    """
    path = message.rpartition(" - at `")[2] if " - at `" in message else ""
    return path.removeprefix("key` in `").rstrip("`").removeprefix("$").removeprefix(".")


def _wanted(text: str) -> tuple[str, str]:
    """Return two texts for the error message about a value that msgspec refused.
    The first text is the limit, such as "the minimum is 4". The second text describes the accepted values, such as "4
    or more".

    `text` is msgspec's message without the path of the value. The second text is empty if the message does not imply
    such a description.
    """
    if match := re.fullmatch(r"Expected `([^`]*)`(?:, got `.*`)?", text):
        types = match[1].split(" | ")
        right = " or ".join(_WORDS.get(name, name) for name in types if name != "int" or "float" not in types)
        return f"{right} is expected", right
    if match := re.fullmatch(r"Expected `([^`]*)` that's a multiple of (.*)", text):
        return f"a multiple of {match[2]} is expected", f"a multiple of {match[2]}"
    if match := re.fullmatch(r"Expected `([^`]*)` of length (\d+)(?:, got (\d+))?", text):
        number, there = match[2], f", not of length {match[3]}" if match[3] else ""
        return f"{_WORDS.get(match[1], match[1])} of length {number} is expected{there}", f"a value of length {number}"
    if match := re.fullmatch(r"Expected `([^`]*)` (of length )?([<>]=?) (.*)", text):
        limit, right = _BOUNDS[match[3]]
        number = match[4].removesuffix(".0")
        bound, inside = limit.format(" length" if match[2] else "", number), right.format(number)
        return bound, f"a value of length {inside}" if match[2] else inside
    right = "a number that fits 64 bits" if text.endswith("out of range") else ""
    enum = "one of the allowed values is expected" if text.startswith("Invalid enum value") else ""
    return (f"{right} is expected" if right else enum or text[:1].lower() + text[1:]), right


class _Short(Repr):
    """A `Repr` that shortens large values, and writes very large whole numbers as powers of two."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 2 * _LONGEST_VALUE

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= _LONGEST_INT else f"{'-' if x < 0 else ''}2^{x.bit_length() - 1}..."


def shown(value: object) -> str:
    """Return a value as text of at most 63 letters; longer texts are cut and end in "..."."""
    text = _Short().repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."


def _value_at(content: object, path: str) -> object:
    """Return the value in `content` at a path such as `tables[3].rows`.
    Return `content` itself if there is no value at the path.
    """
    value: Any = content
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        try:
            value = value[key] if key else value[int(index)]
        except (KeyError, IndexError, TypeError, ValueError):
            return content
    return value


def to_bytes(size: object, name: str) -> int:
    """Convert a size as people write it, such as "32GiB" or 1e9, to a number of bytes.
    Errors name the setting `name`.

    Raises:
        UserError: the value is not a size, or is larger than 2^60 bytes.
    """
    size_bytes = _named_bytes(size if isinstance(size, str) else shown(size))
    if size_bytes is None or size_bytes > MAX_BYTES:
        raise UserError(
            "size-unreadable",
            f"{name} is {shown(size)}",
            limit="a size of at most 2^60 bytes is expected",
            remedy=f"Set {name} to a size such as 34359738368, 32GiB or 16GB",
        )
    return round(size_bytes)


def is_size(text: str) -> bool:
    """Return True if a text is a size, such as "80GB" or a plain number of bytes."""
    return _named_bytes(text) is not None


def _named_bytes(text: str) -> float | None:
    """Return the number of bytes that a text such as "80GB" stands for; None if the text is not a size."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        return None
    number = int(match[1]) if match[1].isdigit() else float(match[1])
    return number * _UNITS[match[2].lower()]


def readable_number(value: float) -> str:
    """Return a number as text in the way that people write numbers: 0.97, 205, 65,536, 3.4 million."""
    for unit, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= unit * _FOUR_DIGITS / 1000:
            return f"{value / unit:.3g} {name}" if value < _MOST_NAMED else f"{value:.3g}"
    return f"{value:.3g}" if value < _FOUR_DIGITS and value != int(value) else f"{value:,.0f}"


def readable_list(texts: Sequence[str], shown: int) -> str:
    """Join the first `shown` texts with commas, and add the number of remaining texts: "a, b, 3 more"."""
    more = len(texts) - shown
    return ", ".join([*texts[:shown], *([f"{more:,} more"] if more > 0 else [])])


def readable_bytes(size_bytes: float) -> str:
    """Return a size in bytes as text, such as "512 MiB", in the largest unit in which the size is 1 or more."""
    unit, name = _unit_of(size_bytes)
    amount = size_bytes / unit
    return f"{amount:.3g} {name}" if amount < _FOUR_DIGITS and unit > 1 else f"{amount:.0f} {name}"


def readable_bytes_up(size_bytes: float) -> str:
    """Return a size in bytes as text such as "1.5 GiB", rounded up. The text is for a required size of memory:
    a memory of the rounded size has room for `size_bytes` bytes.
    """
    unit, name = _unit_of(size_bytes)
    amount = size_bytes / unit
    digit = 10.0 ** max(floor(log10(max(amount, 1))) - 2, -2) if unit > 1 and amount < _FOUR_DIGITS else 1.0
    return f"{round(ceil(amount / digit - 1e-9) * digit, 2):.10g} {name}"


def _unit_of(size_bytes: float) -> tuple[int, str]:
    """Return the unit for a size as (bytes of the unit, name): (1024, "KiB") for 2000 bytes, (1, "bytes") for 500.
    The unit is the largest one that is not larger than the size.
    """
    for unit, name in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if size_bytes >= unit:
            return unit, name
    return 1, "bytes"
