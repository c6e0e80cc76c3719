"""Functions that build objects from configs in `conf/`: Hydra composes the configs, and settings are checked first.

Hydra builds the object that `_target_` names, which can be any class or function. This is safe because the command line
and the configs belong to the person who runs the command (SECURITY.md). Files from other people are never built:
`schema.parse` reads them.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from enum import Enum
from functools import cache, partial
from importlib import import_module
from inspect import Parameter, signature
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from neuroshard.plumbing.configs import FOLDER, choices, is_group, quoted
from neuroshard.plumbing.errors import UserError, check_name, first_line, raised_by, unknown_name, user_error_in
from neuroshard.plumbing.schema import shown

_BUILDING = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")  # Hydra's keys that are not settings
_FULL_KEY = re.compile(r"full_key: (\S+)")  # in OmegaConf's errors: the setting that the error is about
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")  # a reference to another setting by its full name
_OWN = f"{__name__.partition('.')[0]}."
_OF_USERS = ("command-line", "hydra.searchpath")  # Hydra's names for search path entries that users add


def composed(name: str | None, overrides: Sequence[str] = (), search_path: Sequence[str] = ()) -> DictConfig:
    """Return the config of the command `name` in `conf/`, composed with `overrides` as Hydra does on the command line.

    Args:
        name: name of the command, such as "search"; None starts from an empty config.
        overrides: settings as on the command line, such as "batch_size=8" or "+tables=criteo".
        search_path: folders or packages to search for configs after `conf/`, as in hydra.searchpath.
    """
    from hydra import compose, initialize_config_dir  # slow to import
    from hydra.core.global_hydra import GlobalHydra

    further = [f"hydra.searchpath=[{','.join(map(quoted, search_path))}]"] if search_path else []
    running = GlobalHydra.instance().hydra  # Hydra of the running command or of another application: restored below
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(FOLDER)):
            return compose(name, overrides=[*further, *overrides])
    finally:
        GlobalHydra.instance().hydra = running


def config_of(command: str, asked: Mapping[str, Any]) -> DictConfig:
    """Return the config of the command called `command`, with the changes in `asked`.
    Each entry of `asked` chooses a config for a config group (such as `searcher`: "neuroshard"), or gives a setting a
    new value.
    """
    config = composed(command, [f"{key}={value}" for key, value in asked.items() if is_group(key)], _search_path())
    for key, value in asked.items():
        if not is_group(key):
            OmegaConf.update(config, key, value)
    return config


def described(group: str, name: str) -> dict[str, Any]:
    """Return the settings in the config `conf/<group>/<name>.yaml`, with references `${...}` left as text.

    Raises:
        UserError: there is no such choice.
    """
    return deepcopy(_described(group, name, _search_path()))


@cache
def _described(group: str, name: str, search_path: Sequence[str]) -> dict[str, Any]:
    from hydra.errors import MissingConfigException

    if not search_path:
        check_name(group, name, choices(group))
    try:
        config = composed(None, [f"+{group}={quoted(name)}"], search_path)
    except MissingConfigException as error:
        raise unknown_name(group, name, error.options or choices(group)) from None
    settings: dict[str, Any] = OmegaConf.to_container(config[group], resolve=False)  # type: ignore[assignment]
    return settings


def _search_path() -> tuple[str, ...]:
    """Return the folders and packages that the user added to Hydra's search path; empty if no command runs."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return ()
    sources = HydraConfig.get().runtime.config_sources
    return tuple(f"{source.schema}://{source.path}" for source in sources if source.provider.startswith(_OF_USERS))


def build(group: str, name: str, /, **settings: Any) -> Any:
    """Build the object that `conf/<group>/<name>.yaml` describes; `settings` replace the settings in the file.

    Raises:
        UserError: the group has no such name, the object has no such setting, or a setting is missing or out of range.
    """
    from neuroshard.plumbing.checked import without_numpy  # slow to import

    config = described(group, name)
    # np.float64 is a float, and np.str_ is a str, but OmegaConf refuses both.
    settings = {key: without_numpy(value) if _plain(value) else value for key, value in settings.items()}
    for setting in settings:
        if setting not in config:
            valid = [key for key in config if key not in _BUILDING]
            raise (
                unknown_name(f"setting of {group} {name}", setting, valid)
                if valid
                else UserError("setting-of-none", f"{group} {name!r} has no settings", remedy=f"Remove {setting}")
            )
    objects = {key: value for key, value in settings.items() if not _plain(value)}
    plain = {key: value for key, value in settings.items() if key not in objects}
    merged = OmegaConf.create({key: value for key, value in config.items() if key not in objects})
    for key, value in plain.items():
        OmegaConf.update(merged, key, value, merge=isinstance(value, dict))
    if not objects:
        return instantiate_config(merged)
    # Hydra would turn a dataclass among the objects into a config, so the objects are passed to the target directly.
    return _unwrapped(partial(instantiate_config(merged, _partial_=True), **objects))


