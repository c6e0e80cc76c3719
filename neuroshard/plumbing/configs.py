"""The content of the files in `conf/`, read without Hydra in milliseconds: names, comments, and settings of commands.

A file says what is built, `_target_`, and what differs from that class's own defaults; the other fields are filled in
here, for Hydra too (`files_of`). Hydra composes what runs. Here the same files are put together by the few rules that
they use, for whoever only wants to know which settings there are; a test compares the two for every choice.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any

from neuroshard.plumbing.signatures import NEEDED, signature_of

_FOLDER = Path(__file__).parents[1] / "conf"
_LINE = re.compile(r"^(?P<indent> *)(?P<key>[\w-]+):(?P<rest>.*)$")
_COMMENT = re.compile(r"(?:^|\s)#\s*(?P<text>.*)$")
_OVERRIDE = "override /"
EXPERIMENT = "experiment"
REFERENCE = re.compile(r"\$\{([^{}]+)\}")  # to another setting, or, by Hydra's name, to the choice in a group
CHOICE_IN = "hydra:runtime.choices."
BUILDING = ("_target_", "_partial_")  # keys, or the ends of some, that say what is built


def repository() -> Path:
    """Return the folder that has the configs' folder in it: the checkout, unless this is an installed package."""
    return _FOLDER.resolve().parent


@cache
def choices(group: str) -> tuple[str, ...]:
    """List the configs in a group, such as "searcher", by name; empty if there is no such group."""
    return tuple(sorted(path.stem for path in (_FOLDER / group).glob("*.yaml")))


def is_group(name: str) -> bool:
    """Return True if `conf/` has a group of that name."""
    return name.isidentifier() and bool(choices(name))


def choices_in(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Pick what is asked for that chooses in a group."""
    return {key: value for key, value in asked.items() if is_group(key)}


def experiments_of(command: str) -> list[str]:
    """List the experiments of a command, by name."""
    return [name for name in choices(EXPERIMENT) if name.split("_")[0] == command]


def sweep_of(experiment: str | None) -> Mapping[str, str]:
    """Read the settings that an experiment sweeps, with their values, separated by commas; none if it is no sweep."""
    hydra = _built(EXPERIMENT, experiment).get("hydra", {})
    params: Mapping[str, str] = hydra.get("sweeper", {}).get("params", {})
    return params


@cache
def text_of(file: str) -> str:
    """Read a file in `conf/`, such as "search.yaml", as text."""
    return (_FOLDER / file).read_text(encoding="utf-8")


def headline(file: str) -> str:
    """Read the first line of a config's opening comment."""
    lines = (line.removeprefix("# ").strip() for line in text_of(file).splitlines() if line.startswith("# "))
    return next(lines, "")


@cache
def comments(file: str) -> Mapping[str, str]:
    """Read what a file in `conf/` says behind its settings, by key with dots."""
    by_key: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in text_of(file).splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        indent = len(match["indent"])
        path = [(at, key) for at, key in path if at < indent] + [(indent, match["key"])]
        if said := _COMMENT.search(match["rest"]):
            by_key[".".join(key for _, key in path)] = said["text"].strip()
    return by_key


@cache
def content_of(file: str) -> Mapping[str, Any]:
    """Read the values in a file in `conf/`, its defaults list among them; interpolations are as they are written."""
    import yaml  # slow to import: only where it is used

    content: dict[str, Any] = yaml.load(text_of(file), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    return content


def groups_of(command: str) -> dict[str, str]:
    """Read a command's groups, with the default choice of each."""
    return {
        group: choice for entry in content_of(f"{command}.yaml").get("defaults", []) for group, choice in entry.items()
    }


@dataclass(frozen=True)
class Composed:
    """A command with the choices and values that are asked for, or that an experiment gives.

    Attributes:
        command: its name.
        chosen: the choice of each of its groups.
        settings: nested, with their values as they are written.
    """

    command: str
    chosen: Mapping[str, str]
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, command: str, asked: Mapping[str, Any]) -> "Composed":
        """Put a command's files together as Hydra does."""
        chosen = _chosen_in(command, asked)
        built = {group: filled(group, name) for group, name in chosen.items() if name in choices(group)}
        files = [*({group: own(content)} for group, content in built.items()), own(_command(command))]
        values = (_nested(key, value) for key, value in asked.items() if not is_group(key))
        settings = reduce(_merged, [*files, own(_built(EXPERIMENT, asked.get(EXPERIMENT))), *values])
        return cls(command, chosen, settings)


def _chosen_in(command: str, asked: Mapping[str, Any]) -> dict[str, str]:
    chosen = groups_of(command)
    named = _makes(EXPERIMENT, asked.get(EXPERIMENT)) | {group: str(asked[group]) for group in chosen if group in asked}
    made = {group: choice for pair in (chosen | named).items() for group, choice in _makes(*pair).items()}
    chosen |= {group: choice for group, choice in (made | named).items() if group in chosen}
    return {group: chosen.get(choice[2:-1], choice) for group, choice in chosen.items()}  # one may be another's


def files_of(command: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield (group, name, content) of every file that Hydra composes a command of; the command's own is in no group."""
    yield "", command, _command(command)
    for group in groups_of(command):
        yield from ((group, name, filled(group, name)) for name in choices(group))
    yield from ((EXPERIMENT, name, _built(EXPERIMENT, name)) for name in experiments_of(command))


def filled(group: str, name: str) -> dict[str, Any]:
    """Read what a choice holds, with the defaults of what it builds; under `defaults`, its choices in other groups."""
    return _filled(_built(group, name))


def nodes_of(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key with dots, value) of every setting and of every group of them."""
    for name, value in settings.items():
        yield f"{prefix}{name}", value
        if isinstance(value, dict):
            yield from nodes_of(value, f"{prefix}{name}.")


def leaves_of(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (key with dots, value) of every setting that isn't a group of others."""
    return ((key, value) for key, value in nodes_of(settings) if not (isinstance(value, dict) and value))


def missing(settings: Mapping[str, Any]) -> list[str]:
    """List the settings that have to be set and aren't, with dots; what only points at them is left out."""
    return [key for key, value in leaves_of(settings) if value == NEEDED]


def _command(name: str) -> dict[str, Any]:
    """Return the content of a command's config.

    The fields of the command's class are its settings: they are on one level with `run`, which refers to each of them.
    An experiment overrides everything else.
    """
    content = content_of(f"{name}.yaml")
    run = content["run"]
    takes = {key: value for key, value in signature_of(run["_target_"]).defaults.items() if key not in run}
    settings = {key: value for key, value in takes.items() if key not in groups_of(name)} | own(content)
    last = [{EXPERIMENT: None}] if experiments_of(name) else []
    return {
        "defaults": [*content.get("defaults", []), "_self_", *last],
        **_filled(settings | {"run": run | {key: f"${{{key}}}" for key in takes}}),
    }


def _makes(group: str, name: str | None) -> dict[str, str]:
    """Read the choices of other groups that a choice makes."""
    made = (pair for entry in _built(group, name).get("defaults", []) for pair in entry.items())
    return {key.removeprefix(_OVERRIDE).partition("@")[0]: choice for key, choice in made}


def _built(group: str, name: str | None) -> dict[str, Any]:
    """Merge what a choice holds into what it is built on (`- other` or `- /group@package: other`).

    Under `defaults` are its choices in other groups. Nothing for a name that is none.
    """
    if name not in choices(group):
        return {}
    content = dict(content_of(f"{group}/{name}.yaml"))
    makes, bases = list[Any](), list[Mapping[str, Any]]()
    for entry in content.pop("defaults", []):
        ((where, other),) = entry.items() if isinstance(entry, dict) else [(group, entry)]
        if where.startswith(_OVERRIDE):
            makes.append(entry)
        else:
            where, _, package = where.lstrip("/").partition("@")
            base = _built(where, other)
            makes += base.pop("defaults")
            bases.append(_nested(package, base))
    return reduce(_merged, [*bases, content], {"defaults": makes})


def _filled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in nested settings with the defaults of every `_target_`, in its order; what is set counts."""
    takes = signature_of(settings["_target_"]).defaults if "_target_" in settings else {}
    both = {key: settings[key] for key in BUILDING if key in settings} | dict(takes)
    for key, value in settings.items():
        default = both.get(key)
        changes = isinstance(default, dict) and isinstance(value, dict) and "_target_" not in value
        both[key] = _merged(both[key], value) if changes else value
    return {key: _filled(value) if isinstance(value, dict) else value for key, value in both.items()}


def own(content: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of a file's content what is said to Hydra."""
    return {key: value for key, value in content.items() if key not in ("defaults", "hydra")}


def _nested(key: str, value: Any) -> dict[str, Any]:
    """Nest a value below its key with dots; without one, leave it as it is."""
    return reduce(lambda inner, name: {name: inner}, reversed(key.split(".")) if key else (), value)


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested values; for a key in both, the value of `other` is taken."""
    both = {
        key: _merged(one[key], value)
        for key, value in other.items()
        if isinstance(value, dict) and isinstance(one.get(key), dict)
    }
    return {**one, **other, **both}
