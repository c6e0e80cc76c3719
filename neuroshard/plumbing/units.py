"""Sizes as people write and read them."""

import re
from math import ceil, floor, log10
from typing import Annotated

from msgspec import Meta

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import shown

MAX_BYTES = 1 << 60  # of anything that is counted in bytes: sums of a few stay exact in 64 bits
AS_SIZE = "size"
ByteSize = Annotated[int, Meta(ge=0, le=MAX_BYTES), AS_SIZE]  # as `checked` takes it: text such as "4GiB" too
Size = int | float | str  # bytes as people write them: 34359738368, 1e9, "32GiB", "16 GB"

_MOST_NAMED = 9.995e14  # larger numbers have no name that everybody knows
_FOUR_DIGITS = 999.5  # from here on three digits would be a power of ten
_GIB, _MIB, _KIB = 1 << 30, 1 << 20, 1 << 10
_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15,
    "kib": 1 << 10, "mib": _MIB, "gib": _GIB, "tib": 1 << 40, "pib": 1 << 50,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d{1,25}(?:\.\d{0,25})?(?:e[+-]?\d{1,3})?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


def to_bytes(size: object, name: str) -> int:
    """Bytes of a size as people write it; `name` is the setting's, for the error.

    Raises:
        UserError: it is no size, or beyond 2^60.
    """
    text = size if isinstance(size, str) else shown(size)
    found = _SIZE.fullmatch(text)
    if isinstance(size, bool) or not found or found[2].lower() not in _UNITS:
        raise _no_size(size, name)
    number = int(found[1]) if found[1].isdigit() else float(found[1])
    size_bytes = number * _UNITS[found[2].lower()]
    if not size_bytes <= MAX_BYTES:
        raise _no_size(size, name)
    return round(size_bytes)


def is_size(text: str) -> bool:
    """Whether a text is a size with its unit, such as "80GB"."""
    found = _SIZE.fullmatch(text)
    return found is not None and found[2].lower() in _UNITS


def _no_size(size: object, name: str) -> UserError:
    return UserError(f"{name}={shown(size)} must be a size up to 2^60 bytes, such as 34359738368, 32GiB or 16GB")


def readable_number(value: float) -> str:
    """The number as people write it: 0.97, 205, 65,536, 3.4 million."""
    for unit, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= unit * _FOUR_DIGITS / 1000:
            return f"{value / unit:.3g} {name}" if value < _MOST_NAMED else f"{value:.3g}"
    return f"{value:.3g}" if value < _FOUR_DIGITS and value != int(value) else f"{value:,.0f}"


def readable_bytes(size_bytes: float) -> str:
    """The size for people, in the largest unit of which there is one at least."""
    unit, name = _unit_of(size_bytes)
    amount = size_bytes / unit
    return f"{amount:.3g} {name}" if amount < _FOUR_DIGITS and unit > 1 else f"{amount:.0f} {name}"


def readable_bytes_up(size_bytes: float) -> str:
    """As `readable_bytes`, but never less: who takes it at its word has enough."""
    unit, name = _unit_of(size_bytes)
    amount = size_bytes / unit
    digit = 10.0 ** max(floor(log10(max(amount, 1))) - 2, -2) if unit > 1 and amount < _FOUR_DIGITS else 1.0
    return f"{round(ceil(amount / digit - 1e-9) * digit, 2):.10g} {name}"


def _unit_of(size_bytes: float) -> tuple[int, str]:
    for unit, name in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if size_bytes >= unit:
            return unit, name
    return 1, "bytes"
