"""Translate the arguments of a `neuroshard` command into arguments that Hydra can read.
Users may write `explain plan.json` instead of `explain plans=[plan.json]`, and `tables=FILE.csv` instead of
`tables=user_file tables.path=FILE.csv`. Values that Hydra cannot parse are put in quotes.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from neuroshard.plumbing.configs import quoted
from neuroshard.plumbing.errors import UserError, unknown_name

_PATHS = {"explain": "plans", "evaluate": "plans", "report": "runs", "export": "plan"}  # settings that need no key
_SINGLE = ("plan",)  # settings that take one path, not a list
_KEY = re.compile(r"([+~]*[\w./@:-]+)=(.*)", re.DOTALL)
_VALUED = (  # Hydra's flags that are followed by a value
    *("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"),
    *("--info", "-i", "--experimental-rerun"),
)
_FLAGS = (
    *_VALUED,
    *("--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r", "--multirun", "-m"),
    *("--shell-completion", "-sc"),
)

# For each group, the choice that reads files of a suffix.
_READERS = {
    "tables": {".csv": "user_file", ".parquet": "user_file", ".json": "user_file", ".pt": "dlrm", ".gz": "dlrm"},
    "tasks": {".json": "file"},
    "constraints": {".yaml": "file", ".yml": "file", ".json": "file"},
}


def for_hydra(command: str, words: Sequence[str]) -> list[str]:
    """Return the arguments of a command in the form that Hydra reads: flags first, then settings as key=value.

    Raises:
        UserError: a flag is unknown, an argument is not key=value, or paths are given both with and without a key.
    """
    flags, settings, paths = list[str](), list[str](), list[str]()
    for before, word in zip(["", *words], words, strict=False):
        if word.startswith("-"):
            flags.append(_known_flag(word))
        elif before in _VALUED:
            flags.append(word)
        elif command in _PATHS and _is_path(word):
            paths.append(word)
        else:
            settings += [_readable(text, words) for text in with_reader(word)]
    return [*flags, *settings, *([_positional(command, paths, settings)] if paths else [])]


def _known_flag(word: str) -> str:
    """Return the argument `word` if it is a flag of Hydra, such as "--multirun" or "--cfg=job"; raise UserError
    otherwise.
    """
    name = word.partition("=")[0]
    if name in _FLAGS:
        return word
    if "=" in word:
        remedy = f"Write settings without dashes: {word.lstrip('-')}"
        raise UserError("flag-unknown", f"unknown flag {name!r}", remedy=remedy)
    raise unknown_name("flag", name, _FLAGS)


def _positional(command: str, paths: Sequence[str], others: Sequence[str]) -> str:
    """Return the setting, as key=value, for paths that the user gave without a key.
    The key depends on the command: the path in `neuroshard explain plan.json`, for example, is the setting `plans`.
    `others` has the settings that the user gave with a key.

    Raises:
        UserError: the setting is also among the `others`, or takes only one path.
    """
    key = _PATHS[command]
    if any(text.startswith(f"{key}=") for text in others):
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


def _is_path(text: str) -> bool:
    """Return True if an argument is a path, not a setting such as key=value.
    An argument with "=" is a path only if there is a file or directory of this name.
    """
    if text.startswith("~") and not os.path.lexists(text):
        return False
    return "=" not in text or (os.path.lexists(text) and not os.path.lexists(text.split("=", 1)[1]))


def with_reader(text: str) -> Iterator[str]:
    """Yield the settings for Hydra that replace an argument of the user.
    The argument `tables=FILE.csv`, for example, is replaced by tables=user_file and tables.path=FILE.csv.

    A list of files, as in a sweep, becomes a list of paths. Any other argument is yielded unchanged.

    Raises:
        UserError: the argument lists files of types that different choices read, or a file of a type that no choice
            reads.
    """
    group, _, value = text.partition("=")
    readers = _READERS.get(group, {})
    files = value.split(",") if "," in value and not value.startswith("'") and not os.path.lexists(value) else [value]
    read_by = {readers.get(Path(file).suffix.lower()) for file in files} if readers else {None}
    if read_by == {None}:
        if readers and (unread := next(filter(_looks_like_file, files), None)) is not None:
            from neuroshard.plumbing.files import ending_of  # slow to import: not for --help

            suffixes = ", ".join(readers)
            raise UserError(
                "file-type-unread",
                f"{text}: {ending_of(Path(unread))}",
                limit=f"{group} are read from files whose names end in {suffixes}",
                remedy=f"Give a file of one of these types, or a name from conf/{group}",
            )
        yield text
        return
    if len(read_by) > 1:
        sweeps = [_sweep(group, reader, files) for reader in sorted(read_by, key=str)]
        raise UserError(
            "files-of-several-types",
            f"{text} lists files of several types",
            limit="a sweep takes files of one type",
            remedy=f"Run one sweep for each type: {' and, separately, '.join(sweeps)}",
        )
    yield f"{group}={read_by.pop()}"
    yield f"{group}.path={','.join(map(quoted, files))}"


def _looks_like_file(value: str) -> bool:
    """Return True if a value is the path of a file and not the name of a config, such as "criteo" or "mine/criteo".
    A name of a config has no suffix, so an existing file with a suffix is meant as a file.
    """
    return value.startswith(("/", "./", "../")) or (Path(value).suffix != "" and os.path.lexists(value))


def _sweep(group: str, reader: str | None, files: list[str]) -> str:
    """Return, as text, command line arguments for a sweep over the entries of `files` that one reader can read.
    If `reader` is user_file, for example, the result is "tables=user_file tables.path=a.csv,b.csv". If `reader` is
    None, the sweep is over the entries that no reader can read. These entries are names of configs, and the result is,
    for example, "tables=one,two".
    """
    swept = [file for file in files if _READERS[group].get(Path(file).suffix.lower()) == reader]
    return f"{group}={','.join(swept)}" if reader is None else f"{group}={reader} {group}.path={','.join(swept)}"


def _readable(text: str, words: Sequence[str]) -> str:
    """Return the setting in `text` in a form that Hydra can parse.
    Values that the grammar of Hydra refuses, such as some paths, are put in quotes.

    Raises:
        UserError: the text is not key=value, or the value is nested too deeply.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser  # slow to import: not for --help
    from hydra.errors import OverrideParseException

    from neuroshard.plumbing.schema import shown

    parser, match = OverridesParser.create(), _KEY.fullmatch(text)
    for written in (text, f"{match[1]}={quoted(match[2])}") if match else (text,):
        try:
            parser.parse_overrides([written])
        except OverrideParseException:
            continue
        except RecursionError:
            what, remedy = "the value is nested too deeply to be read", "Write a value with fewer levels"
            raise UserError("argument-nested-deeply", what, where=shown(text), remedy=remedy) from None
        return written
    limit = "settings have the form key=value"
    raise UserError("argument-malformed", f"{text!r} is malformed", limit=limit, remedy=_meant(text, words))


def _meant(text: str, words: Sequence[str]) -> str:
    """Return advice on how to correct an argument that is not key=value.
    For a file such as a.csv, the advice is to write a key: "Did you mean tables=a.csv?". If the previous argument is
    key=value, the user probably wrote a value with a blank. In this case, the advice is to remove the blank or to put
    the value in quotes. `words` has all arguments.
    """
    if groups := [group for group, readers in _READERS.items() if Path(text).suffix.lower() in readers]:
        return f"Did you mean {groups[0]}={text}?"
    before = words[words.index(text) - 1] if text in words[1:] else ""
    if "=" not in before:
        return "Write key=value"
    from neuroshard.plumbing.schema import is_size

    if is_size(before.partition("=")[2] + text):
        return f"Write the size without a blank: {before}{text}"
    return f"Put a value with a blank in quotes: '{before} {text}'"
