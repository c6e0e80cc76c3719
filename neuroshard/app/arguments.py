"""What people write behind a command, put the way Hydra reads it: paths without a key, files in place of a choice."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuroshard.plumbing.configs import EXPERIMENT, Composed, missing
from neuroshard.plumbing.errors import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override as Parsed

HELP_FLAGS = ("-h", "--help")
_SWEEP_FLAGS = ("-m", "--multirun")
MOST_JOBS = 10_000  # of a sweep
_SINGLE = ("plan",)  # settings that take one path, not a list
_KEY = re.compile(r"([\w./@-]+)=(.*)", re.DOTALL)
_SWEEPERS = ("hydra.launcher.", "hydra.sweeper.")
_SWEPT = "hydra.sweeper.params"  # overrides that nobody would look at

# A file's suffix says which choice of a group reads it, and how the setting with its path is called.
_READERS = {
    "tables": {".csv": "user_file", ".parquet": "user_file", ".json": "user_file", ".pt": "dlrm", ".gz": "dlrm"},
    "tasks": {".json": "file"},
    "constraints": {".yaml": "file", ".yml": "file", ".json": "file"},
}


@dataclass(frozen=True)
class Override:
    """What a setting, or a group, is set to.

    Attributes:
        key: of the setting, with dots; or the group's name.
        text: key and value as Hydra takes them.
        values: the only one; or one for each job of a sweep, `MOST_JOBS` and one more at most.
        swept: whether it lists several.
    """

    key: str
    text: str
    values: tuple[Any, ...]
    swept: bool

    @property
    def is_hydras(self) -> bool:
        """Whether it is one of Hydra's own settings."""
        return self.key.startswith("hydra")


