"""YAML as plain values: no aliases, no tags, nothing resolved."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import yaml

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_bytes, read_json
from neuroshard.plumbing.schema import check_depth, shown

_MAX_BYTES = 4 << 20  # the parser reads a megabyte in some seconds
_PLAIN = tuple(f"tag:yaml.org,2002:{tag}" for tag in ("null", "bool", "int", "float", "str", "seq", "map"))


def read_yaml(path: Path, what: str) -> Any:
    """Read the values in a YAML file, or in a JSON file (`.json`), for `schema.parse`.

    Scalars are those of YAML 1.1, dates are text. Aliases are refused, because they can expand without end, and so is a
    field that stands there twice.

    Raises:
        UserError: the file is missing or malformed; `what` names it.
    """
    if path.suffix == ".json":
        return read_json(path, what)
    text = read_bytes(path, what)
    if len(text) > _MAX_BYTES:
        raise UserError(f"{what} {path} takes {len(text)} bytes, YAML at most {_MAX_BYTES}; write it as JSON (.json)")
    try:
        content = yaml.load(text, Loader=_Loader)  # a safe loader, made stricter
        check_depth(content)
        msgspec.json.encode(content)  # refuses text that is no Unicode, and numbers beyond 64 bits
    except (yaml.YAMLError, ValueError, OverflowError, TypeError) as error:
        raise UserError(f"{what} {path} is not readable YAML: {error}") from None
    except RecursionError:
        raise UserError(f"{what} {path} is not readable YAML: nested too deeply") from None
    return content


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML is untyped
    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _PLAIN]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors: ClassVar = {tag: yaml.SafeLoader.yaml_constructors[tag] for tag in _PLAIN} | {
        None: yaml.SafeLoader.yaml_constructors[None]
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise UserError(f"line {self.peek_event().start_mark.line + 1}: aliases (*name) are not read; write it out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Read a mapping; refuse names that aren't text or stand there twice."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            where = f"line {key_node.start_mark.line + 1}"
            if not isinstance(key, str):
                raise UserError(f"{where}: the name of a field, {shown(key)}, must be text")
            if key in seen:
                raise UserError(f"{where}: field {key!r} stands there twice")
            seen.add(key)
        fields: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return fields
