"""Translate errors about settings that Hydra refuses into UserErrors, which suggest the nearest valid name."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from neuroshard.plumbing.configs import is_group
from neuroshard.plumbing.errors import UserError, unknown_name
from neuroshard.plumbing.registry import composed

_SETTING = re.compile(r"Could not override '([^']+)'")
_CHOICE = re.compile(r"Could not find '((?:hydra/)?[^'/]+)/([^']+)'")
_SEVERAL = re.compile(r"Ambiguous value for argument ('[^']+')")
_FOLDER_FLAGS = ("--config-dir", "-cd")
_SEARCH_PATH = "hydra.searchpath"
_MOST_JOBS = 20  # maximum number of jobs of a sweep whose settings are collected for a suggestion


def refusal_of(error: Exception, command: str, words: Sequence[str]) -> UserError:
    """Return a UserError that explains an error of Hydra or OmegaConf to the user of a command.
    The error was raised because Hydra or OmegaConf refuses the arguments `words` of the command.
    """
    text = str(error)
    options = getattr(error, "options", None)
    if options and (found := _CHOICE.search(text)):
        return unknown_name(found[1], found[2], options)
    if (found := _SETTING.search(text)) and not found[1].startswith("hydra"):
        names = _setting_names(command, words)
        if found[1] not in names:
            return unknown_name(f"setting of neuroshard {command}", found[1], names)
        if not {"-m", "--multirun"}.isdisjoint(words):
            return UserError(
                "sweep-setting-of-other",
                f"{found[1]} is not a setting of every choice in the sweep",
                limit=f"the sweep sets {found[1]} in every job",
                remedy=f"Run the choices without {found[1]} as a sweep of their own",
            )
    if found := _SEVERAL.search(text):
        remedy = "Add -m to run a job for each value, or quote the value if it is a single one"
        limit = "only a sweep takes several values"
        return UserError("sweep-without-flag", f"{found[1]} lists several values", limit=limit, remedy=remedy)
    remedy = "Correct the setting that the message of Hydra names"
    return UserError("hydra-refused", "Hydra refuses the settings", limit=text.rstrip("."), remedy=remedy)


def _setting_names(command: str, words: Sequence[str]) -> list[str]:
    """Return the names of all settings and groups that a user can set for a command.
    The names depend on the choices in the arguments of the command, such as searcher=NAME.

    For a sweep, these are the names of all jobs together.
    """
    folders = [f"file://{Path(word).absolute()}" for flag, word in pairwise(words) if flag in _FOLDER_FLAGS]
    paths = [word for word in words if word.startswith(f"{_SEARCH_PATH}=")]
    chosen = [word.partition("=")[::2] for word in words if is_group(word.partition("=")[0])]
    jobs = product(*([f"{group}={name}" for name in names.split(",")] for group, names in chosen))
    found = dict[str, None]()
    for job in islice(jobs, _MOST_JOBS):
        with suppress(HydraException):
            found |= dict.fromkeys(_names_of(composed(command, [*paths, *job], folders)))
    return list(found) or _names_of(composed(command))


def _names_of(config: DictConfig) -> list[str]:
    """Return the names of the groups and settings in a config."""
    values: Any = OmegaConf.to_container(config, resolve=False)
    return [*filter(is_group, values), "experiment", *_names_in(values)]


def _names_in(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the full name, with dots, of every setting in `values` that users can set, such as `tables.path`.
    Each full name begins with `prefix`.
    """
    for key, value in values.items():
        if key != "_target_" and f"{prefix}{key}" != "run":
            yield f"{prefix}{key}"
            if isinstance(value, dict):
                yield from _names_in(value, f"{prefix}{key}.")
