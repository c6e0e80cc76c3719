"""What directories hold, by the file that marks it: nothing is written where something else is."""

from collections.abc import Collection
from pathlib import Path

from neuroshard.errors import UserError

_MARKS = {
    "run.json": "a run",
    "settings.json": "a run",
    "manifest.json": "measurements",
    "bundle.json": "a bundle of models",
    "policy.json": "a policy",
}


def check_nothing_else(path: Path, own: Collection[str]) -> None:
    """Raise UserError if a directory holds what is marked by another file than those in `own`."""
    for name, what in _MARKS.items():
        if name not in own and (path / name).exists():
            raise UserError(f"{path} holds {what} ({name}); give another out=DIRECTORY")
