"""Messages of errors and warnings. A message consists of several parts, such as the place of a mistake and a remedy.
Only this module joins the parts of a message to one text.
"""

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Message:
    """One error or warning; `str(message)` renders it in one line: "where: what; limit. Remedy".

    Attributes:
        code: short name by which programs and tests recognise the message, in small letters with hyphens.
        what: what is wrong, as a clause: the value, and the field, setting or table that has it.
        where: the place of the value, such as a file with its line; empty if `what` names the place.
        limit: why that is wrong, as a clause: the limit, or what was expected; empty if `what` says it.
        remedy: what to do, as one or two sentences in the imperative without the last full stop: the setting or
            command; empty if nothing can be done.
    """

    code: str
    what: str
    where: str = ""
    limit: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        # A message is one line, even if a value in the message has line breaks. The full stop is removed because texts
        # of other libraries often end in one.
        for field in fields(self):
            text = " ".join(getattr(self, field.name).split())
            ends = text.endswith(".") and not text.endswith("..")
            object.__setattr__(self, field.name, text[:-1] if ends else text)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        limit = f"; {self.limit}" if self.limit else ""
        remedy = f". {self.remedy}" if self.remedy else ""
        return f"{place}{self.what}{limit}{remedy}"


def number_of(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count and a noun as text, such as "1 table" or "3 tables"; `plural` defaults to the noun with an "s"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def both_in_one(first: Message | None, second: Message | None) -> Message | None:
    """Join two messages into one message. If one of them is None, return the other message, or None if both are None.

    The joined message has the code of `first`.
    """
    if first is None or second is None:
        return first or second
    return replace(first, remedy=". ".join(filter(None, (first.remedy, str(second)))))
