"""Pre-trained bundles that come with the package."""

from pathlib import Path

_BUNDLES = Path(__file__).resolve().parent.parent / "bundles"


def shipped_names() -> list[str]:
    """Names that `CostModels.load` takes."""
    return sorted(entry.parent.name for entry in _BUNDLES.glob("*/bundle.json"))


def shipped_path(name: str) -> Path | None:
    """Where the bundle of that name stands; None if there is none."""
    return _BUNDLES / name if name in shipped_names() else None
