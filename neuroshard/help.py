"""`neuroshard COMMAND --help`: every setting in a line, and the choices of every group."""

import textwrap
from collections.abc import Iterator, Sequence
from shutil import get_terminal_size

from hydra.core.override_parser.types import Override

from neuroshard.registry import choices, chosen_of, compose_config
from neuroshard.settings import Setting, headline, settings_of

_KEY_WIDTH = 44
_LEAST_WIDTH = 80


def command_help(command: str, what: str, overrides: Sequence[Override]) -> str:
    """The text for a command, with the settings of the choices that the overrides make."""
    texts = [str(override.input_line) for override in overrides]
    config, chosen = compose_config(command, texts), chosen_of(command, texts)
    groups = sorted((group for group in chosen if group in config), key=list(config).index)
    settings = settings_of(command, config, chosen)
    own = [setting for setting in settings if setting.key.split(".")[0] not in groups]
    lines = [f"neuroshard {command}: {what}", "", f"usage: neuroshard {command} [setting=value ...] [-m] [--help]", ""]
    lines += ["settings", *(line for setting in own for line in _described(setting))]
    for group in groups:
        lines += ["", *_choice_lines(group, chosen[group])]
        inner = [setting for setting in settings if setting.key.startswith(f"{group}.")]
        lines += [line for setting in inner for line in _described(setting)]
    experiments = [name for name in choices("experiment") if name.split("_")[0] == command]
    if experiments:
        lines += ["", "experiment=null   Settings for a purpose, together."]
        lines += _wrapped(f"or {', '.join(experiments)}", "  ")
    lines += ["", *(line for note in _NOTES for line in _wrapped(note, ""))]
    return "\n".join(lines) + "\n"


_NOTES = (
    "??? has to be given. Sizes are bytes, or text such as 32GiB. The settings of another choice: "
    "write the choice before --help.",
    "-m runs a job for each combination of settings that list several values: searcher=random,neuroshard.",
)


def _choice_lines(group: str, chosen: str) -> Iterator[str]:
    yield f"{group}={chosen}" + (f"   {headline(f'{group}/{chosen}.yaml')}" if chosen in choices(group) else "")
    others = [name for name in choices(group) if name != chosen]
    yield from _wrapped(f"or {', '.join(others)}", "  ")


def _described(setting: Setting) -> Iterator[str]:
    key = f"  {setting.key}={setting.value}"
    if len(key) >= _KEY_WIDTH:
        yield key
        key = ""
    if setting.what:
        first, *rest = textwrap.wrap(setting.what, _width() - _KEY_WIDTH)
        yield f"{key:<{_KEY_WIDTH}}{first}"
        yield from (" " * _KEY_WIDTH + line for line in rest)
    elif key:
        yield key


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _width(), initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def _width() -> int:
    return max(get_terminal_size((120, 24)).columns, _LEAST_WIDTH)
