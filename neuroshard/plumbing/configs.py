"""The files in `conf/`, by name, without Hydra, which is slow to import."""

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "conf"


@cache
def choices(group: str) -> tuple[str, ...]:
    """List the configs in a group, such as "searcher", by name; empty if there is no such group."""
    return tuple(sorted(path.stem for path in (FOLDER / group).glob("*.yaml")))


def is_group(name: str) -> bool:
    """Return True if `conf/` has a group of that name."""
    return name.isidentifier() and bool(choices(name))


def headline(file: str) -> str:
    """Read the first line of a config's opening comment."""
    lines = (FOLDER / file).read_text(encoding="utf-8").splitlines()
    said = (line.removeprefix("# ") for line in lines if line.startswith("# ") and not line.startswith("# @package"))
    return next(said, "")


def quoted(text: str) -> str:
    """Quote a text, whatever it holds, as a value that Hydra takes as it is."""
    inner = text.removeprefix("'").removesuffix("'") if len(text) > 1 and text[0] == text[-1] == "'" else text
    escaped = re.sub(r"(\\*)(?='|\$\{|$)", r"\1\1", inner).replace("'", "\\'").replace("${", "\\${")
    return f"'{escaped}'"
