"""Building objects from `conf/` by name: where the components of NeuroShard are joined.

What is built is said in `conf/` alone. Hydra would build whatever a setting's value names by `_target_`, so every value
that comes from a user, on the command line or in a call, passes `check_setting`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Self

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from neuroshard.plumbing.configs import EXPERIMENT, Composed, choices, files_of, filled, missing, own
from neuroshard.plumbing.errors import UserError, check_name, first_line, raised_by, unknown_name, user_error_in
from neuroshard.plumbing.schema import nested_too_deeply, shown
from neuroshard.plumbing.signatures import signature_of

_BUILDING = re.compile(r"(?<!\w)_(?:target|args|partial|recursive|convert)_(?!\w)")  # Hydra's words for what is built
_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*\\\$\{")  # OmegaConf takes it as it is written
_FULL_KEY = re.compile(r"full_key: (\S+)")  # in OmegaConf's errors: the setting that they are about
_NAMED = re.compile(r"\$\{\s*(?:hydra:)?[\w.@/\[\]-]+\s*\}")
_PACKAGE = __name__.partition(".")[0]
_MAX_DEPTH = 20  # of lists and fields in each other


def described(group: str, name: str) -> dict[str, Any]:
    """Read `conf/<group>/<name>.yaml`, with the defaults of what it builds; raise UserError if there is none."""
    check_name(group, name, choices(group))
    return own(filled(group, name))


def check_setting(name: str, value: object) -> None:
    """Raise UserError if a setting would say which class is built: every value inside a setting must be plain.

    `${...}` in texts may name settings, also Hydra's (`${hydra:...}`); resolvers could make anything of a text.
    """
    inner = list(_within(name, value, _MAX_DEPTH))
    for key in (name, *(key for node in inner if isinstance(node, Mapping) for key in node)):
        if _BUILDING.search(str(key)):
            where = "" if key == name else name
            limit, remedy = "a setting cannot say which class is built", f"Remove {shown(key)}"
            raise UserError("setting-builds", f"{shown(key)} cannot be set", where=where, limit=limit, remedy=remedy)
    for text in inner:
        if isinstance(text, str) and "${" in _NAMED.sub("", _ESCAPED.sub("", text)):
            limit = "${...} may name settings only"
            remedy = "Name a setting, such as ${batch_size}, or write the value"
            raise UserError("setting-resolver", f"{name}={shown(text)} uses a resolver", limit=limit, remedy=remedy)


def _within(name: str, value: object, depth: int) -> Iterator[object]:
    """Yield a value and all values inside it."""
    if not depth:
        raise nested_too_deeply(_MAX_DEPTH).at(name)
    plain = OmegaConf.to_container(value, resolve=False) if OmegaConf.is_config(value) else value
    yield plain
    if isinstance(plain, (Mapping, list, tuple)):
        for inner in plain.values() if isinstance(plain, Mapping) else plain:
            yield from _within(name, inner, depth - 1)


def build(group: str, name: str, /, **settings: Any) -> Any:
    """Build the object that `conf/<group>/<name>.yaml` describes, with `settings` over its own.

    Raises:
        UserError: no such name, no such setting, or a setting that is missing, out of range or refused by
            `check_setting`.
    """
    config = described(group, name)
    for setting, value in settings.items():
        check_setting(setting, value)
        if setting not in config:
            valid = [key for key in config if key != "_target_"]
            raise (
                unknown_name(f"setting of {group} {name}", setting, valid)
                if valid
                else UserError("setting-of-none", f"{group} {name!r} has no settings", remedy=f"Remove {setting}")
            )
        if isinstance(config[setting], dict) and _plain(value) and not isinstance(value, dict) and value is not None:
            inner = ", ".join(key for key in config[setting] if not _BUILDING.fullmatch(key))
            raise UserError(
                "setting-group-as-value",
                f"{setting} is {shown(value)}",
                limit=f"{setting} is a group of settings ({inner})",
                remedy=f"Set {setting} to a mapping of these settings",
            )
    objects = {key: value for key, value in settings.items() if not _plain(value)}
    plain = {key: value for key, value in settings.items() if key not in objects}
    merged = OmegaConf.merge({key: value for key, value in config.items() if key not in objects}, plain)
    if not objects:
        return instantiate_config(merged)
    return _unwrapped(partial(instantiate_config(merged, _partial_=True), **objects))  # Hydra takes dataclasses apart


def _plain(value: Any) -> bool:
    """Return True if a config can hold a value; objects, such as a plan, are passed on as they are."""
    return value is None or isinstance(value, (bool, int, float, str, list, tuple, dict))


def config_of(command: str, asked: Mapping[str, Any]) -> DictConfig:
    """Compose a command's config after the choices and values in `asked`; raise UserError if one can't be read."""
    try:
        return OmegaConf.create(dict(Composed.of(command, asked).settings))
    except OmegaConfBaseException as error:
        raise _of_config(error) from error


def store_configs(command: str) -> None:
    """Store the configs of a command for Hydra."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.repo = _Shared(store.repo)
    for group, name, content in files_of(command):
        package = "_global_" if group == EXPERIMENT else None  # it sets what other files hold
        store.store(group=group or None, name=name, node=content, package=package)


