"""Numbered values on disk that outlive the process: a run that was killed goes on with the first that isn't there."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.schema import of_format, parse

Value = TypeVar("Value")


@dataclass(frozen=True)
class Journal(Generic[Value]):
    """Values of one dataclass, each in a file of its own, `<name>-0000.json`, that is there whole or not at all.

    Attributes:
        folder: of the files; it is made with the first of them.
        name: of what one holds.
        holds: the dataclass of the values.
        wrong: says what is wrong with a value of a number, as the predicate of an error about the file; None where
            nothing is.
        after_deletion: what a run does after a damaged file is deleted, as a clause of the error message.
        version: of the files' format.
    """

    folder: Path
    name: str
    holds: type[Value]
    wrong: Callable[[int, Value], str | None] = lambda _number, _value: None
    after_deletion: str = "the values in the file are measured again"
    version: int = 1

    def keep(self, number: int, value: Value) -> None:
        """Write a value to its file."""
        content: Any = value
        write_json(self.path(number), {"format": self._format, **asdict(content)})

    def get(self, number: int) -> Value | None:
        """Read a number's value, if there is one; raise UserError if its file is damaged, or holds another's value."""
        path = self.path(number)
        if not path.exists():
            return None
        where = f"{self.name} {path}"
        try:
            value = parse(of_format(read_json(path, self.name), self._format, where), self.holds, where)
            if wrong := self.wrong(number, value):
                raise UserError("journal-value-wrong", f"{where} {wrong}")
        except UserError as error:
            remedy = f"Delete {path} and run the command again; then {self.after_deletion}"
            raise error.changed(remedy=remedy) from None
        return value

    def read(self) -> tuple[Value, ...]:
        """Read all values before the first that isn't there; raise what `get` does."""
        values: list[Value] = []
        while (value := self.get(len(values))) is not None:
            values.append(value)
        return tuple(values)

    def filled(self, count: int, make: Callable[[Sequence[Value]], Value]) -> tuple[Value, ...]:
        """Read all values as `read` does, make and keep more up to `count`; `make` gets those before its own."""
        values = self.read()
        while len(values) < count:
            values = (*values, make(values))
            self.keep(len(values) - 1, values[-1])
        return values

    def clear(self) -> None:
        """Forget all values, on disk too."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, number: int) -> Path:
        """Return the path of the file of a number's value."""
        return self.folder / f"{self.name}-{number:04d}.json"

    @property
    def _format(self) -> str:
        return f"neuroshard-{self.name}-{self.version}"
