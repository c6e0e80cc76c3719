"""Checking a command's overrides before Hydra runs it, so that a mistake is one line with the nearest valid name."""

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf

from neuroshard.errors import UserError, unknown_name
from neuroshard.registry import choices, compose_config

_FLAGS_WITH_VALUE = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd", "--package", "-p")


def check_overrides(command: str, arguments: Sequence[str]) -> None:
    """Raise UserError if an override is malformed or names a key or choice that doesn't exist."""
    overrides = [o for o in _parse(arguments) if not o.key_or_group.startswith("hydra")]
    groups = [o for o in overrides if _is_group(o)]
    for override in groups:
        _check_choices(override)
    settings = [o for o in overrides if o not in groups and not o.is_add()]
    chosen = [f"{o.key_or_group}={_values(o)[0]}" for o in groups]
    config = _compose(command, chosen)
    for override in settings:
        if not _holds(config, override.key_or_group):
            raise _unknown_key(command, config, override.key_or_group)
    for group in groups:
        for value in _values(group)[1:]:
            _check_applies(command, chosen, f"{group.key_or_group}={value}", settings)


def _check_applies(command: str, chosen: list[str], other: str, settings: list[Override]) -> None:
    """Raise UserError if a sweep's `other` choice lacks a setting that the first choice has."""
    config = _compose(command, [*chosen, other])
    for override in settings:
        if not _holds(config, override.key_or_group):
            raise UserError(f"{override.key_or_group} is not a setting of {other}; sweep the two apart")


def _parse(arguments: Sequence[str]) -> list[Override]:
    texts = []
    skip = False
    for argument in arguments:
        if skip or argument.startswith("-"):
            skip = argument in _FLAGS_WITH_VALUE
            continue
        texts.append(argument)
    try:
        return OverridesParser.create().parse_overrides(texts)
    except OverrideParseException as error:
        raise UserError(f"override {error.override!r} is malformed; write key=value") from None


def _is_group(override: Override) -> bool:
    try:
        return bool(choices(override.key_or_group))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _values(override: Override) -> list[str]:
    value: Any = override.value()
    if isinstance(value, ChoiceSweep):
        return [str(item) for item in value.list]
    return [str(value)]


def _check_choices(override: Override) -> None:
    for value in _values(override):
        if value not in [*choices(override.key_or_group), "None"]:
            raise unknown_name(override.key_or_group, value, choices(override.key_or_group))


def _compose(command: str, overrides: list[str]) -> DictConfig:
    return compose_config(command, [o.replace("=None", "=null") for o in overrides])


def _holds(config: DictConfig, key: str) -> bool:
    node: Any = config
    for name in key.split("."):
        if not isinstance(node, DictConfig) or name not in node._content:  # type: ignore[operator]
            return False
        node = node._get_node(name)
    return True


def _unknown_key(command: str, config: DictConfig, key: str) -> UserError:
    valid = [name for name in _keys(config) if "_target_" not in name]
    return unknown_name(f"setting of neuroshard {command}", key, valid)


def _keys(config: DictConfig, prefix: str = "") -> list[str]:
    plain: Any = OmegaConf.to_container(config, resolve=False)
    return _flat_keys(plain, prefix)


def _flat_keys(plain: Any, prefix: str) -> list[str]:
    keys: list[str] = []
    for name, value in plain.items():
        keys.append(f"{prefix}{name}")
        if isinstance(value, dict):
            keys += _flat_keys(value, f"{prefix}{name}.")
    return keys
