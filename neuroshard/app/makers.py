"""Checks before a command runs: inputs, with the command that makes a missing input, and the values of a sweep."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from omegaconf import ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from neuroshard.app.arguments import Override, as_overrides, asked_by
from neuroshard.app.commands import COMMANDS
from neuroshard.plumbing.configs import (
    CHOICE_IN,
    EXPERIMENT,
    REFERENCE,
    Composed,
    choices,
    content_of,
    experiments_of,
    leaves_of,
    repository,
    sweep_of,
)
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.registry import config_of, instantiate_config

_NO_INPUTS = ("out", "path", "_target_")  # what is written, people's own files, classes
_MOST_VALUES = 1000  # of a sweep that are looked at
_IN_REPOSITORY = "benchmarks/data/"  # measurements that are in a checkout, and in no installed package


def check_made(command: str, overrides: Sequence[Override], sweeping: bool) -> None:
    """Raise UserError if a setting names what a command writes and hasn't written yet; the line says which command.

    Every value of a sweep is looked at, so that no job fails after hours for what was missing from the start.
    """
    for job in _jobs(command, overrides, sweeping):
        for key, one in _named(command, job):
            if (maker := _lacking(one)) is not None:
                remedy = f"Run {maker} first"
                raise UserError("input-not-made", f"{key}={one} does not exist yet", remedy=remedy)
            if one.startswith(_IN_REPOSITORY) and not Path(one).exists():
                before, data = _data_instead(_texts(Composed.of(command, job).settings.get(key)))
                raise UserError(
                    "input-in-repository",
                    f"{key}={one} does not exist in this directory",
                    limit="the measurements are part of NeuroShard's repository",
                    remedy=f"Run `{before}`, then add {data}" if before else f"Add {data}",
                )


def check_built(command: str, overrides: Sequence[Override]) -> None:
    """Raise UserError if something can't be built with a value of a sweep, which no job has to come to then."""
    for job in _jobs(command, overrides, sweeping=True):
        hydras = {"runtime": {"choices": Composed.of(command, job).chosen}, "job": {"num": 0}}
        OmegaConf.register_new_resolver("hydra", partial(OmegaConf.select, OmegaConf.create(hydras)), replace=True)
        try:
            instantiate_config(config_of(command, job).run)
        except UserError as error:
            settings = ",".join(f"{key}={value}" for key, value in job.items())
            limit = "; ".join(filter(None, (error.message.limit, "no job of the sweep has started")))
            raise error.at(f"sweep job {settings}").changed(limit=limit) from None


def _jobs(command: str, overrides: Sequence[Override], sweeping: bool) -> list[Mapping[str, Any]]:
    """List what jobs are asked for: the first one, and for each further value of a sweep one that differs in it."""
    experiment = asked_by(overrides).get(EXPERIMENT)
    swept = [f"{key}={values}" for key, values in sweep_of(experiment).items()] if sweeping else []
    every = [*as_overrides(command, swept), *overrides]
    asked = {override.key: override.values[:_MOST_VALUES] for override in every if not override.is_hydras}
    first = {key: values[0] for key, values in asked.items()}
    return [first, *(first | {key: value} for key, values in asked.items() for value in values[1:])]


def _named(command: str, asked: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, text) of every setting with text, and of texts in a list, where it may be the path of an input."""
    config = config_of(command, asked)
    for key, _ in leaves_of(Composed.of(command, asked).settings):
        if key.split(".")[0] == "run" or key.split(".")[-1] in _NO_INPUTS:
            continue
        with suppress(OmegaConfBaseException, ValueError):  # what only Hydra knows
            value = OmegaConf.select(config, key)
            values = value if isinstance(value, ListConfig) else [value]
            yield from ((key, one) for one in values if isinstance(one, str) and "/" in one)


def _lacking(text: str) -> str | None:
    """Return what to run to make a missing path; None if the path exists or no single command makes the path."""
    path = Path(text)
    for place in (path, *path.parents):
        if (maker := _makers().get(str(place))) is not None:
            return None if place.exists() else maker.runnable
    return None


@dataclass(frozen=True)
class _Maker:
    """A command that makes something, and the measurements that it reads."""

    line: str
    data: tuple[str, ...]

    @property
    def runnable(self) -> str:
        """The command, in backquotes, as it runs in this directory, behind the one that must be run first, if any."""
        if not any(one.startswith(_IN_REPOSITORY) and not Path(one).exists() for one in self.data):
            return f"`{self.line}`"
        before, data = _data_instead(self.data)
        line = f"`{self.line} {data}`"
        return f"`{before}`, then {line}" if before else line


def _data_instead(data: Sequence[str]) -> tuple[str, str]:
    """Replace measurements that are in the repository by others, where this is no checkout.

    Returns:
        The command that measures the others, empty if they are there; and the setting that reads them.
    """
    places = [repository() / one for one in data]
    if all(place.exists() for place in places):
        paths = ",".join(map(str, places))
        return "", f"'data=[{paths}]'" if len(places) > 1 else f"data={paths}"
    gpu = any(one.startswith(f"{_IN_REPOSITORY}h100") for one in data)
    line, out = ("collect_gpu", "data/cuda") if gpu else ("collect_cpu", "data/cpu")
    return "" if Path(out).exists() else f"neuroshard collect experiment={line}", f"data={out}"


def _texts(value: Any) -> tuple[str, ...]:
    """List a text, or those in a list."""
    return tuple(str(one) for one in value) if isinstance(value, list) else (str(value),)


@cache
def _makers() -> Mapping[str, _Maker]:
    """Map each path to the command that makes it. Experiments come first: what they write is theirs alone."""
    makers: dict[str, _Maker] = {}
    own = [(command, name) for command in COMMANDS for name in experiments_of(command)]
    own = [(command, name) for command, name in own if "out" in content_of(f"{EXPERIMENT}/{name}.yaml")]
    for command, name in [*own, *((command, None) for command in COMMANDS)]:
        swept = sweep_of(name)
        line = f"neuroshard {command}{' -m' if swept else ''}{f' experiment={name}' if name else ''}"
        settings = dict(leaves_of(Composed.of(command, {EXPERIMENT: name}).settings))
        for path, chosen in _written(str(settings.get("out")), settings, swept):
            if "/" in path:
                makers.setdefault(path, _Maker(line + chosen, _texts(settings.get("data"))))
    return makers


def _written(text: str, settings: Mapping[str, Any], swept: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (path, the choices that give it) of every path that a text with `${...}` may be."""
    reference = REFERENCE.search(text)
    if reference is None:
        yield text, ""
        return
    name = reference[1].removeprefix(CHOICE_IN)
    if name in swept:
        ways = [(value, "") for value in swept[name].split(",")]
    elif name != reference[1]:
        ways = [(value, f" {name}={value}") for value in choices(name)]
    else:
        ways = [(str(settings[name]), "")]
    for value, chosen in ways:
        for path, more in _written(text.replace(reference[0], value), settings, swept):
            yield path, chosen + more
