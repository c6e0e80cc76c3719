"""Files in which planners for training jobs keep a plan, with digests of the inputs for which the plan was made."""

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
    """Return True if `content` was read from a file in which a planner for a training job kept its plan.
    The file may have any version of the format.
    """
    return isinstance(content, dict) and str(content.get("format")).startswith(KIND)


def kept_content(content: object, where: str) -> dict[str, Any]:
    """Check the content of a file in which a planner for a training job kept its plan, and return the file's fields.
    The fields "format" and "digest" are left out.

    Errors name the file as `where`.

    Raises:
        UserError: the file is not a kept plan of this version, or was changed after it was written.
    """
    fields = of_format(content, _FORMAT, where)
    if fields.pop("digest", None) != digest(fields):
        raise UserError(
            "kept-plan-damaged",
            "the file was changed or damaged after it was written",
            where=where,
            limit="the checksum does not match the content",
            remedy="Restore the file, or delete it and plan again",
        )
    return fields


def read_kept(path: Path) -> dict[str, Any]:
    """Return the fields of a file in which a planner for a training job kept its plan.
    The fields "format" and "digest" are checked and left out.

    Raises:
        UserError: the file is missing or not JSON, or `kept_content` refuses it.
    """
    return kept_content(read_json(path, "kept plan"), f"kept plan {path}")


def kept_modules(path: str | Path) -> dict[str, dict[str, Any]] | None:
    """Return the plan of the whole model from a file in which a planner for a training job kept its plan.
    The result has the sharding of each table, as JSON, by the path of the module and the name of the table. Return None
    if the file is of another kind.

    Raises:
        UserError: the file is missing or not JSON, or `kept_content` refuses it.
    """
    content = read_json(Path(path), "plan")
    if not is_kept(content):
        return None
    modules: dict[str, dict[str, Any]] = kept_content(content, f"kept plan {path}")["modules"]
    return modules


def file_of(content: Mapping[str, object]) -> dict[str, object]:
    """Return the content of a file in which a planner for a training job keeps its plan.
    The file has all fields of `content`, and two more fields: "format", and "digest", the digest of `content`.
    """
    return {"format": _FORMAT, "digest": digest(content), **content}


def digest(content: Mapping[str, object]) -> str:
    """Return the SHA-256 of JSON values, which depends neither on the order of fields nor on the blanks in a file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
