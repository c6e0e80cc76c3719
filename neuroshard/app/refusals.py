"""The settings that Hydra refuses, as one UserError with the nearest valid name."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf

from neuroshard.plumbing.configs import is_group
from neuroshard.plumbing.errors import UserError, unknown_name
from neuroshard.plumbing.registry import composed

_SETTING = re.compile(r"Could not override '([^']+)'")
_CHOICE = re.compile(r"Could not find '([^']+)/([^'/]+)'")
_FOLDER_FLAGS = ("--config-dir", "-cd")
_SEARCH_PATH = "hydra.searchpath"


def refusal_of(error: Exception, command: str, words: Sequence[str]) -> UserError:
    """Make the UserError of an error by which Hydra or OmegaConf refuses the arguments `words` of a command."""
    text = str(error)
    options = getattr(error, "options", None)
    if options and (found := _CHOICE.search(text)):
        return unknown_name(found[1], found[2], options)
    if found := _SETTING.search(text):
        names = _setting_names(command, words)
        if found[1] not in names:
            return unknown_name(f"setting of neuroshard {command}", found[1], names)
    remedy = "Correct the setting that the message names"
    return UserError("hydra-refused", "Hydra cannot use the settings", limit=text.rstrip("."), remedy=remedy)


def _setting_names(command: str, words: Sequence[str]) -> list[str]:
    """List the settings and groups that a command has after the choices in its arguments."""
    folders = [f"file://{Path(word).absolute()}" for flag, word in pairwise(words) if flag in _FOLDER_FLAGS]
    chosen = [word for word in words if is_group(key := word.partition("=")[0]) or key == _SEARCH_PATH]
    for overrides, search_path in ((chosen, folders), ([], [])):
        with suppress(HydraException):
            config = composed(command, overrides, search_path)
            held: Any = OmegaConf.to_container(config, resolve=False)
            return [*filter(is_group, held), "experiment", *_names_in(held)]
    return []


def _names_in(held: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every setting that people set, with dots."""
    for key, value in held.items():
        if key != "_target_" and f"{prefix}{key}" != "run":
            yield f"{prefix}{key}"
            if isinstance(value, dict):
                yield from _names_in(value, f"{prefix}{key}.")
