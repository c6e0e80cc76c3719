"""Configs as Hydra composes them for a run, in tests."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hydra import compose, initialize
from omegaconf import DictConfig, OmegaConf

from neuroshard.app.arguments import as_overrides, asked_by
from neuroshard.plumbing.registry import config_of, store_configs


@lru_cache(maxsize=256)
def composed(command: str, overrides: tuple[str, ...]) -> DictConfig:
    """A command's config with Hydra's own settings in it: a tenth of a second and more, and nothing changes it."""
    store_configs(command)
    with initialize(version_base="1.3", config_path=None):
        return compose(command, overrides=list(overrides), return_hydra_config=True)


def compose_config(command: str, overrides: Sequence[str]) -> DictConfig:
    """A command's config, after overrides as on the command line; Hydra's own settings aren't in it."""
    return config_of(command, asked_by(as_overrides(command, overrides)))


def settings_by_hydra(command: str, overrides: Sequence[str]) -> dict[str, Any]:
    """A command's settings, nested, as they are written."""
    settings: Any = OmegaConf.to_container(composed(command, tuple(overrides)), resolve=False)
    return {key: value for key, value in settings.items() if key != "hydra"}
