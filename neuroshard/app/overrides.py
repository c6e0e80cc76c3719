"""Checking a command's overrides before Hydra runs it, so that a mistake is one line with the nearest valid name."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from neuroshard.app.arguments import given_by, values_of
from neuroshard.app.settings import joins, needed, said_of
from neuroshard.bundles import ROOFLINE
from neuroshard.plumbing.configs import (
    BUILDING,
    EXPERIMENT,
    Composed,
    choices,
    choices_in,
    groups_of,
    is_group,
    leaves_of,
    missing,
)
from neuroshard.plumbing.errors import UserError, unknown_name

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_MOST_JOBS = 10_000
_QUOTES = "'\""
_MEASURING = ("hardware", "finalists", "passes")  # of a search, which measures nothing with verify=none


def check_overrides(command: str, overrides: Sequence["Override"], sweeping: bool) -> None:
    """Raise UserError if an override names a setting or choice that doesn't exist, or something is still missing."""
    own = [o for o in overrides if not o.key_or_group.startswith("hydra")]
    if not sweeping:
        _check_single(own)
    _check_jobs(own)
    check_settings(command, own)
    given = given_by(own)
    for override in own:
        for name in _values(override)[1:] if is_group(override.key_or_group) else ():
            _check_applies(command, given, override.key_or_group, name)
    whole = Composed.of(command, given)
    _check_measuring(own, whole.chosen)
    for key in missing(whole.settings):
        raise needed(whole, key)
    if sweeping:
        _check_apart(own, whole.settings)


def check_settings(command: str, overrides: Sequence["Override"]) -> None:
    """Raise UserError if an override names no setting of the command, or gives it what it can't take."""
    _check_choices(command, overrides)
    given = given_by(overrides)
    composed = Composed.of(command, choices_in(given))
    held = dict(_nodes(composed.settings))
    for group, name in composed.chosen.items():
        if name not in choices(group):
            raise unknown_name(group, name, choices(group))
    for override in overrides:
        if (key := override.key_or_group) not in given or is_group(key):
            continue
        if key not in held:
            raise unknown_name(f"setting of neuroshard {command}", key, _setting_names(composed.settings))
        _check_one(override, held[key], "null" in said_of(composed, key))
        if joins(held[key], composed.settings):
            raise UserError(f"{key} can't be set; it hands on the settings of that name")


def _check_choices(command: str, overrides: Sequence["Override"]) -> None:
    """Raise UserError if a group is none of the command's, or is given a choice that it doesn't have."""
    groups = [*groups_of(command), EXPERIMENT]
    for override in overrides:
        group = override.key_or_group
        if group == "roofline":
            raise UserError(f"{override.input_line!r} is no setting; write model=roofline:{_values(override)[0]}")
        if is_group(group) and group not in groups:
            raise unknown_name(
                f"setting of neuroshard {command}", group, [*groups, *_setting_names(Composed.of(command, {}).settings)]
            )
        if is_group(group):
            known = choices(group)
            for value in _values(override):
                if value not in known and (group, value) != (EXPERIMENT, "None"):
                    raise unknown_name(group, value, known)


def _check_single(overrides: Sequence["Override"]) -> None:
    for override in overrides:
        if override.is_sweep_override():
            raise UserError(
                f"{override.input_line!r} lists several values: write -m to run a job for each, or quote a single one"
            )


def _check_applies(command: str, given: Mapping[str, Any], group: str, name: str) -> None:
    """Raise UserError if another choice of a sweep lacks a setting that the first choice has."""
    held = dict(_nodes(Composed.of(command, choices_in(given) | {group: name}).settings))
    for key in given:
        if not is_group(key) and key not in held:
            raise UserError(f"{key} is not a setting of {group}={name}; sweep the two apart")


def _check_measuring(overrides: Sequence["Override"], chosen: Mapping[str, str]) -> None:
    """Raise UserError if a search is told how to measure and measures nothing."""
    verify = [name for o in overrides if o.key_or_group == "verify" for name in _values(o)]
    idle = next((o for o in overrides if o.key_or_group.split(".")[0] in _MEASURING), None)
    if idle is not None and {*verify, chosen.get("verify")} == {"none"}:
        raise UserError(
            f"{idle.input_line} does nothing: searches measure plans with verify=hardware, torchrec or mirrored only"
        )


def _check_one(override: "Override", held: Any, may_be_null: bool) -> None:
    """Raise UserError if a group of settings is given a value: its settings are given one by one."""
    wrong = [one for one in _values(override) if not one.startswith("{") and not (may_be_null and one == "None")]
    if isinstance(held, dict) and wrong:
        key = override.key_or_group
        inner = [f"{key}.{name}=..." for name, _ in leaves_of(held) if not name.endswith(BUILDING)]
        sheet = f"; a datasheet is model={ROOFLINE}{wrong[0]}" if wrong[0] in choices("roofline") else ""
        raise UserError(f"{override.input_line} is no setting but a group of them: write {', '.join(inner)}{sheet}")


def _check_jobs(overrides: Sequence["Override"]) -> None:
    """Raise UserError if a sweep has more jobs than anybody wants, without listing them."""
    jobs = 1
    for override in overrides:
        if override.is_sweep_override():
            jobs *= sum(1 for _ in islice(override.sweep_string_iterator(), _MOST_JOBS + 1))
    if jobs > _MOST_JOBS:
        raise UserError(f"this sweep has more than {_MOST_JOBS:,} jobs; sweep fewer values")


def _check_apart(overrides: Sequence["Override"], whole: Mapping[str, Any]) -> None:
    """Raise UserError if jobs of a sweep would write to the same place: `out` must vary with everything swept."""
    swept = [o.key_or_group for o in overrides if o.is_sweep_override()]
    given = next((o for o in overrides if o.key_or_group == "out"), None)
    settings = dict(leaves_of(whole))
    out = str(given.input_line).partition("=")[2] if given is not None else settings.get("out")
    if not swept or out is None or out == "null":
        return  # every run takes a directory of its own
    varying = _named(str(out), settings)
    if "hydra:job.num" in varying:
        return
    for key in swept:
        if key not in varying and key != "out":
            name = "method" if key == "searcher" else key
            raise UserError(
                f"jobs of this sweep that differ in {key} would write to the same out={out}; name them apart: "
                f"out='{str(out).strip(_QUOTES)}-${{{name}}}'"
            )


def _named(text: str, settings: Mapping[str, Any]) -> set[str]:
    """Settings and choices that a text names by `${...}`, directly or through other settings."""
    found: set[str] = set()
    for name in re.findall(r"\$\{([^{}]+)\}", text):
        found.add(name.removeprefix("hydra:runtime.choices."))
        found |= _named(str(settings[name]), settings) if name in settings else set()
    return found


def _values(override: "Override") -> list[str]:
    return [str(value) for value in values_of(override, _MOST_JOBS)]


def _setting_names(config: Mapping[str, Any]) -> list[str]:
    """Every setting that may be given, with dots."""
    return [key for key, _ in _nodes(config) if "_target_" not in key and key.split(".")[0] != "run"]


def _nodes(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(key with dots, value) of every setting and of every group of them."""
    for name, value in settings.items():
        yield f"{prefix}{name}", value
        if isinstance(value, dict):
            yield from _nodes(value, f"{prefix}{name}.")
