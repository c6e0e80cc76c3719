"""Checking a command's overrides before Hydra runs it, so that a mistake is one line with the nearest valid name."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from neuroshard.app.arguments import MOST_JOBS, Override, asked_by, file_error
from neuroshard.app.settings import joins, needed, said_of
from neuroshard.bundles import ROOFLINE
from neuroshard.plumbing.configs import (
    BUILDING,
    CHOICE_IN,
    EXPERIMENT,
    REFERENCE,
    Composed,
    choices,
    choices_in,
    groups_of,
    is_group,
    leaves_of,
    missing,
    nodes_of,
)
from neuroshard.plumbing.errors import UserError, check_name, unknown_name
from neuroshard.plumbing.messages import number_of

_QUOTES = "'\""


def check_overrides(command: str, overrides: Sequence[Override], sweeping: bool) -> None:
    """Raise UserError if an override names a setting or choice that doesn't exist, or something is still missing."""
    own = [override for override in overrides if not override.is_hydras]
    if not sweeping and (listing := [override.text for override in own if override.swept]):
        raise UserError(
            "sweep-without-flag",
            f"{listing[0]!r} lists several values",
            limit="only a sweep takes several values",
            remedy="Add -m to run a job for each value, or quote the value if it is a single one",
        )
    if prod(len(override.values) for override in overrides) > MOST_JOBS:
        limit = f"the maximum is {number_of(MOST_JOBS, 'job')}"
        raise UserError("sweep-large", "the sweep has too many jobs", limit=limit, remedy="Sweep fewer values")
    check_settings(command, own)
    asked = asked_by(own)
    for override in own:
        for name in override.values[1:] if is_group(override.key) else ():
            _check_applies(command, asked, override.key, str(name))
    whole = Composed.of(command, asked)
    _check_used(command, own, whole)
    for key in missing(whole.settings):
        raise needed(whole, key)
    if sweeping:
        _check_apart(own, whole.settings)


def check_settings(command: str, overrides: Sequence[Override]) -> None:
    """Raise UserError if an override names no setting of the command, or gives it what it can't take."""
    _check_choices(command, overrides)
    composed = Composed.of(command, choices_in(asked_by(overrides)))
    held = dict(nodes_of(composed.settings))
    for group, name in composed.chosen.items():
        check_name(group, name, choices(group))
    for override in overrides:
        key = override.key
        if override.is_hydras or is_group(key):
            continue
        if key not in held:
            raise unknown_name(f"setting of neuroshard {command}", key, _setting_names(composed.settings))
        _check_one(override, held[key], "null" in said_of(composed, key))
        if joins(held[key], composed.settings):
            joined = str(held[key])[2:-1]
            raise UserError(
                "setting-joins",
                f"{key} cannot be set",
                limit=f"{key} always has the value of the settings group {joined!r}",
                remedy=f"Set {joined}=..., or a setting in the group, such as {joined}.NAME=...",
            )


def _check_choices(command: str, overrides: Sequence[Override]) -> None:
    """Raise UserError if a group is none of the command's, or is set to a choice that it doesn't have."""
    groups = [*groups_of(command), EXPERIMENT]
    for override in overrides:
        group = override.key
        if group == "roofline":
            remedy = f"Set model={ROOFLINE}{override.values[0]}"
            raise UserError("roofline-as-setting", f"{override.text!r} is not a setting", remedy=remedy)
        if is_group(group) and group not in groups:
            names = [*groups, *_setting_names(Composed.of(command, {}).settings)]
            raise unknown_name(f"setting of neuroshard {command}", group, names)
        for value in map(str, override.values) if is_group(group) else ():
            if value not in choices(group) and (group, value) != (EXPERIMENT, "None"):
                raise file_error(group, value) or unknown_name(group, value, choices(group))


def _check_applies(command: str, asked: Mapping[str, Any], group: str, name: str) -> None:
    """Raise UserError if another choice of a sweep lacks a setting that the first choice has."""
    held = dict(nodes_of(Composed.of(command, choices_in(asked) | {group: name}).settings))
    for key in asked:
        if not is_group(key) and key not in held:
            raise UserError(
                "sweep-setting-of-other",
                f"{group}={name} has no setting {key}",
                limit=f"the sweep sets {key} for every {group}",
                remedy=f"Run {group}={name} as a sweep of its own, without {key}",
            )


