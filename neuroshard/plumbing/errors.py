"""The exception for users' mistakes and the warning category of this package; both store the parts of their messages.

Every exception other than UserError is a defect, unless its cause (`raise ... from`) is a UserError: see
`user_error_in`.
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
    """An exception that reports a user's mistake; `str(error)` joins the parts of the error's message in one line.

    The arguments are the fields of `Message`.
    """

    def __init__(self, code: str, what: object, *, where: str = "", limit: str = "", remedy: str = "") -> None:
        self.message = Message(code, str(what), where, limit, remedy)
        super().__init__(str(self.message))

    @property
    def code(self) -> str:
        """The short name of the error message, such as "unknown-name"."""
        return self.message.code

    def at(self, where: str) -> Self:
        """Return a copy of this error with the place of the mistake, such as "sample 3" or the path of a file.
        If the error already names a place, `where` is put in front of this place.
        """
        inner = self.message.where
        return self.changed(where=f"{where}: {inner}" if inner else where)

    def changed(self, **parts: str) -> Self:
        """Return a copy of this error with some parts of the message replaced; `parts` are fields of `Message`."""
        return _restored(type(self), replace(self.message, **parts))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.message)


_Error = TypeVar("_Error", bound=UserError)


def _restored(kind: type[_Error], message: Message) -> _Error:
    """Return a new error of the class `kind` with the message `message`.

    Unpickling of errors calls this function, too.
    """
    parts = asdict(message)
    return kind(parts.pop("code"), parts.pop("what"), **parts)


class NeuroShardWarning(UserWarning):
    """A warning that lists reasons to doubt a result, such as a search that was cut short, or tables with few samples.

    `messages` has one message for each reason. To ignore these warnings, filter by this category:
    `warnings.simplefilter("ignore", ns.NeuroShardWarning)`.
    """

    def __init__(self, *messages: Message) -> None:
        self.messages = messages
        super().__init__("; ".join(map(str, messages)))


def warn_of(answered: str, messages: Sequence[Message]) -> None:
    """Issue one NeuroShardWarning that joins all `messages`; do nothing if there are no messages.
    The messages are reasons to doubt the result of a function. `answered` is the full name of this function.

    The warning names this function, not a line of the caller's source, so that Python prints a single line.
    """
    if messages:
        warnings.warn_explicit(NeuroShardWarning(*messages), NeuroShardWarning, answered, 0)


class InfeasibleError(UserError):
    """The error raised if no plan that keeps all memory limits and constraints is found.
    The message states the limit and a remedy.
    """


class MissingPackageError(UserError, ImportError):
    """The error raised if an optional package is not installed; the message has the command to install the package."""


def user_error_in(error: BaseException) -> UserError | None:
    """Return the first UserError in the chain of causes `error`, `error.__cause__`, `error.__cause__.__cause__`, ...
    Return None if the chain has no UserError: then `error` is not a user's mistake, but a defect of this package.

    An error that was raised while a UserError was handled (`__context__`), but not from it, is a defect.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, UserError):
        cause = cause.__cause__
    return cause


def raised_by(error: BaseException, *packages: str) -> bool:
    """Return True if an error comes from one of the given packages, or from a library that one of the packages called.
    The packages are given by name, such as "torchrec".

    An error in this project's code that such a package calls back does not count. This check separates a library's
    refusal of an input from a defect of this project, because both may raise ValueError or RuntimeError.
    """
    modules = (str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__))
    callers = [name for module in modules if (name := module.partition(".")[0]) in (_PROJECT, *packages)]
    return bool(callers) and callers[-1] in packages


def first_line(error: BaseException) -> str:
    """Return the first line of the text of an error, or the name of the error's class if the text is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def unknown_name(what: str, name: str, valid: Iterable[str], first: Sequence[str] = ()) -> UserError:
    """Return the error for a name that is not in `valid`.
    The error suggests the nearest valid name, or lists valid names.

    In the list, names of the same groups as `name` come first, and then the names in `first`; it is cut after 20 names.
    Names with dots, such as `searcher.grid`, are compared without the groups that they share, because shared groups
    would make any two settings of a searcher similar.

    Args:
        what: noun for the name in the error, such as "setting".
        name: the unknown name.
        valid: the valid names.
        first: the valid names to list first.
    """
    names = [*first, *sorted(set(valid).difference(first))]
    near = [other for other in get_close_matches(name, names, n=_SHOWN_NAMES, cutoff=_SIMILAR) if _similar(name, other)]
    names.sort(key=lambda other: -_shared_groups(name, other))
    more = ", ..." if len(names) > _SHOWN_NAMES else ""
    advice = (
        {"remedy": f"Did you mean {near[0]!r}?"}
        if near
        else {"limit": f"valid: {', '.join(names[:_SHOWN_NAMES])}{more}"}
    )
    return UserError("unknown-name", f"unknown {what} {name!r}", **advice)


def _similar(name: str, other: str) -> bool:
    """Return True if two names of settings are spelled alike.
    Leading groups that both names share, such as `searcher` in `searcher.grid` and `searcher.gird`, are not compared.

    Return False if `other` is a group of `name`, such as `searcher` of `searcher.grid`.
    """
    if name.startswith(f"{other}."):
        return False
    groups = _shared_groups(name, other)
    name_end, other_end = (".".join(dotted.split(".")[groups:]) for dotted in (name, other))
    # The ratio depends on the order of the two texts; this is the order that `get_close_matches` uses.
    return SequenceMatcher(None, other_end, name_end).ratio() >= _SIMILAR


def _shared_groups(name: str, other: str) -> int:
    """Return the number of groups that two names of settings have in common at the beginning.
    The groups of a name are the parts before the last dot: `searcher.grid` and `searcher.tolerance` share 1 group.
    """
    pairs = list(zip(name.split(".")[:-1], other.split(".")[:-1], strict=False))
    return next((number for number, (group, other_group) in enumerate(pairs) if group != other_group), len(pairs))


def check_name(what: str, name: str, valid: Collection[str]) -> None:
    """Raise UserError if `name` is not in `valid`.
    `what` is a noun for `name` in the error message, such as "setting".
    """
    if name not in valid:
        raise unknown_name(what, name, valid)
