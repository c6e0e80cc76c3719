"""Pre-trained cost models that come with the package, a directory each."""

from pathlib import Path

from neuroshard.plumbing.configs import choices

ROOFLINE = "roofline:"  # before the name of a datasheet
_BUNDLES = Path(__file__).resolve().parent


def known_names() -> list[str]:
    """List every name that `CostModels.load` takes: shipped bundles and datasheets."""
    return [*shipped_names(), *(f"{ROOFLINE}{name}" for name in choices("roofline"))]


def shipped_names() -> list[str]:
    """List the names of the bundles that come with the package."""
    return sorted(entry.parent.name for entry in _BUNDLES.glob("*/bundle.json"))


def shipped_path(name: str) -> Path | None:
    """Find the directory of the shipped bundle of that name; None if there is none."""
    return _BUNDLES / name if name in shipped_names() else None