def split_flags(command: str, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split flags from everything else; raise UserError if one is unknown."""
    flags = [text for text in arguments if text.startswith("-")]
    for flag in flags:
        if flag not in (*_SWEEP_FLAGS, *HELP_FLAGS):
            meant = flag.lstrip("-").split("=")[0]
            hint = f"; settings are written without dashes: {meant}=..." if flag.startswith("--") else ""
            raise UserError(f"unknown flag {flag!r}; neuroshard {command} takes -m (a sweep) and --help{hint}")
    return flags, [text for text in arguments if not text.startswith("-")]


def as_overrides(command: str, texts: Sequence[str]) -> list[Override]:
    """Read what arguments that are no flags give. Paths without a key are the first setting that the command needs.

    Raises:
        UserError: one is not key=value, or does what a command line may not.
    """
    needed = missing(Composed.of(command, {}).settings)
    paths = [text for text in texts if needed and _is_path(text)]
    named = [text for text in texts if text not in paths]
    for text in named:
        if "=" not in text and not text.startswith("~"):
            raise UserError(f"{text!r} is malformed; write key=value{_meant(text, texts)}")
    written = [written for text in named for written in with_reader(text)]
    if paths:
        written.append(_positional(command, needed[0], paths, written))
    overrides = [_override(text) for text in written]
    return [override for override in overrides if not _is_no_experiment(override)]


def _is_no_experiment(override: Override) -> bool:
    """Return True for `experiment=null`, the default, which Hydra refuses; raise UserError if a sweep lists null."""
    if override.key != EXPERIMENT or None not in override.values:
        return False
    if override.swept:
        raise UserError(f"{override.text}: a sweep can't list null; run that job by itself, without {EXPERIMENT}=")
    return True


def _positional(command: str, key: str, paths: list[str], written: list[str]) -> str:
    """Build the setting that paths without a key are."""
    if any(text.startswith(f"{key}=") for text in written):
        raise UserError(f"{paths[0]!r} is taken for {key}=..., which is given too; write one of the two")
    if key not in _SINGLE:
        return f"{key}=[{','.join(map(quoted, paths))}]"
    if len(paths) > 1:
        raise UserError(
            f"neuroshard {command} takes one {key}, not {len(paths)} ({', '.join(paths)}); the rest is key=value"
        )
    return f"{key}={quoted(paths[0])}"


def _meant(text: str, texts: Sequence[str]) -> str:
    """Guess what somebody meant by a text without a key: a file, or the end of a value with a blank."""
    if groups := [group for group, readers in _READERS.items() if Path(text).suffix.lower() in readers]:
        return f"; did you mean {groups[0]}={text}?"
    before = texts[texts.index(text) - 1] if text in texts[1:] else ""
    if "=" not in before:
        return ""
    from neuroshard.plumbing.schema import is_size  # slow to import: not for completion

    if is_size(before.partition("=")[2] + text):
        return f"; sizes are written without a blank: {before}{text}"
    return f"; a value with a blank needs quotes: '{before} {text}'"


def _is_path(text: str) -> bool:
    """Tell whether a text is a path without a key: paths may hold "=" too."""
    return "=" not in text or (os.path.lexists(text) and not os.path.lexists(text.split("=", 1)[1]))


def with_reader(text: str) -> list[str]:
    """Turn `tables=FILE.csv` into tables=user_file and its path, or paths of a sweep; leave anything else as it was.

    Raises:
        UserError: it lists files that different choices read.
    """
    group, _, value = text.partition("=")
    readers = _READERS.get(group, {})
    files = value.split(",") if "," in value and not value.startswith("'") and not os.path.lexists(value) else [value]
    read_by = {readers.get(Path(file).suffix.lower()) for file in files}
    if read_by == {None}:
        return [text]
    if len(read_by) > 1:
        raise UserError(
            f"{text} lists what isn't read alike; sweep {group}.path={','.join(files)} for files of one kind"
        )
    return [f"{group}={read_by.pop()}", f"{group}.path={','.join(map(quoted, files))}"]


def file_remark(group: str, value: str) -> str | None:
    """Say which files a group's choices read, where it is set to some other file; None where there is no such file."""
    readers = _READERS.get(group, {})
    if not readers or not Path(value).exists():
        return None
    return f"{group}={value} is not one of its choices, nor a file that ends in {' or '.join(readers)}"


def quoted(text: str) -> str:
    """Quote a text, whatever it holds, as a value that Hydra takes as it is."""
    inner = text.removeprefix("'").removesuffix("'") if len(text) > 1 and text[0] == text[-1] == "'" else text
    escaped = re.sub(r"(\\*)(?='|\$\{|$)", r"\1\1", inner).replace("'", "\\'").replace("${", "\\${")
    return f"'{escaped}'"


def asked_by(overrides: Iterable[Override]) -> dict[str, Any]:
    """Collect what overrides set, Hydra's own settings left out; of a sweep, what its first job has."""
    return {override.key: override.values[0] for override in overrides if not override.is_hydras}


def _override(text: str) -> Override:
    parsed = _parse(text)
    key = parsed.key_or_group
    if parsed.is_add() or parsed.is_force_add() or parsed.is_delete():
        raise UserError(f"{text!r} adds or deletes a setting; write key=value")
    if key.startswith("hydra") and key not in ("hydra/launcher", "hydra/sweeper") and not key.startswith(_SWEEPERS):
        raise UserError(f"{key} can't be set; of Hydra's own settings, launcher and sweeper can")
    if key == "run" or key.startswith("run."):
        raise UserError(f"{key} can't be set; it joins the settings that can")
    if key == _SWEPT or key.startswith(f"{_SWEPT}."):
        raise UserError(f"{key} can't be set; list the values of a setting itself: key=value,value")
    from neuroshard.plumbing.registry import check_setting

    override = Override(key, str(parsed.input_line), _values_of(parsed), parsed.is_sweep_override())
    check_setting(key, override.values if override.swept else override.values[0])
    return override


def _values_of(parsed: "Parsed") -> tuple[Any, ...]:
    from hydra.errors import HydraException

    if not parsed.is_sweep_override():
        return (parsed.value(),)
    try:
        values = parsed.sweep_iterator()
    except HydraException as error:
        raise UserError(f"{parsed.input_line!r} is no list of values: {error}") from None
    return tuple(replace(parsed, _value=value).value() for value in islice(values, MOST_JOBS + 1))


def _parse(text: str) -> "Parsed":
    from hydra.core.override_parser.overrides_parser import OverridesParser  # slow to import: not for completion
    from hydra.errors import OverrideParseException

    from neuroshard.plumbing.schema import shown

    parser, match = OverridesParser.create(), _KEY.fullmatch(text)
    # What is no value in Hydra's grammar may be a path, which Hydra wants in quotes.
    for written in (text, f"{match[1]}={quoted(match[2])}") if match else (text,):
        try:
            return parser.parse_overrides([written])[0]
        except RecursionError:
            raise UserError(f"{shown(text)} can't be read: its value is nested too deeply") from None
        except OverrideParseException:
            continue
    raise UserError(f"{text!r} is malformed; write key=value")
