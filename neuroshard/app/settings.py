"""A command's settings for people: each with its value and a line that says what it is; `--help` lists them all."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from shutil import get_terminal_size
from typing import Any

from neuroshard.app.arguments import Override, asked_by
from neuroshard.plumbing.configs import BUILDING, Composed, choices, comments, experiments_of, headline, leaves_of
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.signatures import signature_of

_CLOSED = re.compile(r"[\w.-]+(?: \| [\w.-]+)+")
_SWITCH = ("true", "false")
_KEY_WIDTH = 44
_LEAST_WIDTH = 80
_NOTES = (
    "??? marks a setting that must be given. Sizes are numbers of bytes, or text such as 32GiB. To see the settings of "
    "another choice, write the choice before --help.",
    "-m runs a job for each combination of the values of settings that list several, such as "
    "searcher=random,neuroshard.",
)


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        key: with dots, as on the command line.
        value: default as YAML writes it; "???" if the setting must be given.
        what: a line: what it is, its unit, what else it may be. It begins with the values, `one | other`, where no
            others may be set.
    """

    key: str
    value: str
    what: str

    @property
    def values(self) -> list[str]:
        """The values that the setting may have; empty if there is no short list of them."""
        if self.value in _SWITCH:
            return list(_SWITCH)
        listed = _CLOSED.match(self.what)
        return listed[0].split(" | ") if listed else []


def settings_of(composed: Composed) -> list[Setting]:
    """List every setting of a command."""
    return [
        Setting(key, _yaml(value), said_of(composed, key))
        for key, value in leaves_of(composed.settings)
        if key.split(".")[0] != "run" and not key.endswith(BUILDING) and not joins(value, composed.settings)
    ]


def said_of(composed: Composed, key: str) -> str:
    """Return the help of a setting or a group, from `conf/` or from the class that takes it; empty if there is none."""
    group, _, inner = key.partition(".")
    said = comments(f"{composed.command}.yaml").get(key)
    if not said and group in composed.chosen:
        said = comments(f"{group}/{composed.chosen[group]}.yaml").get(inner)
    return said or _of_class(key, composed.settings)


def needed(composed: Composed, key: str) -> UserError:
    """Make the error for a setting without a value, with the help line of the setting."""
    what = next((setting.what for setting in settings_of(composed) if setting.key == key), "")
    remedy = f"Add {key}=... to the command"
    unset = f"neuroshard {composed.command} needs a value of the setting {key!r}"
    return UserError("setting-missing", f"{unset}: {what}" if what else unset, remedy=remedy)


def joins(value: Any, config: Mapping[str, Any]) -> bool:
    """Return True if a value passes a group of settings on to another object, so that it cannot be set."""
    name = str(value)[2:-1] if str(value).startswith("${") else ""
    return isinstance(config.get(name), dict)


def _of_class(key: str, config: Mapping[str, Any]) -> str:
    """Look up the first sentence that a docstring says of a setting; a command's own are those of what it runs."""
    *path, name = key.split(".") if "." in key else ("run", key)
    owner = reduce(lambda held, group: held.get(group, {}), path, config)
    return signature_of(owner["_target_"]).texts.get(name, "") if "_target_" in owner else ""


def _yaml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_yaml(item) for item in value)}]"
    if isinstance(value, dict):
        return "{}"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def command_help(command: str, what: str, overrides: Sequence[Override], width: int | None = None) -> str:
    """Write the text for a command: its usage, and every setting by group, of the choices that the overrides make.

    Lines are `width` characters long at most, or as long as the terminal's.
    """
    wide = max(width or get_terminal_size((120, 24)).columns, _LEAST_WIDTH)
    composed = Composed.of(command, asked_by(overrides))
    groups = [group for group in composed.chosen if group in composed.settings]
    settings = settings_of(composed)
    own = [setting for setting in settings if setting.key.split(".")[0] not in groups]
    usage = f"usage: neuroshard {command} [setting=value ...] [-m] [--help]"
    lines = [*_wrapped(f"neuroshard {command}: {what}", wide), "", usage, "", "settings"]
    lines += [line for setting in own for line in _described(setting, wide)]
    for group in groups:
        chosen = composed.chosen[group]
        lines += ["", *_choices(group, chosen, headline(f"{group}/{chosen}.yaml"), choices(group), wide)]
        inner = [setting for setting in settings if setting.key.startswith(f"{group}.")]
        lines += [line for setting in inner for line in _described(setting, wide)]
    lines += [""]
    if named := experiments_of(command):
        lines += [*_choices("experiment", "null", "settings for one purpose, under one name", named, wide), ""]
    lines += [line for note in _NOTES for line in _wrapped(note, wide)]
    return "\n".join(lines) + "\n"


def _choices(group: str, chosen: str, said: str, known: Sequence[str], width: int) -> Iterator[str]:
    yield from _wrapped(f"{group}={chosen}   {said}".rstrip(), width)
    if others := [name for name in known if name != chosen]:
        yield from _wrapped(f"or {', '.join(others)}", width, "  ")


def _described(setting: Setting, width: int) -> list[str]:
    key = f"  {setting.key}={setting.value}"
    above = [key] if len(key) >= _KEY_WIDTH else []
    first = f"{'' if above else key:<{_KEY_WIDTH}}"
    said = textwrap.wrap(setting.what, width, initial_indent=first, subsequent_indent=" " * _KEY_WIDTH)
    return [*above, *said] or [key]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
