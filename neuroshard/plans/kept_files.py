"""The files in which planners for training jobs keep a plan with everything that it was made for."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json
from neuroshard.plumbing.schema import of_format

KIND = "neuroshard-kept-plan-"
_FORMAT = f"{KIND}4"


def is_kept(content: object) -> bool:
    """Return True if the content of a JSON file is a kept plan's, of any version."""
    return isinstance(content, dict) and str(content.get("format")).startswith(KIND)


def kept_content(content: object, where: str) -> dict[str, Any]:
    """Return what a kept plan's file says, without its format and digest; `where` is what errors begin with.

    Raises:
        UserError: it is not a kept plan of this version, or was changed after it was written.
    """
    said = of_format(content, _FORMAT, where)
    if said.pop("digest", None) != digest(said):
        raise UserError(f"{where} was changed or damaged after it was written: its digest doesn't fit")
    return said


def read_kept(path: Path) -> dict[str, Any]:
    """Read what a kept plan's file says; errors are those of `kept_content`."""
    return kept_content(read_json(path, "kept plan"), f"kept plan {path}")


def file_of(content: Mapping[str, object]) -> dict[str, object]:
    """Build the file of a kept plan: what it says, with a digest of that."""
    return {"format": _FORMAT, "digest": digest(content), **content}


def digest(content: Mapping[str, object]) -> str:
    """Compute the SHA-256 of JSON values, however they are set and ordered in a file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
