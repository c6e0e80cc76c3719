"""Building objects from `conf/` by name: where the parts of NeuroShard are joined."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from hydra import compose, initialize_config_module
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from neuroshard.errors import UserError, unknown_name


def choices(group: str) -> list[str]:
    """Names of the configs in a group, such as "searcher"."""
    found = files("neuroshard.conf").joinpath(group).iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in found if entry.name.endswith(".yaml"))


def described(group: str, name: str) -> DictConfig:
    """What `conf/<group>/<name>.yaml` says.

    Raises:
        UserError: no such name.
    """
    if name not in choices(group):
        raise unknown_name(group, name, choices(group))
    config = OmegaConf.create(files("neuroshard.conf").joinpath(group, f"{name}.yaml").read_text())
    assert isinstance(config, DictConfig)
    if "defaults" not in config:
        return config
    composed: DictConfig = compose_config(f"{group}/{name}", [])[group]  # built on others
    return composed


def build(group: str, name: str, /, **settings: Any) -> Any:
    """The object that `conf/<group>/<name>.yaml` describes, with `settings` over its own.

    Raises:
        UserError: no such name, no such setting, or a setting out of range.
    """
    config = described(group, name)
    for setting in settings:
        if setting not in config.keys():  # noqa: SIM118  # `in` overlooks settings that have no value yet
            valid = [str(key) for key in config if key != "_target_"]
            raise (
                unknown_name(f"setting of {group} {name}", setting, valid)
                if valid
                else UserError(f"{group} {name!r} has no settings, so not {setting!r}")
            )
    return instantiate_config(OmegaConf.merge(config, settings))


def compose_config(command: str, overrides: Sequence[str]) -> DictConfig:
    """A command's config, after overrides as on the command line.

    Raises:
        UserError: Hydra can't make sense of them.
    """
    try:
        with initialize_config_module("neuroshard.conf", version_base="1.3"):
            return compose(command, overrides=list(overrides))
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
        # Of what it can't make sense of, Hydra says some things by exceptions of its own, others by Python's.
        raise UserError(error) from None


def instantiate_config(config: Any) -> Any:
    """What the config's `_target_`s build.

    Raises:
        UserError: a setting is missing, of the wrong type or out of range.
    """
    try:
        return instantiate(config, _convert_="all")
    except InstantiationException as error:
        raise _user_error(error) from error
    except OmegaConfBaseException as error:
        raise UserError(error) from None


def _user_error(error: InstantiationException) -> UserError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            return cause
        if isinstance(cause, (TypeError, OmegaConfBaseException)):
            return UserError(cause)
        cause = cause.__cause__
    return UserError(error)
