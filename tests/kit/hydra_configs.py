"""Configs as Hydra composes them for a run, in tests."""

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
    """A command's config with Hydra's own settings in it: a tenth of a second and more, and nothing changes it."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(FOLDER)):
        return compose(command, overrides=list(overrides), return_hydra_config=True)


@lru_cache(maxsize=256)
def _composed(command: str, overrides: tuple[str, ...]) -> DictConfig:
    return composed(command, overrides)


def compose_config(command: str, overrides: Sequence[str]) -> DictConfig:
    """A command's config, after overrides as on the command line; Hydra's own settings aren't in it."""
    return deepcopy(_composed(command, tuple(for_hydra(command, overrides))))
