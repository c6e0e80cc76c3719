"""The parameters of the `_target_`s of `conf/`: defaults and help lines, read from source in milliseconds.

Completion is asked at every press of a key, and help before anything runs: importing the classes would take seconds. So
only what settings are made of is understood: numbers, text, tuples of these, members of enums, names for any of them,
and other classes with such settings. A test compares every `_target_` with what Python says of it.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

NEEDED = "???"  # in place of a value that has to be set, as OmegaConf writes it
_ROOT = Path(__file__).parents[1]
_PACKAGE = _ROOT.name
_SECTION = re.compile(r"^(?:Attributes|Args):\n(?P<entries>(?:(?: {4}.*)?(?:\n|\Z))*)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(?P<names>\w+(?:, \w+)*): (?P<text>.*(?:\n {8}.*)*)", re.MULTILINE)
_AFTER_SENTENCE = re.compile(r"(?<=\.)\s")


@dataclass(frozen=True)
class Signature:
    """The parameters of a class or a function.

    Attributes:
        defaults: of every parameter, as YAML would write it: "???" for one that has none, a mapping with `_target_` for
            an object. A default that can't be written so makes its parameter no setting, and it is left out.
        texts: the first sentence of what the docstring says of a parameter; of some.
        names: every parameter, settings or not; None if it takes any (`**`).
    """

    defaults: Mapping[str, Any]
    texts: Mapping[str, str]
    names: tuple[str, ...] | None


@cache
def signature_of(target: str) -> Signature:
    """Read what `package.module.name`, a class or a function of this package, takes."""
    module, _, name = target.rpartition(".")
    module, node = _defined(module, name)
    names = None if _takes_any(node) else tuple(dict(_declared(module, node)))
    return Signature(dict(_parameters(module, node)), dict(_texts(module, node)), names)


class _Unreadable(Exception):
    """A default that is no setting."""


@cache
def _definitions(module: str) -> Mapping[str, ast.AST | tuple[str, str]]:
    """Read the definitions at the top of a module, by name: a class, function or value, or the origin of an import."""
    path = _ROOT.joinpath(*module.split(".")[1:])
    source = path.with_suffix(".py") if not path.is_dir() else path / "__init__.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    definitions: dict[str, ast.AST | tuple[str, str]] = dict(_assigned(tree.body))
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            definitions[node.name] = node
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == _PACKAGE:
            definitions |= {alias.asname or alias.name: (str(node.module), alias.name) for alias in node.names}
    return definitions


def _assigned(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Yield (name, value) of what is assigned in a module or in a class."""
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def _defined(module: str, name: str) -> tuple[str, ast.AST]:
    """Find the module in which a name that another module may import is defined, and what it is there."""
    definition = _definitions(module).get(name)
    if definition is None:
        raise _Unreadable
    return _defined(*definition) if isinstance(definition, tuple) else (module, definition)


def _parameters(module: str, node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield (name, default) of every parameter that is a setting."""
    for name, default in dict(_declared(module, node)).items():  # a class may redeclare what its bases declare
        try:
            yield name, NEEDED if default is None else _value(*default)
        except _Unreadable:
            continue


def _declared(module: str, node: ast.AST) -> Iterator[tuple[str, tuple[str, ast.AST] | None]]:
    """Yield (name, default with the module that it stands in) of every parameter, in the order of Python's signature.

    Fields of base classes are the first, but for keyword-only ones, which are the last.
    """
    if isinstance(node, ast.FunctionDef):
        taken = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs) if argument.arg != "self"]
        defaults = [*node.args.defaults, *node.args.kw_defaults]
        missing = [None] * (len(taken) - len(defaults))
        for name, default in zip(taken, [*missing, *defaults], strict=True):
            yield name, None if default is None else (module, default)
    elif isinstance(node, ast.ClassDef):
        made_by = [own for own in node.body if isinstance(own, ast.FunctionDef) and own.name == "__init__"]
        if made_by:
            yield from _declared(module, made_by[0])
            return
        bases = list(_bases(module, node))
        for where, base in (one for one in bases if not _by_keyword(one[1])):
            yield from _declared(where, base)
        for own in node.body:
            if isinstance(own, ast.AnnAssign) and isinstance(own.target, ast.Name) and not _of_class(own.annotation):
                yield own.target.id, None if own.value is None else (module, own.value)
        for where, base in (one for one in bases if _by_keyword(one[1])):
            yield from _declared(where, base)


def _takes_any(node: ast.AST) -> bool:
    """Return True if a function, or the `__init__` of a class, takes arguments of any name."""
    made_by = [own for own in getattr(node, "body", ()) if getattr(own, "name", "") == "__init__"]
    return any(own.args.kwarg is not None for own in (node, *made_by) if isinstance(own, ast.FunctionDef))


def _bases(module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    """Yield the base classes that are this package's, each with its module."""
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in _definitions(module):
            yield _defined(module, base.id)


def _by_keyword(node: ast.AST) -> bool:
    """Return True if a class is a dataclass whose fields are keyword-only."""
    decorators = (one for one in getattr(node, "decorator_list", ()) if isinstance(one, ast.Call))
    return any(keyword.arg == "kw_only" for decorator in decorators for keyword in decorator.keywords)


def _of_class(annotation: ast.expr) -> bool:
    return ast.unparse(annotation).startswith("ClassVar")


def _value(module: str, node: ast.AST) -> Any:
    """Read a default as YAML would write it."""
    value: Any
    match node:
        case ast.Constant():
            value = node.value
        case ast.Tuple() | ast.List():
            value = [_value(module, item) for item in node.elts]
        case ast.BinOp(op=ast.LShift()):
            value = _value(module, node.left) << _value(module, node.right)
        case ast.Name():
            value = _value(*_defined(module, node.id))
        case ast.ClassDef():  # an object made of its defaults
            target = f"{module}.{node.name}"
            value = {"_target_": target, **signature_of(target).defaults}
        case ast.Attribute(value=ast.Name(id=owner)):  # a member of an enum
            value = _members(module, owner).get(node.attr)
        case ast.Call(func=ast.Name(id="tuple"), args=[ast.Name(id=owner)]):  # all members of one
            value = list(_members(module, owner).values())
        case ast.Call(func=ast.Name(id="field"), keywords=[ast.keyword(arg="default_factory", value=factory)]):
            value = _value(module, factory)
        case ast.Call(func=ast.Name()):
            made = _value(module, node.func)
            names = list(signature_of(made["_target_"]).defaults)
            positional = {key: _value(module, one) for key, one in zip(names, node.args, strict=False)}
            value = made | positional | {str(keyword.arg): _value(module, keyword.value) for keyword in node.keywords}
        case _:
            raise _Unreadable
    return value


def _members(module: str, name: str) -> dict[str, Any]:
    """Read the values of an enum, by name."""
    where, node = _defined(module, name)
    return {key: _value(where, value) for key, value in _assigned(getattr(node, "body", []))}


def _texts(module: str, node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of every parameter that a docstring speaks of; a class's own after those of its bases."""
    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
        return
    if isinstance(node, ast.ClassDef):
        for where, base in _bases(module, node):
            yield from _texts(where, base)
    section = _SECTION.search(ast.get_docstring(node) or "")
    for entry in _ENTRY.finditer(section["entries"]) if section else ():
        sentence = _AFTER_SENTENCE.split(" ".join(entry["text"].split()), maxsplit=1)[0].rstrip(".")
        text = re.sub(r"\bNone\b", "null", sentence)
        yield from ((name, text) for name in entry["names"].split(", "))