def _plain(value: Any) -> bool:
    """Return True if a config can contain the value; False for other objects, such as a plan."""
    return value is None or isinstance(value, (bool, int, float, str, list, tuple, dict))


def instantiate_config(config: Any, **objects: Any) -> Any:
    """Check the settings of a config, then build the object that the config describes by `_target_`.
    Nested objects in the config are built, too.

    `objects` are further arguments of the outermost target, of types that a config cannot contain.

    Raises:
        UserError: a setting is unknown, missing, of the wrong type or out of range, or refers to itself.
        Exception: any other error of a constructor or an import is a defect, and is raised unchanged.
    """
    from hydra.utils import instantiate

    check_complete(config)
    _check_settings(config)
    return _unwrapped(partial(instantiate, config, _convert_="all", **objects))


def packages_in(config: Any) -> frozenset[str]:
    """Return the names of the packages other than this project from which a config builds objects (`_target_`)."""
    if OmegaConf.is_config(config):
        config = OmegaConf.to_container(config, resolve=False)
    values = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    here = [config["_target_"]] if isinstance(config, dict) and "_target_" in config else []
    names = {str(target).partition(".")[0] for target in here if not str(target).startswith(_OWN)}
    return frozenset(names).union(*map(packages_in, values))


def check_complete(config: Any) -> None:
    """Raise UserError if a setting of a config has no value. Configs mark such a setting by the text `???`."""
    settings = OmegaConf.to_container(config, resolve=False) if OmegaConf.is_config(config) else {}
    for key in _missing_in(settings):
        limit = "a value is needed"
        raise UserError("config-value-missing", f"{key} has no value", limit=limit, remedy=f"Set {key}=...")


def _missing_in(settings: Any, prefix: str = "") -> Iterator[str]:
    """Yield the name of each setting in `settings`, a nested dict, that has no value. The name is the path of the
    setting: the settings {"searcher": {"grid": "???"}} give "searcher.grid". The text `prefix` is put before each name.
    """
    for key, value in settings.items() if isinstance(settings, dict) else ():
        if value == "???":
            yield f"{prefix}{key}"
        yield from _missing_in(value, f"{prefix}{key}.")


def _check_settings(config: Any) -> None:
    """Raise UserError if a config gives a class or function (`_target_`) an unknown setting or a wrong type of value.

    If a value is a reference `${...}` to another node, the error names the place of that node, where the user wrote it:
    OmegaConf returns the node itself.
    """
    if isinstance(config, ListConfig):
        for inner in config:
            _check_settings(inner)
    elif isinstance(config, DictConfig):
        values = _resolved(config)
        place = f"{config._get_full_key(None)}.".removeprefix(".").removeprefix("run.")
        if "_target_" in values:
            settings = {key: value for key, value in values.items() if key not in _BUILDING}
            _check_taken(settings, values["_target_"], place, {key: _shown_as(config, key, place) for key in settings})
        for inner in config.values():
            _check_settings(inner)


def _shown_as(config: DictConfig, key: str, place: str) -> str:
    """Return the name of a setting as a user would set it: the name of the setting that the value refers to, if the
    value is a single reference such as `${batch_size}`, or else the full name, which begins with `place`.
    """
    written = str(config._get_node(key, throw_on_missing_value=False)._value())  # type: ignore[union-attr]
    reference = _REFERENCE.fullmatch(written)
    return reference[1] if reference else f"{place}{key}"


def _check_taken(settings: Mapping[str, Any], target: str, place: str, shown_as: Mapping[str, str]) -> None:
    """Raise UserError if `settings` has a name or a value that the class or function `target` does not accept.
    Errors put `place` before the names of settings. `shown_as` has the full name of each setting.
    """
    made = _located(target)
    taken = _names_of(made)
    for key in settings:
        if taken is not None and key not in taken:
            raise unknown_name("setting", f"{place}{key}", [f"{place}{name}" for name in taken])
    if target.startswith(_OWN):
        _check_types(made, settings, shown_as)


