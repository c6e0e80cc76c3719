"""The printed list of installed models."""

from rich.console import Console

from neuroshard.app.listing import show_models
from neuroshard.bundles import shipped_path
from neuroshard.models import load_bundle


def _row(name):
    """Return the cells of a row: name, hardware, batch sizes, devices, sharding types, and errors of three models."""
    console = Console(record=True, width=400)
    show_models([], console)
    (line,) = (line for line in console.export_text().splitlines() if line.startswith(f"│ {name} "))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_unmeasured_exchanges_are_listed_as_from_a_datasheet():
    _, card = load_bundle(shipped_path("h100"))
    _, _, batch_sizes, devices, _, *errors = _row("h100")
    assert (batch_sizes, devices) == ("2048 to 65536", "any")
    assert errors == [f"{card.metrics.compute.test.mape:.1%}", "datasheet", "datasheet"]


def test_measured_exchanges_are_listed_with_their_errors_and_devices():
    _, card = load_bundle(shipped_path("cpu"))
    _, _, _, devices, _, *errors = _row("cpu")
    assert devices == "2 to 8"
    tests = (card.metrics.compute, card.metrics.forward, card.metrics.backward)
    assert errors == [f"{one.test.mape:.1%}" for one in tests]
