"""Each default is written once, in the class with the setting or in `conf/`; classes generate `conf/settings/`."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from neuroshard.plumbing.configs import FOLDER
from neuroshard.plumbing.registry import composed
from neuroshard.plumbing.settings_files import settings_files

SETTINGS = FOLDER / "settings"
BY_HAND = sorted(
    str(path.relative_to(FOLDER))
    for path in FOLDER.rglob("*.yaml")
    if path.parent.name not in ("settings", "output", "help", "experiment")
)


def _read(file):
    return yaml.safe_load((FOLDER / file).read_text())


def test_settings_files_match_the_fields_of_their_classes():
    for path, text in settings_files(SETTINGS).items():
        assert path.read_text() == text, f"{path} is out of date: make docs"


def test_settings_files_are_all_included_by_a_config():
    used = "\n".join(path.read_text() for path in FOLDER.rglob("*.yaml") if path.parent != SETTINGS)
    assert [path.stem for path in SETTINGS.glob("*.yaml") if f"/settings/{path.stem}@" not in used] == []


def test_settings_in_config_files_have_comments():
    for path in SETTINGS.glob("*.yaml"):
        lines = path.read_text().partition("\nrun:")[0].splitlines()
        for above, line in pairwise(lines):
            key = line.strip().partition(":")[0]
            if key.isidentifier() and not key.startswith("_") and key not in ("defaults", "hydra"):
                assert " # " in line or above.strip().startswith("# "), f"{path.stem}: {line}"


def test_settings_writer_includes_fields_of_base_classes_and_nested_classes(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass, field\n"
        "@dataclass\n"
        "class Inner:\n"
        '    """Inside.\n\n    Attributes:\n        a: what a is. More.\n    """\n'
        "    a: int = 1\n"
        "@dataclass\n"
        "class Outer(Inner):\n"
        '    """Outside.\n\n    Attributes:\n        b: text or None.\n        inner: all of it.\n    """\n'
        "    b: str | None = None\n"
        "    c: tuple[int, ...] = ()\n"
        "    inner: Inner = field(default_factory=Inner)\n"
    )
    (tmp_path / "Outer.yaml").write_text("_target_: mine.Outer\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        (text,) = settings_files(tmp_path).values()
    del sys.modules["mine"]  # other tests import another package of this name
    assert text.splitlines()[1:] == [
        "_target_: mine.Outer",
        "a: 1 # what a is",
        "b: null # text or null",
        "c: []",
        "inner: # all of it",
        "  _target_: mine.Inner",
        "  a: 1 # what a is",
    ]


def _leaves(node, prefix=""):
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _included(file):
    """Return the values of all other files in the defaults list of a config, without those of the file itself."""
    held = _read(file)
    group = str(Path(file).parent) if "/" in file else ""
    settings = {}
    for entry in held.get("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            name, _, package = entry.partition("@")
            inside = SETTINGS / f"{name.removeprefix('/settings/')}.yaml"
            values = yaml.safe_load(inside.read_text()) if name.startswith("/") else _whole(group, name)
            for key in filter(None, reversed(package.replace("_here_", "").split("."))):
                values = {key: values}
            settings = OmegaConf.to_container(OmegaConf.merge(settings, values))
    return settings


def _whole(group, name):
    return OmegaConf.to_container(composed(None, [f"+{group}={name}"])[group])


@pytest.mark.parametrize("file", BY_HAND)
def test_config_files_set_no_value_equal_to_the_default(file):
    own = {key: value for key, value in _read(file).items() if key not in ("defaults", "hydra")}
    included = dict(_leaves(_included(file)))
    assert [key for key, value in _leaves(own) if key in included and included[key] == value] == []
