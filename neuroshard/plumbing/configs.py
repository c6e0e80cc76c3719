"""Functions that look up config files in `conf/` by name without Hydra, which is slow to import."""

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "conf"


@cache
def choices(group: str) -> tuple[str, ...]:
    """Return the sorted names of the configs in the folder `conf/<group>`; empty if there is no such folder."""
    return tuple(sorted(path.stem for path in (FOLDER / group).glob("*.yaml")))


def is_group(name: str) -> bool:
    """Return True if `conf/` has a config group, that is, a folder with configs, called `name`."""
    return name.isidentifier() and bool(choices(name))


def headline(file: str) -> str:
    """Return the first line of the comment at the top of `conf/<file>`; empty if there is no comment."""
    lines = (FOLDER / file).read_text(encoding="utf-8").splitlines()
    texts = (line.removeprefix("# ") for line in lines if line.startswith("# ") and not line.startswith("# @package"))
    return next(texts, "")


def quoted(text: str) -> str:
    """Put quotes around a text and escape special characters, so that Hydra reads the text as a plain value.

    Quotes around the text that the user wrote are replaced, not doubled.
    """
    inner = text.removeprefix("'").removesuffix("'") if len(text) > 1 and text[0] == text[-1] == "'" else text
    escaped = re.sub(r"(\\*)(?='|\$\{|$)", r"\1\1", inner).replace("'", "\\'").replace("${", "\\${")
    return f"'{escaped}'"
