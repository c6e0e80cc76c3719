"""CSV that spreadsheets show as it is."""

import csv
import re
from pathlib import Path

import pandas as pd

from neuroshard.plumbing.files import write_atomically

_FORMULA = re.compile(r"\s*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # also as wide as Chinese and Japanese letters


def save_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame, atomically; a text that a spreadsheet would take for a formula gets a quote before it."""
    safe = frame.apply(lambda column: column.map(_as_text)).rename(columns=_as_text)
    text = safe.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC)
    write_atomically(path, lambda temporary: temporary.write_bytes(text.encode("utf-8", errors="replace")))


def _as_text(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) and not _is_number(cell) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
