"""A command's settings for people: each with its value and the line that `conf/` says of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuroshard.configs import choices, comments, is_group, leaves_of
from neuroshard.errors import UserError

_CLOSED = re.compile(r"[\w.-]+(?: \| [\w.-]+)+")
_SWITCH = ("true", "false")


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        key: with dots, as on the command line.
        value: as YAML writes it; "???" where it has to be given.
        what: a line: what it is, its unit, what else it may be. It begins with the values, `one | other`, where no
            others may be given.
    """

    key: str
    value: str
    what: str

    @property
    def values(self) -> list[str]:
        """What it may be; nothing where that is no short list."""
        if self.value in _SWITCH:
            return list(_SWITCH)
        listed = _CLOSED.match(self.what)
        return listed[0].split(" | ") if listed else []


def settings_of(command: str, config: Mapping[str, Any], chosen: Mapping[str, str]) -> list[Setting]:
    """Every setting of a command's nested config; `chosen` names the choice of each group."""
    return [
        Setting(key, _yaml(value), said_of(command, key, chosen))
        for key, value in leaves_of(config)
        if key.split(".")[0] != "run" and not key.endswith(("_target_", "_partial_")) and not joins(value, config)
    ]


def said_of(command: str, key: str, chosen: Mapping[str, str]) -> str:
    """The line that `conf/` says of a setting, or of a group of them; empty if it says none."""
    return comments(f"{command}.yaml").get(key) or _of_group(key, chosen)


def needed(command: str, key: str, config: Mapping[str, Any], chosen: Mapping[str, str]) -> UserError:
    """The error for a setting without a value, with what it is; `chosen` names the choice of each group."""
    what = next((setting.what for setting in settings_of(command, config, chosen) if setting.key == key), "")
    return UserError(f"neuroshard {command} needs {key}=...{': ' if what else ''}{what}")


def joins(value: Any, config: Mapping[str, Any]) -> bool:
    """Whether it hands a group of settings on to another object: nothing to be set."""
    name = str(value)[2:-1] if str(value).startswith("${") else ""
    return isinstance(config.get(name), dict)


def _of_group(key: str, chosen: Mapping[str, str]) -> str:
    """What the config of a group says of a setting, in the file itself or in one that it is built on."""
    group, _, inner = key.partition(".")
    name = chosen.get(group)
    said = "" if name is None else comments(f"{group}/{name}.yaml").get(inner, "")
    if said or not inner or not is_group(group):
        return said
    # Built on another choice of its group, or on a part that stands in a group of its own (`member.training.epochs`).
    for other in choices(group):
        if said := comments(f"{group}/{other}.yaml").get(inner, ""):
            return said
    for part in inner.split(".")[:-1]:
        for other in choices(part) if is_group(part) else ():
            if said := comments(f"{part}/{other}.yaml").get(inner.split(f"{part}.", 1)[-1], ""):
                return said
    return ""


def _yaml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_yaml(item) for item in value)}]"
    if isinstance(value, dict):
        return "{}"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
