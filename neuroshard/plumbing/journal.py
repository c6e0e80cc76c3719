"""A journal of numbered values on disk.
If a run was killed, the next run reads the values, and continues with the first value that is missing.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.schema import of_format, parse

Value = TypeVar("Value")


@dataclass(frozen=True)
class Journal(Generic[Value]):
    """Numbered values of one type, each in a separate file such as `<name>-0000.json`; a file is complete or missing.

    A subclass may store the values in files of another format.

    Attributes:
        folder: directory of the files; made when the first file is written.
        name: noun for one value; file names, the format and errors contain the noun.
        holds: the type of the values: a dataclass, unless a subclass stores other values.
        wrong: function of a value's number and the value that returns the defect of the value, as a predicate for an
            error about the file ("has ..."), or None if the value is right.
        after_deletion: action of the next run after a damaged file is deleted, as a clause of the error message.
        version: version of the files' format.
    """

    suffix: ClassVar[str] = ".json"

    folder: Path
    name: str
    holds: type[Value]
    wrong: Callable[[int, Value], str | None] = lambda _number, _value: None
    after_deletion: str = "the values in the file are measured again"
    version: int = 1

    def keep(self, number: int, value: Value) -> None:
        """Write `value` to disk as the value with this number."""
        self.write(self.path(number), value)

    def get(self, number: int) -> Value | None:
        """Return the value with this number, or None if there is no file for the number.

        Raises:
            UserError: the file is damaged, or `wrong` finds a defect in the value.
        """
        path = self.path(number)
        if not path.exists():
            return None
        where = f"{self.name} {path}"
        try:
            value = parse(self.content(path, where), self.holds, where)
            if wrong := self.wrong(number, value):
                raise UserError("journal-value-wrong", f"{where} {wrong}")
        except UserError as error:
            remedy = f"Delete {path} and run the command again; then {self.after_deletion}"
            raise error.changed(remedy=remedy) from None
        return value

    def write(self, path: Path, value: Value) -> None:
        """Write a value as JSON to the file `path`."""
        fields: Any = value
        write_json(path, {"format": self._format, **asdict(fields)})

    def content(self, path: Path, where: str) -> Any:
        """Read the file of a value, and return the content as plain values; raise UserError if the file is damaged."""
        return of_format(read_json(path, self.name), self._format, where)

    def read(self) -> tuple[Value, ...]:
        """Return the values with the numbers 0, 1, ... up to the first number without a file.
        The function raises the same errors as `get`.
        """
        values: list[Value] = []
        while (value := self.get(len(values))) is not None:
            values.append(value)
        return tuple(values)

    def filled(self, count: int, make: Callable[[Sequence[Value]], Value]) -> tuple[Value, ...]:
        """Return at least `count` values: first the values on disk, then as many new values from `make` as are needed.

        `make` is called with all values before the new one; each new value is written to disk. Raises as `get` does.
        """
        values = self.read()
        while len(values) < count:
            values = (*values, make(values))
            self.keep(len(values) - 1, values[-1])
        return values

    def clear(self) -> None:
        """Delete the folder of the journal, with all values."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, number: int) -> Path:
        """Return the path of the file for the value with this number."""
        return self.folder / f"{self.name}-{number:04d}{self.suffix}"

    @property
    def _format(self) -> str:
        return f"neuroshard-{self.name}-{self.version}"
