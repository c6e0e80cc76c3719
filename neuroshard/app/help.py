"""`neuroshard COMMAND --help`: every setting in a line, and the choices of every group."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from neuroshard.app.arguments import given_by
from neuroshard.app.settings import Setting, settings_of
from neuroshard.plumbing.configs import Composed, choices, experiments_of, headline

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_KEY_WIDTH = 44
_LEAST_WIDTH = 80


def command_help(command: str, what: str, overrides: Sequence["Override"], width: int | None = None) -> str:
    """The text for a command, with the settings of the choices that the overrides make.

    Lines are `width` characters long at most, or as long as the terminal's.
    """
    return _Writer(max(width or get_terminal_size((120, 24)).columns, _LEAST_WIDTH)).text(command, what, overrides)


_NOTES = (
    "??? has to be given. Sizes are bytes, or text such as 32GiB. The settings of another choice: "
    "write the choice before --help.",
    "-m runs a job for each combination of settings that list several values: searcher=random,neuroshard.",
)


@dataclass(frozen=True)
class _Writer:
    """Lines of `width` characters at most."""

    width: int

    def text(self, command: str, what: str, overrides: Sequence["Override"]) -> str:
        """Return what `--help` of a command prints: its usage, and every setting by group, as overridden."""
        composed = Composed.of(command, given_by(overrides))
        groups = [group for group in composed.chosen if group in composed.settings]
        settings = settings_of(composed)
        own = [setting for setting in settings if setting.key.split(".")[0] not in groups]
        usage = f"usage: neuroshard {command} [setting=value ...] [-m] [--help]"
        lines = [*self._wrapped(f"neuroshard {command}: {what}", ""), "", usage, "", "settings"]
        lines += [line for setting in own for line in self._described(setting)]
        for group in groups:
            lines += ["", *self._choices(group, composed.chosen[group])]
            inner = [setting for setting in settings if setting.key.startswith(f"{group}.")]
            lines += [line for setting in inner for line in self._described(setting)]
        lines += ["", *self._experiments(command), *(line for note in _NOTES for line in self._wrapped(note, ""))]
        return "\n".join(lines) + "\n"

    def _choices(self, group: str, chosen: str) -> Iterator[str]:
        known = choices(group)
        said = headline(f"{group}/{chosen}.yaml") if chosen in known else ""
        yield from self._wrapped(f"{group}={chosen}   {said}".rstrip(), "")
        if others := [name for name in known if name != chosen]:
            yield from self._wrapped(f"or {', '.join(others)}", "  ")

    def _experiments(self, command: str) -> Iterator[str]:
        if named := experiments_of(command):
            yield "experiment=null   settings for a purpose, together"
            yield from self._wrapped(f"or {', '.join(named)}", "  ")
            yield ""

    def _described(self, setting: Setting) -> Iterator[str]:
        key = f"  {setting.key}={setting.value}"
        if len(key) >= _KEY_WIDTH:
            yield key
            key = ""
        first, *rest = textwrap.wrap(setting.what, self.width - _KEY_WIDTH) or [""]
        if key or first:
            yield f"{key:<{_KEY_WIDTH}}{first}".rstrip()
        yield from (" " * _KEY_WIDTH + line for line in rest)

    def _wrapped(self, text: str, indent: str) -> list[str]:
        return textwrap.wrap(
            text, self.width, initial_indent=indent, subsequent_indent=indent, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