def _located(target: str) -> Any:
    """Import and return the class or function with the full name `target`, such as `package.module.Class`.

    Raises:
        UserError: a target outside this package cannot be imported. An error from this package's own modules is a
            defect, and is raised unchanged.
    """
    module, _, name = target.rpartition(".")
    if target.startswith(_OWN):
        return getattr(import_module(module), name)
    from hydra.utils import get_object

    try:
        return get_object(target)
    except (ImportError, ValueError, AttributeError) as error:
        limit = str(error.__cause__ or error)
        remedy = "Correct _target_, or add the folder of its package to PYTHONPATH"
        raise UserError("target-not-found", f"{target} cannot be imported", limit=limit, remedy=remedy) from None


def _names_of(made: Any) -> list[str] | None:
    """Return the names of the parameters that a class or function accepts.
    Return None if any name is accepted (`**settings`), or if Python cannot list the names.
    """
    try:
        parameters = signature(made).parameters
    except (TypeError, ValueError):
        return None
    accepts_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    return None if accepts_any else list(parameters)


def _check_types(made: Any, settings: Mapping[str, Any], shown_as: Mapping[str, str]) -> None:
    """Raise UserError if the value of a setting does not fit the type annotation of the setting.
    The annotation is in the signature of `made`, the class or function that takes the settings.
    """
    from neuroshard.plumbing.checked import check_values  # slow to import

    check_values(made, settings, shown_as)
    hints = get_type_hints(type.__getattribute__(made, "__init__") if isinstance(made, type) else made)
    for key, value in settings.items():
        if key in hints and not _may_be(value, hints[key]):
            name = shown_as[key]
            limit, remedy = f"{name} is a group of settings", f"Set {name}.NAME=... for a setting NAME in this group"
            raise UserError("setting-is-group", f"{name} is {shown(value)}", limit=limit, remedy=remedy)


def _may_be(value: Any, hint: Any) -> bool:
    """Return True if a config may have `value` for a setting with the type annotation `hint`. If the annotation allows
    only classes of this package that are not Enums, the value must be a group of settings (a dict) with a `_target_`,
    from which an object is built. For example, the annotation `Searcher | None` allows such a dict or None, but not the
    number 5.

    For other annotations, every value is suitable. A list is suitable if all of its values are suitable.
    """
    if isinstance(value, list):
        return all(_may_be(inner, hint) for inner in value)
    kinds = [kind for kind in _kinds(hint) if kind is not Ellipsis]
    if (isinstance(value, dict) and "_target_" in value) or (value is None and NoneType in kinds):
        return True
    return not all(_is_object(kind) for kind in kinds if kind is not NoneType)


def _kinds(hint: Any) -> Iterator[Any]:
    """Yield each type that occurs in an annotation, including types inside unions and sequences."""
    if get_origin(hint) is None:
        yield hint
    for inner in get_args(hint):
        yield from _kinds(inner)


def _is_object(kind: Any) -> bool:
    """Return True if a type is a class of this package, but not an Enum.
    A config cannot contain an object of such a class. Instead, it contains a group of settings, from which the object
    is built.
    """
    return isinstance(kind, type) and kind.__module__.startswith(_OWN) and not issubclass(kind, Enum)


def _resolved(config: DictConfig) -> Any:
    """Return a config as plain values, in which each reference `${...}` is replaced by the setting that it refers to.

    Raises:
        UserError: a `${...}` refers to a setting that does not exist, or to itself; unlike Hydra's error, this error
            names the setting with the `${...}`.
    """
    try:
        return OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise _of_config(error) from error


def _unwrapped(make: Callable[[], Any]) -> Any:
    """Call `make`, which builds an object with Hydra, and return the object.
    If the call fails, raise the original error without Hydra's wrapper.

    Of a wrapped error, the UserError in its chain of causes is raised, or else the original error, because the text of
    Hydra's wrapper advises to set a variable that has no effect here. An error of OmegaConf is a defect here, because
    settings are resolved before objects are built.
    """
    from hydra.errors import InstantiationException

    try:
        return make()
    except InstantiationException as error:
        original = user_error_in(error) or error.__cause__ or error
        if isinstance(original, ImportError) and raised_by(original, "hydra"):
            original = original.__cause__ or original  # the error inside the module that ended Hydra's import of it
    raise original


def _of_config(error: OmegaConfBaseException) -> UserError:
    """Convert an error of OmegaConf to a UserError that names the setting and the first line of OmegaConf's text."""
    text = first_line(error)
    named = _FULL_KEY.search(str(error))
    key = "" if named is None else named[1].removeprefix("run.")
    what = f"{key} cannot be read" if key else "a setting cannot be read"
    remedy = f"Correct the value of {key}" if key else "Correct the value"
    return UserError("setting-unreadable", what, limit=text, remedy=remedy)
