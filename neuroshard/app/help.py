"""`neuroshard COMMAND --help`: every setting in a line, and the choices of every group."""

import textwrap
from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from neuroshard.app.arguments import given_by
from neuroshard.app.settings import Setting, settings_of
from neuroshard.plumbing.configs import Composed, choices, experiments_of, headline

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_KEY_WIDTH = 44
_LEAST_WIDTH = 80
_NOTES = (
    "??? has to be given. Sizes are bytes, or text such as 32GiB. The settings of another choice: "
    "write the choice before --help.",
    "-m runs a job for each combination of settings that list several values: searcher=random,neuroshard.",
)


def command_help(command: str, what: str, overrides: Sequence["Override"], width: int | None = None) -> str:
    """The text for a command: its usage, and every setting by group, of the choices that the overrides make.

    Lines are `width` characters long at most, or as long as the terminal's.
    """
    wide = max(width or get_terminal_size((120, 24)).columns, _LEAST_WIDTH)
    composed = Composed.of(command, given_by(overrides))
    groups = [group for group in composed.chosen if group in composed.settings]
    settings = settings_of(composed)
    own = [setting for setting in settings if setting.key.split(".")[0] not in groups]
    usage = f"usage: neuroshard {command} [setting=value ...] [-m] [--help]"
    lines = [*_wrapped(f"neuroshard {command}: {what}", wide), "", usage, "", "settings"]
    lines += [line for setting in own for line in _described(setting, wide)]
    for group in groups:
        lines += ["", *_choices(group, composed.chosen[group], wide)]
        inner = [setting for setting in settings if setting.key.startswith(f"{group}.")]
        lines += [line for setting in inner for line in _described(setting, wide)]
    lines += ["", *_experiments(command, wide), *(line for note in _NOTES for line in _wrapped(note, wide))]
    return "\n".join(lines) + "\n"


def _choices(group: str, chosen: str, width: int) -> Iterator[str]:
    known = choices(group)
    said = headline(f"{group}/{chosen}.yaml") if chosen in known else ""
    yield from _wrapped(f"{group}={chosen}   {said}".rstrip(), width)
    if others := [name for name in known if name != chosen]:
        yield from _wrapped(f"or {', '.join(others)}", width, "  ")


def _experiments(command: str, width: int) -> Iterator[str]:
    if named := experiments_of(command):
        yield "experiment=null   settings for a purpose, together"
        yield from _wrapped(f"or {', '.join(named)}", width, "  ")
        yield ""


def _described(setting: Setting, width: int) -> Iterator[str]:
    key = f"  {setting.key}={setting.value}"
    if len(key) >= _KEY_WIDTH:
        yield key
        key = ""
    first, *rest = textwrap.wrap(setting.what, width - _KEY_WIDTH) or [""]
    if key or first:
        yield f"{key:<{_KEY_WIDTH}}{first}".rstrip()
    yield from (" " * _KEY_WIDTH + line for line in rest)


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
