"""Which command makes what a setting or an experiment needs: read from where commands say they write."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from neuroshard.app.arguments import values_of
from neuroshard.app.commands import COMMANDS
from neuroshard.plumbing.configs import Composed, choices, content_of, experiments_of, leaves_of, sweep_of
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.registry import config_of

_REFERENCE = re.compile(r"\$\{([^{}]+)\}")
_CHOICE = "hydra:runtime.choices."
_NO_INPUTS = ("out", "path", "_target_")  # what is written, people's own files, classes
_MOST_VALUES = 1000  # of a sweep that are looked at


@dataclass(frozen=True)
class _Maker:
    """A command, and the paths that it writes: a pattern, with a group for every choice that is part of the path."""

    command: str
    paths: re.Pattern[str]
    chosen: tuple[str, ...]

    def making(self, path: str) -> str | None:
        """The command line that makes a path; None if it writes elsewhere."""
        found = self.paths.fullmatch(path)
        if found is None:
            return None
        return " ".join([self.command, *(f"{group}={found[group]}" for group in self.chosen)])


def check_made(command: str, overrides: Sequence[Override], sweeping: bool) -> None:
    """Raise UserError if a setting names what a command writes and hasn't written yet; the line says which command.

    Every value of a sweep is looked at, so that no job fails after hours for what was missing from the start.
    """
    given = {o.key_or_group: values_of(o, _MOST_VALUES) for o in overrides if not o.key_or_group.startswith("hydra")}
    if sweeping:
        swept = sweep_of(str(given.get("experiment", [""])[0]))
        given = {key: str(values).split(",") for key, values in swept.items()} | given
    first = {key: values[0] for key, values in given.items()}
    for job in [first, *(first | {key: value} for key, values in given.items() for value in values[1:])]:
        for key, one in _named(command, job):
            if (maker := _lacking(one)) is not None:
                raise UserError(f"{key}={one} is not there yet; it is made by: {maker}")


def _named(command: str, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, text) of every setting with text, and of every text in a list, where it may be the path of an input."""
    config = config_of(command, given)
    for key, _ in leaves_of(Composed.of(command, given).settings):
        if key.split(".")[0] == "run" or key.split(".")[-1] in _NO_INPUTS:
            continue
        with suppress(OmegaConfBaseException, ValueError):  # what only Hydra knows
            value = OmegaConf.select(config, key)
            yield from ((key, one) for one in (value if isinstance(value, ListConfig) else [value]) if _is_path(one))


def _is_path(value: object) -> bool:
    return isinstance(value, str) and "/" in value


def _lacking(text: str) -> str | None:
    """The command that makes a path that isn't there; None if it is, or if no command makes it by itself."""
    path = Path(text)
    for place in (path, *path.parents):
        command = next((found for maker in _makers() if (found := maker.making(str(place)))), None)
        if command is not None:
            return None if place.exists() else command
    return None


@cache
def _makers() -> tuple[_Maker, ...]:
    return tuple(_all_makers())


def _all_makers() -> Iterator[_Maker]:
    """Experiments first: what they write is theirs alone."""
    for command in COMMANDS:
        for name in experiments_of(command):
            if "out" in content_of(f"experiment/{name}.yaml"):
                swept = sweep_of(name)
                line = f"neuroshard {command}{' -m' if swept else ''} experiment={name}"
                yield _maker(line, Composed.of(command, {"experiment": name}).settings, swept)
    for command in COMMANDS:
        settings = Composed.of(command, {}).settings
        if "/" in str(settings.get("out")):
            yield _maker(f"neuroshard {command}", settings, {})


def _maker(command: str, settings: Mapping[str, Any], swept: Mapping[str, str]) -> _Maker:
    named = {f"${{{key}}}": str(value) for key, value in leaves_of(settings) if "${" in str(value)}
    text = _REFERENCE.sub(lambda found: named.get(found[0], found[0]), str(settings["out"]))  # such as ${method}
    pattern, chosen = "", list[str]()
    for number, part in enumerate(_REFERENCE.split(text)):
        group = part.removeprefix(_CHOICE)
        if number % 2 == 0:
            pattern += re.escape(part)
        elif group == part or group in (*swept, *chosen):
            pattern += "[^/]+"
        else:
            chosen.append(group)
            pattern += f"(?P<{group}>{'|'.join(choices(group))})"
    return _Maker(command, re.compile(pattern), tuple(chosen))
