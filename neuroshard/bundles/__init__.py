"""The pre-trained cost models that come with the package, one directory each, and their names."""

from pathlib import Path

from neuroshard.plumbing.configs import choices

ROOFLINE = "roofline:"  # prefix of the names of analytic models, which are made from datasheets
_BUNDLES = Path(__file__).resolve().parent


def known_names() -> list[str]:
    """Return every name of a model that `CostModels.load` accepts.
    These are the names of the bundles (pre-trained models), and "roofline:NAME" for each analytic model.
    """
    return [*shipped_names(), *(f"{ROOFLINE}{name}" for name in choices("roofline"))]


def shipped_names() -> list[str]:
    """Return the names of the bundles that come with the package, sorted."""
    return sorted(entry.parent.name for entry in _BUNDLES.glob("*/bundle.json"))


def shipped_path(name: str) -> Path | None:
    """Return the directory of the bundle called `name` that comes with the package; None if there is no such bundle."""
    return _BUNDLES / name if name in shipped_names() else None
