"""The one exception a user's mistake raises, and the one category of warnings; both carry messages in parts.

Every other exception is a defect, unless a UserError is its cause (`raise ... from`): `user_error_in` decides.
"""

import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from difflib import SequenceMatcher, get_close_matches
from traceback import walk_tb
from typing import Any, Self, TypeVar

from neuroshard.plumbing.messages import Message

_SHOWN_NAMES = 20
_SIMILAR = 0.6  # from 0 to 1, of difflib
_PROJECT = __name__.partition(".")[0]


class UserError(ValueError):
    """A user's mistake, as a message in parts; `str(error)` renders the parts in one line.

    The arguments are the fields of `Message`.
    """

    def __init__(self, code: str, what: object, *, where: str = "", limit: str = "", remedy: str = "") -> None:
        self.message = Message(code, str(what), where, limit, remedy)
        super().__init__(str(self.message))

    @property
    def code(self) -> str:
        """The short name of the message."""
        return self.message.code

    def at(self, where: str) -> Self:
        """Return the same error at a place; if it names a place already, that place lies inside."""
        inner = self.message.where
        return self.changed(where=f"{where}: {inner}" if inner else where)

    def changed(self, **parts: str) -> Self:
        """Return the same error with other parts."""
        return _restored(type(self), replace(self.message, **parts))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.message)


_Error = TypeVar("_Error", bound=UserError)


def _restored(kind: type[_Error], message: Message) -> _Error:
    """Make an error of a message."""
    parts = asdict(message)
    return kind(parts.pop("code"), parts.pop("what"), **parts)


class NeuroShardWarning(UserWarning):
    """Reasons to doubt a result, such as a search that was cut short, or tables counted in too few samples.

    `messages` has one message for each. Python's `warnings` filter them by this category:
    `warnings.simplefilter("ignore", ns.NeuroShardWarning)`.
    """

    def __init__(self, *messages: Message) -> None:
        self.messages = messages
        super().__init__("; ".join(map(str, messages)))


def warn_of(answered: str, messages: Sequence[Message]) -> None:
    """Warn in one line of the reasons to doubt the result of a function, named in full; without reasons do nothing.

    The warning names no place in the caller's source, so that Python prints a single line.
    """
    if messages:
        warnings.warn_explicit(NeuroShardWarning(*messages), NeuroShardWarning, answered, 0)


class InfeasibleError(UserError):
    """The error that no plan found fits in memory: names the cap, what exceeds it and what would help."""


class MissingPackageError(UserError, ImportError):
    """The error that an optional package isn't installed: says how to install it."""


def user_error_in(error: BaseException) -> UserError | None:
    """Return the first UserError among an error and its causes (`__cause__`), or None if the error is a defect.

    An error that was merely raised while a UserError was handled (`__context__`) is a defect.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, UserError):
        cause = cause.__cause__
    return cause


def raised_by(error: BaseException, *packages: str) -> bool:
    """Return True if an error comes from one of `packages` (top-level names), or from a library that it calls.

    An error of this project's code, which such a package may call back, doesn't. This tells the refusals of a library
    from defects of ours where both raise ValueError, RuntimeError and the like.
    """
    modules = (str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__))
    callers = [name for module in modules if (name := module.partition(".")[0]) in (_PROJECT, *packages)]
    return bool(callers) and callers[-1] in packages


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its class if it has no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def unknown_name(what: str, name: str, valid: Iterable[str], first: Sequence[str] = ()) -> UserError:
    """Make the error for a name that is not in `valid`, with the nearest name that is; or a list with those `first`.

    Names with dots, such as `searcher.grid`, are compared without the groups that they share, which would make any
    two settings of a searcher alike. In the list the names of the same groups come before others.
    """
    names = [*first, *sorted(set(valid).difference(first))]
    near = [one for one in get_close_matches(name, names, n=_SHOWN_NAMES, cutoff=_SIMILAR) if _similar(name, one)]
    names.sort(key=lambda one: -_shared_groups(name, one))
    more = ", ..." if len(names) > _SHOWN_NAMES else ""
    known = (
        {"remedy": f"Did you mean {near[0]!r}?"}
        if near
        else {"limit": f"valid: {', '.join(names[:_SHOWN_NAMES])}{more}"}
    )
    return UserError("unknown-name", f"unknown {what} {name!r}", **known)


def _similar(name: str, other: str) -> bool:
    """Return True if two names are similar apart from the groups that they share, and `other` is not such a group."""
    if name.startswith(f"{other}."):
        return False
    groups = _shared_groups(name, other)
    own, its = (".".join(one.split(".")[groups:]) for one in (name, other))
    return SequenceMatcher(None, its, own).ratio() >= _SIMILAR  # in the order of `get_close_matches`


def _shared_groups(name: str, other: str) -> int:
    """Count the groups that two names with dots share: 1 for `searcher.grid` and `searcher.tolerance`."""
    pairs = list(zip(name.split(".")[:-1], other.split(".")[:-1], strict=False))
    return next((number for number, (own, its) in enumerate(pairs) if own != its), len(pairs))


def check_name(what: str, name: str, valid: Collection[str]) -> None:
    """Raise the error for a name that is not in `valid`."""
    if name not in valid:
        raise unknown_name(what, name, valid)
