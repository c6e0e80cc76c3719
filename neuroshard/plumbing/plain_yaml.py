"""Reading of YAML files as plain values; files with aliases or tags are refused."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import yaml

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_bytes, read_json
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import MAX_DEPTH, check_depth, nested_too_deeply, shown

_MAX_BYTES = 4 << 20  # a limit because the parser needs some seconds per megabyte
_PLAIN = tuple(f"tag:yaml.org,2002:{tag}" for tag in ("null", "bool", "int", "float", "str", "seq", "map"))


def read_yaml(path: Path, what: str) -> Any:
    """Return the content of a YAML file as plain values for `schema.parse`. If the suffix of `path` is `.json`, the
    file is read as JSON. `what` names the file in error messages, such as "constraints".

    Scalars follow YAML 1.1, except that dates stay text. Aliases are refused, because they can expand without end.

    Raises:
        UserError: the file is missing or malformed, or has a field twice in one mapping; or a YAML file is larger than
            4 MiB or has an alias.
    """
    if path.suffix == ".json":
        return read_json(path, what)
    text = read_bytes(path, what)
    if len(text) > _MAX_BYTES:
        size, limit = number_of(len(text), "byte"), f"the maximum for YAML is {number_of(_MAX_BYTES, 'byte')}"
        remedy = "Write the file as JSON (.json)"
        raise UserError("yaml-large", f"{what} {path} has {size}", limit=limit, remedy=remedy)
    try:
        content = yaml.load(text, Loader=_Loader)  # a safe loader, made stricter
        check_depth(content)
        msgspec.json.encode(content)  # refuses text that is not Unicode, and numbers beyond 64 bits
    except UserError as error:
        where = ", ".join(filter(None, (f"{what} {path}", error.message.where)))
        raise error.changed(where=where) from None
    except (yaml.YAMLError, ValueError, OverflowError, TypeError) as error:
        unreadable, remedy = f"{what} {path} is not valid YAML", "Correct the YAML text"
        raise UserError("yaml-unreadable", unreadable, limit=str(error), remedy=remedy) from None
    except RecursionError:
        raise nested_too_deeply(MAX_DEPTH).at(f"{what} {path}") from None
    return content


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML is untyped
    """A YAML loader that accepts only plain values; aliases, tags of other types and repeated fields are refused."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _PLAIN]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors: ClassVar = {tag: yaml.SafeLoader.yaml_constructors[tag] for tag in _PLAIN} | {
        None: yaml.SafeLoader.yaml_constructors[None]
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            where = f"line {self.peek_event().start_mark.line + 1}"
            what, limit = "the file has a YAML alias (*name)", "NeuroShard does not read aliases"
            remedy = "Write the value out in place of the alias"
            raise UserError("yaml-alias", what, where=where, limit=limit, remedy=remedy)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping in a YAML node as a dict; raise UserError if a name is not text or occurs twice."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            where = f"line {key_node.start_mark.line + 1}"
            if not isinstance(key, str):
                what, remedy = f"the name of a field is {shown(key)}, which is not text", "Put the name in quotes"
                raise UserError("yaml-name-not-text", what, where=where, remedy=remedy)
            if key in seen:
                what, remedy = f"field {key!r} occurs twice in one mapping", "Delete one of these two fields"
                raise UserError("yaml-field-twice", what, where=where, remedy=remedy)
            seen.add(key)
        fields: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return fields
