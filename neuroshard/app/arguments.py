"""The arguments of a command, translated for Hydra: paths without a key, and files in place of a choice."""

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
    """A setting, or a group, with the value that it is set to.

    Attributes:
        key: name of the setting, with dots, or name of the group.
        text: key and value as Hydra takes them.
        values: the single value; or a value for each job of a sweep, at most `MOST_JOBS` + 1.
        swept: True if the text lists several values.
    """

    key: str
    text: str
    values: tuple[Any, ...]
    swept: bool

    @property
    def is_hydras(self) -> bool:
        """True if this is one of Hydra's own settings."""
        return self.key.startswith("hydra")


def split_flags(command: str, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split flags from everything else; raise UserError if one is unknown."""
    flags = [text for text in arguments if text.startswith("-")]
    for flag in flags:
        if flag not in (*_SWEEP_FLAGS, *HELP_FLAGS):
            meant = flag.lstrip("-").split("=")[0]
            raise UserError(
                "flag-unknown",
                f"unknown flag {flag!r}",
                limit=f"the flags of neuroshard {command} are -m (a sweep) and --help",
                remedy=f"Remove the flag; if {meant!r} is a setting, write {meant}=..." if meant else "Remove the flag",
            )
    return flags, [text for text in arguments if not text.startswith("-")]


def as_overrides(command: str, texts: Sequence[str]) -> list[Override]:
    """Read arguments that are not flags. Paths without a key are the first setting that the command needs.

    Raises:
        UserError: an argument is not key=value, or sets what cannot be set.
    """
    needed = missing(Composed.of(command, {}).settings)
    paths = [text for text in texts if needed and _is_path(text)]
    named = [text for text in texts if text not in paths]
    for text in named:
        if "=" not in text and not text.startswith("~"):
            raise _without_key(text, _meant(text, texts))
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
        raise UserError(
            "sweep-experiment-null",
            f"{override.text} lists null",
            limit="a sweep cannot list null",
            remedy="Remove null from the list. For a job without an experiment, start a separate command without "
            f"{EXPERIMENT}=",
        )
    return True


def _positional(command: str, key: str, paths: list[str], written: list[str]) -> str:
    """Build the setting that paths without a key are."""
    if any(text.startswith(f"{key}=") for text in written):
        raise UserError(
            "path-given-twice",
            f"{paths[0]!r} and {key}=... are both given",
            limit=f"a path without a key is the value of {key}",
            remedy="Write one of the two",
        )
    if key not in _SINGLE:
        return f"{key}=[{','.join(map(quoted, paths))}]"
    if len(paths) > 1:
        raise UserError(
            "paths-count",
            f"neuroshard {command} has {len(paths)} paths ({', '.join(paths)})",
            limit=f"the command takes one {key}",
            remedy="Give one path, and everything else as key=value",
        )
    return f"{key}={quoted(paths[0])}"


def _meant(text: str, texts: Sequence[str]) -> str:
    """Return a remedy for a text without a key: a file, or the end of a value with a blank; empty if unknown."""
    if groups := [group for group, readers in _READERS.items() if Path(text).suffix.lower() in readers]:
        return f"Did you mean {groups[0]}={text}?"
    before = texts[texts.index(text) - 1] if text in texts[1:] else ""
    if "=" not in before:
        return ""
    from neuroshard.plumbing.schema import is_size  # slow to import: not for completion

    if is_size(before.partition("=")[2] + text):
        return f"Write the size without a blank: {before}{text}"
    return f"Put a value with a blank in quotes: '{before} {text}'"


def _without_key(text: str, remedy: str = "") -> UserError:
    """Make the error for an argument that is not a setting."""
    limit = "settings have the form key=value"
    return UserError("argument-malformed", f"{text!r} is malformed", limit=limit, remedy=remedy or "Write key=value")


def _is_path(text: str) -> bool:
    """Return True if a text is a path without a key. (Paths may contain "=", too.)"""
    return "=" not in text or (os.path.lexists(text) and not os.path.lexists(text.split("=", 1)[1]))


def with_reader(text: str) -> list[str]:
    """Turn `tables=FILE.csv` into tables=user_file and its path, or paths of a sweep; leave anything else as it was.

    Raises:
        UserError: the text lists files of types that different choices read.
    """
    group, _, value = text.partition("=")
    readers = _READERS.get(group, {})
    files = value.split(",") if "," in value and not value.startswith("'") and not os.path.lexists(value) else [value]
    read_by = {readers.get(Path(file).suffix.lower()) for file in files}
    if read_by == {None}:
        return [text]
    if len(read_by) > 1:
        sweeps = [_sweep(group, reader, files) for reader in sorted(read_by, key=str)]
        raise UserError(
            "files-of-several-types",
            f"{text} lists files of several types",
            limit="a sweep takes files of one type",
            remedy=f"Run one sweep for each type: {' and, separately, '.join(sweeps)}",
        )
    return [f"{group}={read_by.pop()}", f"{group}.path={','.join(map(quoted, files))}"]


def _sweep(group: str, reader: str | None, files: list[str]) -> str:
    """Write the arguments that sweep those of some files that a choice reads; None is for names of choices."""
    its = [file for file in files if _READERS[group].get(Path(file).suffix.lower()) == reader]
    return f"{group}={','.join(its)}" if reader is None else f"{group}={reader} {group}.path={','.join(its)}"


def file_error(group: str, value: str) -> UserError | None:
    """Make the error for a group that is set to a file that no choice reads; None if there is no such file."""
    readers = _READERS.get(group, {})
    if not readers or not Path(value).exists():
        return None
    return UserError(
        "file-type-unknown",
        f"{group}={value} is a file of an unknown type",
        limit=f"the known file types are {', '.join(readers)}",
        remedy=f"Give a file of such a type, or a choice of {group} by name",
    )


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
        raise UserError(
            "setting-added-or-deleted",
            f"{text!r} adds or deletes a setting",
            limit="settings can only be changed",
            remedy="Write key=value",
        )
    if key.startswith("hydra") and key not in ("hydra/launcher", "hydra/sweeper") and not key.startswith(_SWEEPERS):
        raise UserError(
            "hydra-setting",
            f"{key} cannot be set",
            limit="hydra/launcher, hydra/sweeper and their settings are the only settings of Hydra that can be set",
            remedy=f"Remove {key}",
        )
    if key == "run" or key.startswith("run."):
        raise UserError(
            "run-setting",
            f"{key} cannot be set",
            limit="the command fills 'run' from its other settings",
            remedy="Set those other settings; `neuroshard COMMAND --help` lists them",
        )
    if key == _SWEPT or key.startswith(f"{_SWEPT}."):
        raise UserError(
            "sweep-params-setting",
            f"{key} cannot be set",
            limit="a sweep lists the values of each setting",
            remedy="Write the values behind the setting: key=value,value",
        )
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
        remedy = "Write values separated by commas: key=value,value"
        what = f"{parsed.input_line!r} is not a list of values"
        raise UserError("sweep-values-malformed", what, limit=str(error), remedy=remedy) from None
    return tuple(replace(parsed, _value=value).value() for value in islice(values, MOST_JOBS + 1))


def _parse(text: str) -> "Parsed":
    from hydra.core.override_parser.overrides_parser import OverridesParser  # slow to import: not for completion
    from hydra.errors import OverrideParseException

    from neuroshard.plumbing.schema import shown

    parser, match = OverridesParser.create(), _KEY.fullmatch(text)
    # A text that is not a value in Hydra's grammar may be a path, which Hydra wants in quotes.
    for written in (text, f"{match[1]}={quoted(match[2])}") if match else (text,):
        try:
            return parser.parse_overrides([written])[0]
        except RecursionError:
            what, remedy = "the value is nested too deeply to be read", "Write a value with fewer levels"
            raise UserError("argument-nested-deeply", what, where=shown(text), remedy=remedy) from None
        except OverrideParseException:
            continue
    raise _without_key(text)
