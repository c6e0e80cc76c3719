"""Which command makes what an experiment or a setting needs: read from where commands and experiments say they write."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from neuroshard.app.commands import COMMANDS
from neuroshard.configs import content_of, experiments_of, leaves_of, settings_in
from neuroshard.errors import UserError

_REFERENCE = re.compile(r"\$\{([^{}]+)\}")
_CHOICE = "hydra:runtime.choices."


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


def check_made(settings: Mapping[str, Any]) -> None:
    """Raise UserError, with the command that makes it, if a setting names what a command writes and hasn't written yet.

    `settings` are nested and resolved.
    """
    for key, value in leaves_of(settings):
        if key == "out" or key.startswith("run."):
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str) and (command := _lacking(one)) is not None:
                raise UserError(f"{key}: there is no {one} yet; it is made by: {command}")


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
            given = {"experiment": name}
            if "out" in content_of(f"experiment/{name}.yaml"):
                sweep = content_of(f"experiment/{name}.yaml").get("hydra", {}).get("sweeper", {}).get("params", {})
                line = f"neuroshard {command}{' -m' if sweep else ''} experiment={name}"
                yield _maker(line, settings_in(command, given), swept=sweep)
    for command in COMMANDS:
        settings = settings_in(command, {})
        if "/" in str(settings.get("out")):
            yield _maker(f"neuroshard {command}", settings, swept={})


def _maker(command: str, settings: Mapping[str, Any], swept: Mapping[str, str]) -> _Maker:
    plain, chosen, pattern = dict(leaves_of(settings)), [], ""
    text = str(plain["out"])
    for number, part in enumerate(_REFERENCE.split(text)):
        if number % 2 == 0:
            pattern += re.escape(part)
            continue
        origin = str(plain.get(part, f"${{{part}}}"))[2:-1]  # ${method} is ${hydra:runtime.choices.searcher}
        group = origin.removeprefix(_CHOICE)
        if origin.startswith(_CHOICE) and group not in (*swept, *chosen):
            chosen.append(group)
            pattern += f"(?P<{group}>[^/]+)"
        else:
            pattern += "[^/]+"
    return _Maker(command, re.compile(pattern), tuple(chosen))
