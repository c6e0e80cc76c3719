"""Where Hydra finds the files of `conf/`: with the defaults of what they build filled in."""

from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from neuroshard.plumbing.configs import filled_content

_FILES = "pkg://neuroshard.conf"
_SCHEME = "neuroshard"


class FilledSource(ImportlibResourcesConfigSource):
    """Reads the files of `conf/` as `neuroshard.plumbing.configs` does."""

    @staticmethod
    def scheme() -> str:
        """What stands before `://` in a search path."""
        return _SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """A file with its header, filled in."""
        found = super().load_config(config_path)
        if self._normalize_file_name(config_path).startswith("experiment/"):
            found.header["package"] = "_global_"  # it sets what other files hold
        found.config = OmegaConf.create(filled_content(self._normalize_file_name(config_path)))
        return found


class FilledSearchPath(SearchPathPlugin):
    """Has Hydra read `conf/` through `FilledSource`; other people's configs are left alone."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Change where the package's own configs are looked for."""
        for element in search_path.get_path():
            if element.path == _FILES:
                element.path = _FILES.replace("pkg", _SCHEME)


def register() -> None:
    """Make both known to Hydra; again is no harm."""
    for plugin in (FilledSource, FilledSearchPath):
        Plugins.instance().register(plugin)
