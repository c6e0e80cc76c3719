"""Checking a command's overrides before Hydra runs it, so that a mistake is one line with the nearest valid name."""

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Override
from omegaconf import DictConfig

from neuroshard.app.settings import joins, needed, said_of
from neuroshard.bundles import ROOFLINE
from neuroshard.plumbing.configs import choices, is_group, leaves_of
from neuroshard.plumbing.errors import UserError, unknown_name
from neuroshard.plumbing.registry import chosen_of, compose_config, leaves, missing, plain

_MOST_JOBS = 10_000
_QUOTES = "'\""


def check_overrides(command: str, overrides: Sequence[Override], sweeping: bool) -> None:
    """Raise UserError if an override names a setting or choice that doesn't exist, or something is still missing."""
    check_choices(command, overrides)
    own = [o for o in overrides if not o.key_or_group.startswith("hydra")]
    chosen_of(command, [str(o.input_line) for o in overrides if o not in own])  # or Hydra would refuse them later
    groups = [o for o in own if is_group(o.key_or_group)]
    if not sweeping:
        _check_single(own)
    _check_jobs(own)
    first = [_first(o) for o in own]
    chosen = [text for o, text in zip(own, first, strict=True) if o in groups]
    config = compose_config(command, chosen)
    settings = [o for o in own if o not in groups]
    made = chosen_of(command, chosen) if settings else {}
    for override in settings:
        if not _holds(config, override.key_or_group):
            raise unknown_name(f"setting of neuroshard {command}", override.key_or_group, setting_names(config))
        _check_one(config, override, "null" in said_of(command, override.key_or_group, plain(config), made))
        if joins(dict(leaves(config)).get(override.key_or_group), plain(config)):
            raise UserError(f"{override.key_or_group} can't be set; it hands on the settings of that name")
    for group in groups:
        for value in _values(group)[1:]:
            _check_applies(command, chosen, f"{group.key_or_group}={value}", settings)
    whole = compose_config(command, first)
    for key in missing(whole):
        raise needed(command, key, plain(whole), chosen_of(command, first))
    if sweeping:
        _check_apart(own, whole)


def check_choices(command: str, overrides: Sequence[Override]) -> None:
    """Raise UserError if a group is none of the command's, or is given a choice that it doesn't have."""
    groups = [*chosen_of(command, []), "experiment"]
    for override in overrides:
        group = override.key_or_group
        if group == "roofline":
            raise UserError(f"{override.input_line!r} is no setting; write model=roofline:{_values(override)[0]}")
        if is_group(group) and group not in groups:
            names = [*groups, *setting_names(compose_config(command, []))]
            raise unknown_name(f"setting of neuroshard {command}", group, names)
        if is_group(group):
            known = choices(group)
            for value in _values(override):
                if value not in known and (group, value) != ("experiment", "None"):
                    raise unknown_name(group, value, known)


def _check_single(overrides: Sequence[Override]) -> None:
    for override in overrides:
        if override.is_sweep_override():
            raise UserError(
                f"{override.input_line!r} lists several values: write -m to run a job for each, or quote a single one"
            )


def _check_applies(command: str, chosen: list[str], other: str, settings: Sequence[Override]) -> None:
    """Raise UserError if a sweep's `other` choice lacks a setting that the first choice has."""
    config = compose_config(command, [*chosen, other])
    for override in settings:
        if not _holds(config, override.key_or_group):
            raise UserError(f"{override.key_or_group} is not a setting of {other}; sweep the two apart")


def _check_one(config: DictConfig, override: Override, may_be_null: bool) -> None:
    """Raise UserError if a group of settings is given a value: its settings are given one by one."""
    key, held = override.key_or_group, plain(config)
    for name in key.split("."):
        held = held[name]
    wrong = [one for one in _values(override) if not one.startswith("{") and not (may_be_null and one == "None")]
    if isinstance(held, dict) and wrong:
        inner = [f"{key}.{name}=..." for name, _ in leaves_of(held) if not name.endswith(("_target_", "_partial_"))]
        sheet = f"; a datasheet is model={ROOFLINE}{wrong[0]}" if wrong[0] in choices("roofline") else ""
        raise UserError(f"{override.input_line} is no setting but a group of them: write {', '.join(inner)}{sheet}")


def _check_jobs(overrides: Sequence[Override]) -> None:
    """Raise UserError if a sweep has more jobs than anybody wants, without listing them."""
    jobs = 1
    for override in overrides:
        if override.is_sweep_override():
            jobs *= sum(1 for _ in islice(override.sweep_string_iterator(), _MOST_JOBS + 1))
    if jobs > _MOST_JOBS:
        raise UserError(f"this sweep has more than {_MOST_JOBS:,} jobs; sweep fewer values")


def _check_apart(overrides: Sequence[Override], config: DictConfig) -> None:
    """Raise UserError if jobs of a sweep would write to the same place: `out` must vary with everything swept."""
    swept = [o.key_or_group for o in overrides if o.is_sweep_override()]
    given = next((o for o in overrides if o.key_or_group == "out"), None)
    settings = dict(leaves(config))
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


def _values(override: Override) -> list[str]:
    value: Any = override.value()
    if isinstance(value, ChoiceSweep):
        return [str(item) for item in value.list]
    return [str(override.input_line).partition("=")[2] if override.is_sweep_override() else str(value)]


def _first(override: Override) -> str:
    """What the first job of a sweep is given."""
    if not override.is_sweep_override():
        return str(override.input_line)
    return f"{override.get_key_element()}={next(iter(override.sweep_string_iterator()))}"


def _holds(config: DictConfig, key: str) -> bool:
    node: Any = config
    for name in key.split("."):
        if not isinstance(node, DictConfig) or name not in node._content:  # type: ignore[operator]
            return False
        node = node._get_node(name)
    return True


def setting_names(config: DictConfig) -> list[str]:
    """Every setting that may be given, with dots."""
    return [key for key in _flat_keys(plain(config), "") if "_target_" not in key and key.split(".")[0] != "run"]


def _flat_keys(settings: Any, prefix: str) -> list[str]:
    keys: list[str] = []
    for name, value in settings.items():
        keys.append(f"{prefix}{name}")
        if isinstance(value, dict):
            keys += _flat_keys(value, f"{prefix}{name}.")
    return keys
