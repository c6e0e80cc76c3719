"""Numbered parts of a run on disk, each in a file of its own.
If a run was killed, the next run reads the parts on disk, and continues with the parts that are missing.
"""

import re
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
class Codec(Generic[Value]):
    """Writes values of one type to files, and reads the values back.

    Attributes:
        name: noun for one value, with which file names begin.
        suffix: suffix of file names.
        write: writes a value to a file atomically.
        read: returns the value in a file; raises UserError if the file is damaged.
        remedy: remedy in errors about a damaged file; "{path}" stands for the path of the file.
        digits: minimum number of digits in file names.
    """

    name: str
    suffix: str
    write: Callable[[Path, Value], None]
    read: Callable[[Path], Value]
    remedy: str = "Delete {path} and run the command again; then the values in the file are measured again"
    digits: int = 4


def json_codec(name: str, holds: type[Value], remedy: str = Codec.remedy) -> Codec[Value]:
    """Return a codec that stores dataclasses of type `holds` as JSON files.
    `name` is a noun for such a dataclass, such as "task"; file names begin with this noun. `remedy` is the advice to
    the user in errors about damaged files.
    """
    form = f"neuroshard-{name}-1"

    def write(path: Path, value: Any) -> None:
        write_json(path, {"format": form, **asdict(value)})

    def read(path: Path) -> Value:
        where = f"{name} {path}"
        return parse(of_format(read_json(path, name), form, where), holds, where)

    return Codec(name, ".json", write, read, remedy)


@dataclass(frozen=True)
class Parts(Generic[Value]):
    """Numbered values of one type, each in a separate file such as `task-0000.json`; a file is complete or missing.

    Attributes:
        folder: directory of the files; made when the first file is written.
        codec: names, writes and reads the files.
        wrong: function of a value's number and the value that returns the defect of the value, as a predicate for an
            error about the file ("has ..."), or None if the value is right.
    """

    folder: Path
    codec: Codec[Value]
    wrong: Callable[[int, Value], str | None] = lambda _number, _value: None

    def path(self, number: int) -> Path:
        """Return the path of the file for the value with this number."""
        return self.folder / f"{self.codec.name}-{number:0{self.codec.digits}d}{self.codec.suffix}"

    def has(self, number: int) -> bool:
        """Return True if the part with this number is on disk."""
        return self.path(number).exists()

    def write(self, number: int, value: Value) -> None:
        """Write `value` to disk atomically, as the value with this number."""
        self.codec.write(self.path(number), value)

    def get(self, number: int) -> Value | None:
        """Return the value with this number, or None if there is no file for the number.

        Raises:
            UserError: the file is damaged, or `wrong` finds a defect in the value.
        """
        path = self.path(number)
        if not path.exists():
            return None
        try:
            value = self.codec.read(path)
            if wrong := self.wrong(number, value):
                raise UserError("stored-part-wrong", f"{self.codec.name} {path} {wrong}")
        except UserError as error:
            raise error.changed(remedy=self.codec.remedy.format(path=path)) from None
        return value

    def leading(self) -> tuple[Value, ...]:
        """Return all values on disk whose numbers are below the first missing number.
        For example, if the numbers 0, 1 and 3 have files, the result has the values with the numbers 0 and 1. The
        function raises the same errors as `get`.
        """
        values: list[Value] = []
        while (value := self.get(len(values))) is not None:
            values.append(value)
        return tuple(values)

    def each(self) -> list[Value]:
        """Return all values on disk, in the order of their numbers. The method raises the same errors as `get`."""
        return [value for number in self.numbers if (value := self.get(number)) is not None]

    @property
    def numbers(self) -> list[int]:
        """The numbers of all values on disk, in order.
        Files with other names, such as copies made by a user, do not count.
        """
        pattern = re.compile(rf"{self.codec.name}-(\d{{{self.codec.digits},}})\{self.codec.suffix}")
        names = (pattern.fullmatch(path.name) for path in self.folder.glob("*"))
        return sorted(filter(self.has, {int(match[1]) for match in names if match}))

    @property
    def end(self) -> int:
        """The number for the next value: the first number after all values on disk."""
        return 1 + max(self.numbers, default=-1)

    def filled(self, count: int, make: Callable[[Sequence[Value]], Value]) -> tuple[Value, ...]:
        """Return at least `count` values: first the values on disk, then as many new values from `make` as are needed.

        `make` is called with all values before the new one; each new value is written to disk. Raises as `get` does.
        """
        values = self.leading()
        while len(values) < count:
            values = (*values, make(values))
            self.write(len(values) - 1, values[-1])
        return values

    def clear(self) -> None:
        """Delete the folder, with all values."""
        shutil.rmtree(self.folder, ignore_errors=True)
