"""The decorator `checked`, which checks fields of dataclasses and arguments of functions against annotations."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from inspect import signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import AS_SIZE, refusal, shown, to_bytes

_T = TypeVar("_T", bound=Callable[..., Any])
_MARK = "__checked__"
_PLAIN = (int, float, str, bool, NoneType)


def checked(target: _T) -> _T:
    """Decorate a function or dataclass so that every call checks the arguments, or the fields, against the annotations.
    For a dataclass, write `@checked` below `@dataclass`.

    The checks cover annotations of plain types: numbers, text, bool, None, and tuples, lists, sequences, unions or
    literals of these. The type checker covers other classes. If the annotation asks for the other type, a list becomes
    a tuple, a whole number a float, a NumPy number a Python number, and a size such as "4GiB" a number of bytes.

    Raises (when called):
        UserError: a value is of the wrong type or out of range.
    """
    decorated: Any = _checked_class(target) if isinstance(target, type) else _checked_function(target)
    return decorated  # type: ignore[no-any-return]


def check_values(target: Callable[..., Any], values: Mapping[str, object], shown_as: Mapping[str, str]) -> None:
    """Raise UserError if a value in `values` does not fit the annotation of the argument that has the same name.

    `target` is the class or function that has the arguments; `values` are by name. Arguments whose annotation is not a
    plain type are not checked. `shown_as` has the name of each argument in errors.
    """
    for name, hint in _plain_hints(target):
        if name in values:
            _checked_value(values[name], hint, shown_as[name])


def without_numpy(value: object) -> object:
    """Convert NumPy numbers and arrays to Python numbers and lists, also inside lists and tuples.
    Other values are returned unchanged.
    """
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return [without_numpy(inner) for inner in value] if isinstance(value, (tuple, list)) else value


def _checked_class(cls: type[Any]) -> type[Any]:
    ours: Callable[[Any], None] | None = getattr(cls, "__post_init__", None)

    def check_fields(self: Any) -> None:
        """Check the fields of an instance and store the checked values.
        Then call the method `__post_init__` that the class defines, if any.
        """
        try:
            vars(self).update(_checked_fields(self))
        except UserError as error:
            named = _named(self)
            raise (error.at(named) if named else error) from None
        if ours is not None:
            ours(self)

    cls.__post_init__ = check_fields
    setattr(cls, _MARK, True)
    return cls


def _checked_fields(owner: Any) -> dict[str, Any]:
    """Check the fields of `owner` that have plain types, such as numbers or text.
    Return the checked values by field name.

    All fields are first checked together, which is fast. If this check fails, each field is checked alone, which
    converts NumPy values and sizes, or raises an error that names the field.
    """
    cls = cast(Hashable, type(owner))
    try:
        return msgspec.structs.asdict(msgspec.convert(vars(owner), _as_struct(cls)))
    except msgspec.ValidationError:
        return {name: _checked_value(getattr(owner, name), hint, name) for name, hint in _plain_hints(cls)}


@cache
def _as_struct(target: Hashable) -> type[msgspec.Struct]:
    """Return a `msgspec.Struct` class with which msgspec checks the fields of `target` that have plain types, like int.
    The class has only these fields. It is cached, so that the annotations of `target` are read only once.
    """
    return msgspec.defstruct("Fields", _plain_hints(target))


def _named(value: object) -> str:
    """Return the class and the name of a value as text, such as "table 'x'"; empty if the value has no name.

    The class alone would not help a reader, because the error already names the setting.
    """
    class_words = re.sub(r"(?<!^)(?=[A-Z])", " ", type(value).__name__).lower()
    name = getattr(value, "name", None)
    return f"{class_words} {shown(name)}" if isinstance(name, str) else ""


def _checked_function(function: Callable[..., Any]) -> Callable[..., Any]:
    parameters = signature(function)

    @wraps(function)
    def check_arguments(*positional: Any, **named: Any) -> Any:
        """Check the arguments against the annotations, then call the decorated function with the checked arguments."""
        bound = parameters.bind(*positional, **named)
        for name, hint in _plain_hints(function):
            if name in bound.arguments:
                bound.arguments[name] = _checked_value(bound.arguments[name], hint, name)
        return function(*bound.args, **bound.kwargs)

    setattr(check_arguments, _MARK, True)
    return check_arguments


def _checked_value(value: object, hint: Any, name: str) -> Any:
    if isinstance(value, (str, float)) and _is_size(hint):
        value = to_bytes(value, name)
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError:
        try:
            return msgspec.convert(without_numpy(value), hint)
        except msgspec.ValidationError as error:
            refused = refusal(str(error), value, name)
            literals = _literals(hint)
            raise (refused.changed(**_allowed(literals, name)) if literals else refused) from None


def _literals(hint: Any) -> tuple[object, ...]:
    """Return the values that an annotation allows if it is a `Literal`, or a union of a `Literal` and None.
    Return an empty tuple for other annotations.
    """
    if get_origin(hint) is Literal:
        return get_args(hint)
    inner = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    if not any(get_origin(member) is Literal for member in inner):
        return ()
    return tuple(value for member in inner for value in (("null",) if member is NoneType else _literals(member)))


def _allowed(literals: tuple[object, ...], name: str) -> dict[str, str]:
    """Return the limit and the remedy of an error message, as a dict with the keys "limit" and "remedy". The message is
    for a setting `name` whose value is not allowed. The limit lists the allowed values, `literals`. The remedy advises
    the user to choose one of these values.
    """
    values = ", ".join(map(str, literals))
    return {"limit": f"the allowed values are {values}", "remedy": f"Set {name} to one of these values"}


@cache
def _is_size(hint: Hashable) -> bool:
    """Return True if an annotation is `ByteSize` or `ByteSize | None`."""
    return AS_SIZE in getattr(hint, "__metadata__", ()) or any(
        _is_size(inner) for inner in get_args(hint) if get_origin(hint) in (Union, UnionType)
    )


@cache
def _plain_hints(target: Hashable) -> tuple[tuple[str, Any], ...]:
    """Return the name and the annotation of each field or argument of `target` that has a plain type, such as int."""
    owner: Any = target
    hints = get_type_hints(owner, include_extras=True)
    names = [field.name for field in fields(owner)] if is_dataclass(owner) else [n for n in hints if n != "return"]
    return tuple((name, hints[name]) for name in names if _is_plain(hints[name]))


def _is_plain(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return True
    if origin is Annotated:
        return _is_plain(get_args(hint)[0])
    if origin in (tuple, list, Sequence, Union, UnionType):
        return all(inner is Ellipsis or _is_plain(inner) for inner in get_args(hint))
    return hint in _PLAIN
