"""A plan in another system's words, as files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import write_atomically, write_json


@dataclass(frozen=True)
class Exported:
    """What another system is given of a plan.

    Attributes:
        content: JSON-ready.
        snippet: Python that sets the same up there; None where the JSON is what it reads.
        remarks: lines on what it asks of whoever trains with it.
    """

    content: dict[str, Any]
    snippet: str | None = None
    remarks: tuple[str, ...] = ()

    @property
    def suffix(self) -> str:
        """Return the suffix that a file with this content has."""
        return ".json" if self.snippet is None else ".py"

    def paths(self, out: str | Path) -> tuple[Path, ...]:
        """The files that `save` writes, `out` first.

        Raises:
            UserError: `out` has another suffix, or one of them is a directory.
        """
        path = Path(out)
        if path.suffix != self.suffix:
            raise UserError(f"out={out} must end in {self.suffix}")
        paths = (path,) if self.snippet is None else (path, path.with_suffix(".json"))
        for one in paths:
            if one.is_dir():
                raise UserError(f"{one} is a directory; give another out=FILE{self.suffix}")
        return paths

    def save(self, out: str | Path) -> tuple[Path, ...]:
        """Write the snippet to `out` and the JSON beside it, under the same name; or the JSON to `out` where it is all.

        Raises:
            UserError: `out` has another suffix, or is a directory.
        """
        paths = self.paths(out)
        if (snippet := self.snippet) is not None:
            write_atomically(paths[0], lambda temporary: temporary.write_text(snippet, encoding="utf-8"))
        write_json(paths[-1], self.content)
        return paths
