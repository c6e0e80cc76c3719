"""Rows of the files that runs leave, as values of the right type."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from neuroshard.plumbing import parquet
from neuroshard.plumbing.schema import Count, Name, NonNegative, parse


@dataclass(frozen=True)
class SearchRow:
    """What a search made of one task; None where nobody knows."""

    task: Count
    predicted_ms: NonNegative | None
    margin_ms: NonNegative | None
    seconds: NonNegative | None
    error: str | None
    caveat: str | None


@dataclass(frozen=True)
class EvaluationRow:
    """What an evaluation made of one plan; None where nobody knows."""

    method: Name
    task: Count
    predicted_ms: NonNegative | None
    margin_ms: NonNegative | None
    measured_ms: NonNegative | None
    seconds: NonNegative | None


@dataclass(frozen=True)
class TrainingRow:
    """A round of a training: mean cost of the policy's plans for the validation tasks; infinite if it found none."""

    round: Count
    valid_ms: float | None


_Row = TypeVar("_Row", SearchRow, EvaluationRow, TrainingRow)


def read_rows(path: Path, kind: type[_Row]) -> tuple[_Row, ...]:
    """The rows of a Parquet file, of the columns that `kind` names.

    Raises:
        UserError: there is no such file, it can't be read, lacks a column, or holds a wrong value.
    """
    wanted = {field.name for field in fields(kind)}
    given = parquet.read_rows(path, "results of a run")
    rows = [{name: value for name, value in row.items() if name in wanted} for row in given]
    return typed(rows, kind, path)


def typed(rows: Sequence[Mapping[str, Any]], kind: type[_Row], path: Path) -> tuple[_Row, ...]:
    """Rows of plain values as values of the type `kind`; NaN becomes None.

    Raises:
        UserError: a value is missing, of the wrong type or out of range; its line names file and row.
    """
    return tuple(parse(_without_nan(row), kind, f"{path}, row {number}") for number, row in enumerate(rows))


def _without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
