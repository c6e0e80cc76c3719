"""A setting's default stands once: in the class that takes it, or in `conf/`."""

import inspect
from copy import deepcopy
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path

import pytest

from neuroshard.app.settings import said_of
from neuroshard.plumbing import configs
from neuroshard.plumbing.configs import Composed, comments, content_of, filled
from neuroshard.plumbing.signatures import NEEDED, signature_of

CONF = Path(__file__).resolve().parents[2] / "conf"
FILES = sorted(str(path.relative_to(CONF)) for path in CONF.rglob("*.yaml"))
NO_SETTINGS = {"clock"}  # defaults that no config can hold


def _targets(node):
    if isinstance(node, dict):
        yield from ([node["_target_"]] if "_target_" in node else [])
        for inner in node.values():
            yield from _targets(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _targets(inner)


TARGETS = sorted({target for file in FILES for target in _targets(content_of(file))})


def _taken(target):
    """(name, default) of what a `_target_` takes, as Python says."""
    module, _, name = target.rpartition(".")
    made = getattr(import_module(module), name)
    factories = {one.name: one.default_factory for one in fields(made)} if is_dataclass(made) else {}
    for key, parameter in inspect.signature(made).parameters.items():
        factory = factories.get(key, MISSING)
        yield key, parameter.default if factory is MISSING else factory()


def _as_yaml(value):
    if value is inspect.Parameter.empty:
        return NEEDED
    if is_dataclass(value):
        target = f"{type(value).__module__}.{type(value).__name__}"
        return {"_target_": target} | {one.name: _as_yaml(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Enum):
        return value.value
    return [_as_yaml(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("target", TARGETS)
def test_defaults_are_read_as_python_has_them(target):
    taken = {key: _as_yaml(default) for key, default in _taken(target) if key not in NO_SETTINGS}
    assert dict(signature_of(target).defaults) == taken
    assert list(signature_of(target).defaults) == list(taken)


def _filled(file):
    group, _, name = file.removesuffix(".yaml").rpartition("/")
    if group == "experiment":
        return Composed.of(name.split("_")[0], {group: name}).settings
    return filled(group, name) if group else Composed.of(name, {}).settings


def _keys(node, path=()):
    for key, value in node.items():
        if key not in ("defaults", "hydra"):
            yield (*path, key)
            yield from _keys(value, (*path, key)) if isinstance(value, dict) else ()


def _without(content, path):
    copy = deepcopy(content)
    node = copy
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    return copy


@pytest.mark.parametrize("file", FILES)
def test_no_file_repeats_a_default(file, monkeypatch):
    content, whole, repeated = content_of(file), _filled(file), []
    for path in _keys(content):
        if path in (("run",), ("run", "_target_")):
            continue
        without = _without(content, path)
        monkeypatch.setattr(configs, "content_of", lambda one, its=without: its if one == file else content_of(one))
        if _filled(file) == whole:
            repeated.append(".".join(path))
    assert repeated == []


@pytest.mark.parametrize("file", FILES)
def test_no_comment_repeats_what_a_class_says(file, monkeypatch):
    group, written = file.rpartition("/")[0], comments(file)
    settings = {group: _filled(file)} if group else _filled(file)
    monkeypatch.setattr("neuroshard.app.settings.comments", lambda _: {})
    said = {key: said_of(Composed("", {}, settings), f"{group}.{key}".lstrip(".")) for key in written}
    assert written.items() & said.items() == set()