def _check_used(command: str, overrides: Sequence[Override], whole: Composed) -> None:
    """Raise UserError if an override sets a value that no chosen config reads, in any job of a sweep."""
    made = [(one.key, str(name)) for one in overrides if is_group(one.key) for name in one.values]
    jobs = [whole, *(Composed.of(command, {**whole.chosen, group: name}) for group, name in made)]
    used = set[str]().union(*(_used(job.settings) for job in jobs))
    for override in overrides:
        if (key := override.key.split(".")[0]) not in used and key != EXPERIMENT:
            limit, remedy = _where_used(command, key, whole.chosen)
            remedy = f"Remove {override.text}{remedy}"
            raise UserError("setting-unused", f"{override.text} has no effect", limit=limit, remedy=remedy)


def _where_used(command: str, key: str, chosen: Mapping[str, str]) -> tuple[str, str]:
    """Return with which choices a setting without effect has an effect: the limit and a remedy of an error."""
    for group, name in chosen.items():
        others = [one for one in choices(group) if key in _used(Composed.of(command, {group: one}).settings)]
        if others and name not in others and len(others) < len(choices(group)):
            limit = f"{key} has an effect with {group}={' or '.join(others)}, not with {group}={name}"
            return limit, f", or set {group}={others[0]}"
    return "nothing in this command uses the setting", ""


def _used(settings: Mapping[str, Any]) -> set[str]:
    """Find the settings, by their first words, that what a command runs is built from."""
    return {name.split(".")[0] for name in ("run", *_named(settings["run"], dict(nodes_of(settings))))}


def _check_one(override: Override, held: Any, may_be_null: bool) -> None:
    """Raise UserError if a group of settings is set to a value: its settings are set one by one."""
    wrong = [
        one for one in map(str, override.values) if not one.startswith("{") and not (may_be_null and one == "None")
    ]
    if isinstance(held, dict) and wrong:
        inner = [f"{override.key}.{name}=..." for name, _ in leaves_of(held) if not name.endswith(BUILDING)]
        sheet = f", or model={ROOFLINE}{wrong[0]} for a datasheet" if wrong[0] in choices("roofline") else ""
        raise UserError(
            "setting-is-group",
            f"{override.text} has a single value",
            limit=f"{override.key} is a group of settings",
            remedy=f"Set {', '.join(inner)}{sheet}",
        )


def _check_apart(overrides: Sequence[Override], whole: Mapping[str, Any]) -> None:
    """Raise UserError if jobs of a sweep would write to the same place: `out` must vary with everything swept."""
    swept = [override.key for override in overrides if override.swept]
    outs = [override.text.partition("=")[2] for override in overrides if override.key == "out"]
    settings = dict(leaves_of(whole))
    out = outs[0] if outs else settings.get("out")
    if not swept or out is None or out == "null":
        return  # every run takes a directory of its own
    varying = _named(out, settings)
    if "hydra:job.num" in varying:
        return
    for key in swept:
        if key not in varying and key != "out":
            name = "method" if key == "searcher" else key
            raise UserError(
                "sweep-out-shared",
                f"jobs of this sweep that differ in {key} would write to the same out={out}",
                limit="each job needs an out of its own",
                remedy=f"Name {key} in out: out='{str(out).strip(_QUOTES)}-${{{name}}}'",
            )


def _named(held: Any, settings: Mapping[str, Any]) -> set[str]:
    """Collect settings and choices that a value, or a group of them, names by `${...}`, directly or through others.

    `settings` are those that are looked into, by their names with dots.
    """
    names, values = set[str](), [held]
    while values:
        value = values.pop()
        texts = [text for _, text in leaves_of(value)] if isinstance(value, dict) else [value]
        found = {name.removeprefix(CHOICE_IN) for text in texts for name in REFERENCE.findall(str(text))}
        values += [settings[name] for name in found - names if name in settings]
        names |= found
    return names


def _setting_names(config: Mapping[str, Any]) -> list[str]:
    """List every setting that may be set, with dots."""
    return [key for key, _ in nodes_of(config) if "_target_" not in key and key.split(".")[0] != "run"]
