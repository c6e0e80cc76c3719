"""A command's settings for people: each with its value and the line that `conf/` says of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from omegaconf import DictConfig, OmegaConf

from neuroshard.errors import UserError
from neuroshard.registry import choices, is_group, leaves

_LINE = re.compile(r"^(?P<indent> *)(?P<key>[\w-]+):(?P<rest>.*)$")
_COMMENT = re.compile(r"(?:^|\s)#\s*(?P<text>.*)$")


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        key: with dots, as on the command line.
        value: as YAML writes it; "???" where it has to be given.
        what: a line: what it is, its unit, what else it may be.
    """

    key: str
    value: str
    what: str


def settings_of(command: str, config: DictConfig, chosen: Mapping[str, str]) -> list[Setting]:
    """Every setting of a command's composed config; `chosen` names the choice of each group."""
    own = comments(f"{command}.yaml")
    return [
        Setting(key, _yaml(value), own.get(key) or _of_group(key, chosen))
        for key, value in leaves(config)
        if key.split(".")[0] != "run" and not key.endswith(("_target_", "_partial_")) and not joins(value, config)
    ]


def needed(command: str, key: str, config: DictConfig, chosen: Mapping[str, str]) -> UserError:
    """The error for a setting without a value, with what it is; `chosen` names the choice of each group."""
    what = next((setting.what for setting in settings_of(command, config, chosen) if setting.key == key), "")
    return UserError(f"neuroshard {command} needs {key}=...{': ' if what else ''}{what}")


def joins(value: Any, config: DictConfig) -> bool:
    """Whether it hands a group of settings on to another object: nothing to be set."""
    name = str(value)[2:-1] if str(value).startswith("${") else ""
    return isinstance(OmegaConf.to_container(config, resolve=False).get(name), dict)  # type: ignore[union-attr]


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


def headline(file: str) -> str:
    """The first line of a config's opening comment."""
    lines = [line.lstrip("# ").strip() for line in _text(file).splitlines() if line.startswith("# ")]
    return next((line for line in lines if not line.startswith("@package")), "")


@cache
def comments(file: str) -> Mapping[str, str]:
    """What a file in `conf/` says behind its settings, by key with dots."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in _text(file).splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        indent = len(match["indent"])
        path = [(at, key) for at, key in path if at < indent] + [(indent, match["key"])]
        if said := _COMMENT.search(match["rest"]):
            found[".".join(key for _, key in path)] = said["text"].strip()
    return found


def _text(file: str) -> str:
    return files("neuroshard.conf").joinpath(*file.split("/")).read_text(encoding="utf-8")


def _yaml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_yaml(item) for item in value)}]"
    if isinstance(value, dict):
        return "{}"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
