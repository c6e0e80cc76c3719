"""Configs as Hydra composes them for a command, in tests."""

from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from neuroshard.app.arguments import for_hydra
from neuroshard.plumbing.configs import FOLDER
from neuroshard.plumbing.registry import composed


@lru_cache(maxsize=256)
def with_hydra(command: str, overrides: tuple[str, ...]) -> DictConfig:
    """Return the config of a command with the settings of Hydra; cached, because composing takes over 0.1 s."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(FOLDER)):
        return compose(command, overrides=list(overrides), return_hydra_config=True)


@lru_cache(maxsize=256)
def _composed(command: str, overrides: tuple[str, ...]) -> DictConfig:
    return composed(command, overrides)


def compose_config(command: str, overrides: Sequence[str]) -> DictConfig:
    """Return the config of a command after overrides as on the command line, without the settings of Hydra."""
    return deepcopy(_composed(command, tuple(for_hydra(command, overrides))))
