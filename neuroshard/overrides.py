"""Checking a command's overrides before Hydra runs it, so that a mistake is one line with the nearest valid name."""

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Override
from omegaconf import DictConfig, OmegaConf

from neuroshard.errors import UserError, unknown_name
from neuroshard.registry import choices, chosen_of, compose_config, is_group, leaves, missing, needed


def check_overrides(command: str, overrides: Sequence[Override], sweeping: bool) -> None:
    """Raise UserError if an override names a setting or choice that doesn't exist, or something is still missing."""
    check_choices(command, overrides)
    own = [o for o in overrides if not o.key_or_group.startswith("hydra")]
    groups = [o for o in own if is_group(o.key_or_group)]
    if not sweeping:
        _check_single(own)
    first = [_job(o, first=True) for o in own]
    chosen = [text for o, text in zip(own, first, strict=True) if o in groups]
    config = compose_config(command, chosen)
    settings = [o for o in own if o not in groups]
    for override in settings:
        if not _holds(config, override.key_or_group):
            raise unknown_name(f"setting of neuroshard {command}", override.key_or_group, setting_names(config))
    for group in groups:
        for value in _values(group)[1:]:
            _check_applies(command, chosen, f"{group.key_or_group}={value}", settings)
    whole = compose_config(command, first)
    for key in missing(whole):
        raise needed(command, key, whole, chosen_of(command, first))
    if sweeping:
        _check_apart(command, own, whole)


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


def _check_apart(command: str, overrides: Sequence[Override], first: DictConfig) -> None:
    """Raise UserError if a sweep's jobs would all write to the same place."""
    if not any(o.is_sweep_override() for o in overrides):
        return
    last = compose_config(command, [_job(o, first=False) for o in overrides])
    one, other = (dict(leaves(config)).get("out") for config in (first, last))
    if isinstance(one, str) and one == other and "${" not in one:
        swept = next(o.key_or_group for o in overrides if o.is_sweep_override())
        name = "method" if swept == "searcher" else swept
        raise UserError(f"every job of this sweep would write to out={one}; name them apart: out='{one}-${{{name}}}'")


def _values(override: Override) -> list[str]:
    value: Any = override.value()
    return [str(item) for item in value.list] if isinstance(value, ChoiceSweep) else [str(value)]


def _job(override: Override, *, first: bool) -> str:
    """What the first, or the last, job of a sweep is given."""
    if not override.is_sweep_override():
        return str(override.input_line)
    values = list(override.sweep_string_iterator())
    return f"{override.get_key_element()}={values[0 if first else -1]}"


def _holds(config: DictConfig, key: str) -> bool:
    node: Any = config
    for name in key.split("."):
        if not isinstance(node, DictConfig) or name not in node._content:  # type: ignore[operator]
            return False
        node = node._get_node(name)
    return True


def setting_names(config: DictConfig) -> list[str]:
    """Every setting that may be given, with dots."""
    plain: Any = OmegaConf.to_container(config, resolve=False)
    return [key for key in _flat_keys(plain, "") if "_target_" not in key and key.split(".")[0] != "run"]


def _flat_keys(plain: Any, prefix: str) -> list[str]:
    keys: list[str] = []
    for name, value in plain.items():
        keys.append(f"{prefix}{name}")
        if isinstance(value, dict):
            keys += _flat_keys(value, f"{prefix}{name}.")
    return keys
