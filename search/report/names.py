"""What a run is called beside others: runs of one method are told apart by what differs between them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuroshard.plumbing.grouping import grouped
from neuroshard.records.run_directory import flat
from neuroshard.stages.search.results.search_results import SearchRun

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?"
_SETTING = re.compile(rf"([\w.]+)=({_NUMBER})")
_LARGEST = 1e18
_SEED = "seed"  # a number that is no quantity
_MOST_DIFFERENCES = 3  # named; of more, the directory says more


@dataclass(frozen=True)
class Name:
    """A run's name beside others on the same tasks, and its place in a sweep over a number, if it is part of one."""

    method: str
    setting: str | None
    value: float | None


def named(runs: Sequence[tuple[str, SearchRun]]) -> dict[Path, Name]:
    """The names of runs, by path; each is given with what its tasks are.

    Runs of one method on the same tasks are told apart by their models, their settings, or else their paths. A method
    named "setting=number" is part of a sweep, and so are runs that differ in one number only, other than a seed.
    """
    groups = grouped(runs, lambda one: (one[0], one[1].searcher)).values()
    return {path: name for group in groups for path, name in _of_group([run for _, run in group]).items()}


def _of_group(group: Sequence[SearchRun]) -> dict[Path, Name]:
    """Name the runs of one method on the same tasks so that they can be told apart."""
    settings = {run.path: flat(run.settings) for run in group}
    keys = dict.fromkeys(key for given in settings.values() for key in given)
    differing = [key for key in keys if len({repr(given.get(key)) for given in settings.values()}) > 1]
    models = len({run.model for run in group}) > 1
    marks = {
        run.path: (*([run.model] if models else []), *(f"{key}={settings[run.path].get(key)}" for key in differing))
        for run in group
    }
    if len(differing) > _MOST_DIFFERENCES or len(set(marks.values())) < len(group):
        marks = {run.path: (str(run.path),) for run in group}
    swept = _swept(differing[0], settings) if len(differing) == 1 and not models else {}
    return {run.path: _name(run.searcher, marks[run.path], differing, swept.get(run.path)) for run in group}


def _name(method: str, marks: Sequence[str], differing: Sequence[str], value: float | None) -> Name:
    suffix = f" ({', '.join(marks)})" if marks else ""
    if value is not None:
        return Name(method + suffix, f"{differing[0]} of {method}", value)
    if (found := _SETTING.fullmatch(method)) and _is_number(float(found[2])):
        return Name(method + suffix, found[1] + suffix, float(found[2]))
    return Name(method + suffix, None, None)


def _swept(key: str, settings: Mapping[Path, Mapping[str, Any]]) -> dict[Path, float]:
    """The values of a setting by path, if all are numbers, each another one."""
    values = {path: given.get(key) for path, given in settings.items()}
    numbers = {path: float(value) for path, value in values.items() if value is not None and _is_number(value)}
    if key.rpartition(".")[2] == _SEED or len(set(numbers.values())) < len(values):
        return {}
    return numbers


def _is_number(value: object) -> bool:
    """Whether it is one that can be drawn."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST
