"""What the files in `conf/` say, read without Hydra in milliseconds: names, comments, and the settings of a command.

A file says what is built, `_target_`, and what differs from that class's own defaults; the other fields are filled in
here, for Hydra too (`neuroshard.hydra_source`). Hydra composes what runs. Here the same files are put together by the
few rules that they use, for whoever only wants to know which settings there are; a test compares the two for every
choice.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from pathlib import Path
from typing import Any

from neuroshard.signatures import signature_of

_FOLDER = Path(__file__).parents[1] / "conf"
_LINE = re.compile(r"^(?P<indent> *)(?P<key>[\w-]+):(?P<rest>.*)$")
_COMMENT = re.compile(r"(?:^|\s)#\s*(?P<text>.*)$")
_OVERRIDE = "override /"
_EXPERIMENT = "experiment"
_QUIET = "quiet"  # what Hydra is told besides


@cache
def _entries(group: str) -> tuple[str, ...]:
    """Names in a group; none where there is no such group."""
    return tuple(sorted(path.stem for path in (_FOLDER / group).glob("*.yaml")))


def is_group(name: str) -> bool:
    """Whether `conf/` has a group of that name."""
    return name.isidentifier() and bool(_entries(name))


def choices(group: str) -> list[str]:
    """Names of the configs in a group, such as "searcher"."""
    return list(_entries(group))


def experiments_of(command: str) -> list[str]:
    """Names of the experiments that are a command's."""
    return [name for name in choices(_EXPERIMENT) if name.split("_")[0] == command]


def sweep_of(experiment: str) -> Mapping[str, str]:
    """The settings that an experiment sweeps, with their values, separated by commas; none if it is no sweep."""
    if experiment not in choices(_EXPERIMENT):
        return {}
    hydra = content_of(f"{_EXPERIMENT}/{experiment}.yaml").get("hydra", {})
    params: Mapping[str, str] = hydra.get("sweeper", {}).get("params", {})
    return params


@cache
def text_of(file: str) -> str:
    """The text of a file in `conf/`, such as "search.yaml"."""
    return (_FOLDER / file).read_text(encoding="utf-8")


def headline(file: str) -> str:
    """The first line of a config's opening comment."""
    lines = [line.lstrip("# ").strip() for line in text_of(file).splitlines() if line.startswith("# ")]
    return next((line for line in lines if not line.startswith("@package")), "")


@cache
def comments(file: str) -> Mapping[str, str]:
    """What a file in `conf/` says behind its settings, by key with dots."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in text_of(file).splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        indent = len(match["indent"])
        path = [(at, key) for at, key in path if at < indent] + [(indent, match["key"])]
        if said := _COMMENT.search(match["rest"]):
            found[".".join(key for _, key in path)] = said["text"].strip()
    return found


@cache
def content_of(file: str) -> Mapping[str, Any]:
    """The values in a file in `conf/`, its defaults list among them; interpolations are as they are written."""
    import yaml  # slow to import: only where it is used

    content: dict[str, Any] = yaml.load(text_of(file), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    return content


def chosen_in(command: str, given: Mapping[str, str]) -> dict[str, str]:
    """The choice of each group of a command, where `given` names some of them, or an experiment that does."""
    chosen, named = _groups(command), dict[str, str]()
    for name in _experiments(given):
        named |= dict(_overrides(_EXPERIMENT, name))
    named |= {group: choice for group, choice in given.items() if group in chosen}
    others = (pair for group, choice in (chosen | named).items() for pair in _overrides(group, choice))
    chosen |= {group: choice for group, choice in others if group in chosen} | named
    return {group: chosen.get(choice[2:-1], choice) for group, choice in chosen.items()}  # one may be another's


def settings_in(command: str, given: Mapping[str, str]) -> dict[str, Any]:
    """A command's settings, nested, with their values as they are written, after the choices in `given`."""
    own = _own(filled_content(f"{command}.yaml"))
    groups = [{g: filled_choice(g, name)} for g, name in chosen_in(command, given).items() if name in choices(g)]
    experiments = [_own(content_of(f"{_EXPERIMENT}/{name}.yaml")) for name in _experiments(given)]
    return reduce(_merged, [*groups, own, *experiments])


def filled_choice(group: str, name: str) -> dict[str, Any]:
    """What a choice holds, with what it is built on and the defaults of what it builds."""
    return _filled(_built(group, name))


