"""A command's settings for people: each with its value and a line that says what it is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from neuroshard.plumbing.configs import BUILDING, Composed, comments, leaves_of
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.signatures import signature_of

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


def settings_of(composed: Composed) -> list[Setting]:
    """Every setting of a command."""
    return [
        Setting(key, _yaml(value), said_of(composed, key))
        for key, value in leaves_of(composed.settings)
        if key.split(".")[0] != "run" and not key.endswith(BUILDING) and not joins(value, composed.settings)
    ]


def said_of(composed: Composed, key: str) -> str:
    """What a setting is, or a group of them: a line of `conf/`, else of the class that takes it; else empty."""
    group, _, inner = key.partition(".")
    said = comments(f"{composed.command}.yaml").get(key)
    if not said and group in composed.chosen:
        said = comments(f"{group}/{composed.chosen[group]}.yaml").get(inner)
    return said or _of_class(key, composed.settings)


def needed(composed: Composed, key: str) -> UserError:
    """The error for a setting without a value, with what it is."""
    what = next((setting.what for setting in settings_of(composed) if setting.key == key), "")
    return UserError(f"neuroshard {composed.command} needs {key}=...{': ' if what else ''}{what}")


def joins(value: Any, config: Mapping[str, Any]) -> bool:
    """Whether it hands a group of settings on to another object: nothing to be set."""
    name = str(value)[2:-1] if str(value).startswith("${") else ""
    return isinstance(config.get(name), dict)


def _of_class(key: str, config: Mapping[str, Any]) -> str:
    """The first sentence that a docstring says of a setting; a command's own are those of what it runs."""
    *path, name = key.split(".") if "." in key else ("run", key)
    owner = reduce(lambda held, part: held.get(part, {}), path, config)
    return signature_of(owner["_target_"]).texts.get(name, "") if "_target_" in owner else ""


def _yaml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_yaml(item) for item in value)}]"
    if isinstance(value, dict):
        return "{}"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