class _Shared(dict[str, Any]):
    """The configs that Hydra composes. A deep copy returns the same object: nothing changes it, and copies are slow."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


def instantiate_config(config: Any, **objects: Any) -> Any:
    """Build what the config's `_target_`s name; `objects` are arguments that no config can hold.

    Raises:
        UserError: a setting is unknown, missing, of the wrong type or out of range, or refers to itself.
        Exception: whatever else a constructor or an import raises is a defect, and is passed on as it was raised.
    """
    from hydra.utils import instantiate

    held: Any = OmegaConf.to_container(config, resolve=False) if isinstance(config, DictConfig) else {}
    if without := missing(held):
        remedy = f"Set {without[0]}"
        raise UserError("config-value-missing", f"{without[0]} has no value", limit="a value is needed", remedy=remedy)
    _check_taken(_resolved(config))
    return _unwrapped(partial(instantiate, config, _convert_="all", **objects))


def _check_taken(held: Mapping[str, Any], prefix: str = "") -> None:
    """Raise UserError if a class or a function of this package does not take a setting, or not a value of that type."""
    target = str(held.get("_target_", ""))
    if target.startswith(f"{_PACKAGE}."):
        settings = {key: value for key, value in held.items() if not _BUILDING.fullmatch(key)}
        names = signature_of(target).names
        for key in settings:
            if names is not None and key not in names:
                raise unknown_name("setting", f"{prefix}{key}", [f"{prefix}{name}" for name in names])
        _check_types(target, settings)
    for key, value in held.items():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                _check_taken(inner, f"{prefix}{key}.")


def _check_types(target: str, settings: Mapping[str, Any]) -> None:
    """Raise UserError if a setting isn't of the annotated type; classes that are `checked` see to that themselves."""
    from neuroshard.plumbing.checked import check_values, is_checked  # slow to import

    module, _, name = target.rpartition(".")
    built = getattr(import_module(module), name)
    if not is_checked(built):
        check_values(built, settings)


def _resolved(config: Any) -> Any:
    """Return a config's plain values, with other settings in place of each `${...}`; of anything else, nothing.

    Raises:
        UserError: a `${...}` names nothing, or itself; unlike Hydra's error, this one says in which setting.
    """
    try:
        return OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else {}
    except OmegaConfBaseException as error:
        raise _of_config(error) from error


def _unwrapped(make: Callable[[], Any]) -> Any:
    """Return what Hydra makes. Of an error that Hydra wraps, raise the UserError in it, or else the original error.

    Hydra's own text advises to set a variable that has no effect here. An error of OmegaConf is a defect, because
    settings are resolved before anything is made.
    """
    from hydra.errors import InstantiationException

    try:
        return make()
    except InstantiationException as error:
        original = user_error_in(error) or error.__cause__ or error
        if isinstance(original, ImportError) and raised_by(original, "hydra"):
            original = original.__cause__ or original  # an error of any type, which ends an import
    raise original


def _of_config(error: OmegaConfBaseException) -> UserError:
    """Make the UserError of an error about a config: OmegaConf's first line, with the setting that it is about."""
    text = first_line(error)
    named = _FULL_KEY.search(str(error))
    key = "" if named is None else named[1].removeprefix("run.")
    what = f"{key} cannot be read" if key else "a setting cannot be read"
    remedy = f"Correct the value of {key}" if key else "Correct the value"
    return UserError("setting-unreadable", what, limit=text, remedy=remedy)