def filled_content(file: str) -> dict[str, Any]:
    """The values in a file in `conf/`, as Hydra is to read them, its defaults list among them.

    What a choice is built on is put in, with the defaults of what it builds; then its list names only the choices that
    it makes in other groups.
    """
    group, _, name = file.removesuffix(".yaml").rpartition("/")
    if group == _EXPERIMENT or name == _QUIET:
        return dict(content_of(file))
    if not group:
        return _command(name)
    made = [entry for entry in _defaults(file) if isinstance(entry, dict) and next(iter(entry)).startswith(_OVERRIDE)]
    return {"defaults": [*made, "_self_"], **filled_choice(group, name)}


def _command(name: str) -> dict[str, Any]:
    """What the config of a command holds, with what all have in common.

    The fields of what it runs are its settings: they stand beside `run`, which has a reference to each. Hydra is quiet,
    and an experiment counts after everything else.
    """
    content = content_of(f"{name}.yaml")
    run = content["run"]
    takes = {key: value for key, value in signature_of(run["_target_"]).defaults.items() if key not in run}
    settings = {key: value for key, value in takes.items() if key not in _groups(name)} | _own(content)
    last = [{_EXPERIMENT: None}] if experiments_of(name) else []
    no_logs = [{f"override hydra/{logging}": "none"} for logging in ("job_logging", "hydra_logging")]
    return {
        "defaults": [*_defaults(f"{name}.yaml"), _QUIET, "_self_", *last, *no_logs],
        **_filled(settings | {"run": run | {key: f"${{{key}}}" for key in takes}}),
    }


def leaves_of(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(key with dots, value) of every setting that isn't a group of others."""
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from leaves_of(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _groups(command: str) -> dict[str, str]:
    """A command's groups with the choices that are made where nobody says anything, experiments left out."""
    entries = (entry for entry in _defaults(f"{command}.yaml") if isinstance(entry, dict))
    pairs = ((group, str(choice)) for entry in entries for group, choice in entry.items())
    return {group: choice for group, choice in pairs if is_group(group) and group != _EXPERIMENT}


def _experiments(given: Mapping[str, str]) -> list[str]:
    """The experiment that is given, after those that it is built on."""
    name, found = given.get(_EXPERIMENT), list[str]()
    while name in choices(_EXPERIMENT):
        found.insert(0, name)
        name = next((entry for entry in _defaults(f"{_EXPERIMENT}/{name}.yaml") if isinstance(entry, str)), "")
    return found


def _overrides(group: str, name: str) -> Iterator[tuple[str, str]]:
    """The choices of other groups that a choice makes."""
    if name not in choices(group):
        return
    for entry in _defaults(f"{group}/{name}.yaml"):
        for key, choice in entry.items() if isinstance(entry, dict) else ():
            if key.startswith(_OVERRIDE):
                yield key.removeprefix(_OVERRIDE).partition("@")[0], choice


def _built(group: str, name: str) -> dict[str, Any]:
    """What a choice holds, after what it is built on: `- other`, `- other@package` or `- /group@package: other`."""
    file = f"{group}/{name}.yaml"
    parts = [_own(content_of(file))]
    for entry in _defaults(file):
        ((where, other),) = entry.items() if isinstance(entry, dict) else [(group, entry)]
        if other == "_self_" or where.startswith(_OVERRIDE):
            continue
        (where, _, package), (other, _, inner) = where.lstrip("/").partition("@"), other.partition("@")
        path = (package or inner).split(".") if package or inner else []
        parts.insert(-1, reduce(lambda held, key: {key: held}, reversed(path), _built(where, other)))
    return reduce(_merged, parts)


def _filled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with the defaults of every `_target_`, in its order; what is set counts."""
    takes = signature_of(settings["_target_"]).defaults if "_target_" in settings else {}
    both = {key: settings[key] for key in ("_target_", "_partial_") if key in settings} | dict(takes)
    for key, value in settings.items():
        default = both.get(key)
        changes = isinstance(default, dict) and isinstance(value, dict) and "_target_" not in value
        both[key] = _merged(both[key], value) if changes else value
    return {key: _filled(value) if isinstance(value, dict) else value for key, value in both.items()}


def _defaults(file: str) -> list[Any]:
    found: list[Any] = content_of(file).get("defaults", [])
    return found


def _own(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in ("defaults", "hydra")}


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values of both; where they meet, the other's count."""
    both = {
        key: _merged(one[key], value)
        for key, value in other.items()
        if isinstance(value, dict) and isinstance(one.get(key), dict)
    }
    return {**one, **other, **both}
